//! Checks and splits the names of vendors, classes and devices.

/// The parts of a qualified device name, `VENDOR/CLASS=DEVICE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QualifiedName<'a> {
    /// `VENDOR/CLASS`.
    pub kind: &'a str,
    pub vendor: &'a str,
    pub class: &'a str,
    pub device: &'a str,
}

/// Splits a device name; None if it is not qualified.
pub fn parse(name: &str) -> Option<QualifiedName<'_>> {
    let (kind, device) = name.split_once('=')?;
    let (vendor, class) = kind.split_once('/')?;
    let checked = self::vendor(vendor).and(self::class(class));
    checked.and(self::device(device)).ok()?;
    Some(QualifiedName {
        kind,
        vendor,
        class,
        device,
    })
}

/// Returns true if a word is a qualified device name.
pub fn is_qualified(name: &str) -> bool {
    parse(name).is_some()
}

/// Checks a vendor: a letter, then letters, digits, `_`, `-` and `.`, alphanumeric last.
pub fn vendor(name: &str) -> Result<(), String> {
    vendor_or_class("vendor", name)
}

/// Returns true for a vendor that is NVIDIA: nvidia.com, or a name below it.
pub fn is_nvidias(vendor: &str) -> bool {
    vendor == "nvidia.com" || vendor.ends_with(".nvidia.com")
}

/// Checks a class, by the same rule.
pub fn class(name: &str) -> Result<(), String> {
    vendor_or_class("class", name)
}

/// Checks a device name: alphanumeric at both ends, inside also `_`, `-`, `.` and `:`.
pub fn device(name: &str) -> Result<(), String> {
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    if name.is_empty() {
        return Err("empty device name".into());
    }
    if let Some(c) = odd_character(name, "_-.:") {
        return Err(format!("device name \"{name}\": invalid character '{c}'"));
    }
    if !ends(name.chars().next()) || !ends(name.chars().next_back()) {
        return Err(format!(
            "device name \"{name}\" does not begin and end with a letter or digit"
        ));
    }
    Ok(())
}

fn vendor_or_class(what: &str, name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err(format!("empty {what}"));
    }
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return Err(format!("{what} \"{name}\" does not begin with a letter"));
    }
    if let Some(c) = odd_character(name, "_-.") {
        return Err(format!("{what} \"{name}\": invalid character '{c}'"));
    }
    if !name.ends_with(|c: char| c.is_ascii_alphanumeric()) {
        return Err(format!(
            "{what} \"{name}\" does not end with a letter or digit"
        ));
    }
    Ok(())
}

fn odd_character(name: &str, more: &str) -> Option<char> {
    name.chars()
        .find(|c| !c.is_ascii_alphanumeric() && !more.contains(*c))
}
