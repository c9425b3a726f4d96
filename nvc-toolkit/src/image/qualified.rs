//! Recognises fully qualified CDI device names: `vendor/class=device`.

/// The parts of a qualified name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Qualified<'a> {
    /// `vendor/class`.
    pub kind: &'a str,
    /// The device.
    pub device: &'a str,
}

/// Splits a name; None if it is not qualified.
pub fn parse(name: &str) -> Option<Qualified<'_>> {
    let (kind, device) = name.split_once('=')?;
    let (vendor, class) = kind.split_once('/')?;
    let is_name = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.ends_with(|c: char| c.is_ascii_alphanumeric())
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
    };
    let is_device = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.ends_with(|c: char| c.is_ascii_alphanumeric())
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "_-.:".contains(c))
    };
    (is_name(vendor) && is_name(class) && is_device(device)).then_some(Qualified { kind, device })
}

/// Returns true if a name is qualified.
pub fn is_qualified(name: &str) -> bool {
    parse(name).is_some()
}
