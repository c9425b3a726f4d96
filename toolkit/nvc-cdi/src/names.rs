//! Checks and splits the names of vendors, classes and devices.

/// Splits `VENDOR/CLASS=NAME` and checks each part.
pub fn qualified(device: &str) -> Result<(&str, &str, &str), String> {
    let (kind, name) = device
        .split_once('=')
        .ok_or_else(|| format!("\"{device}\" is not of the form VENDOR/CLASS=NAME"))?;
    let (vendor, class) = kind
        .split_once('/')
        .ok_or_else(|| format!("\"{device}\" is not of the form VENDOR/CLASS=NAME"))?;
    self::vendor(vendor)?;
    self::class(class)?;
    self::device(name)?;
    Ok((vendor, class, name))
}

/// Returns true if a word is a qualified device name.
pub fn is_qualified(device: &str) -> bool {
    qualified(device).is_ok()
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
