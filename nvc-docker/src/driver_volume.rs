//! Names the driver's volume: `nvidia_driver_VERSION`.

/// The volume's name without the version.
pub const VOLUME: &str = "nvidia_driver";

/// Its mount point in containers.
pub const MOUNT_POINT: &str = "/usr/local/nvidia";

/// The error in a volume's name, in upstream's words without the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadName {
    /// The format is invalid.
    Format,
    /// There is no such volume.
    Unsupported,
}

/// Returns the docker volume of a driver version.
pub fn name(version: &str) -> String {
    format!("{VOLUME}_{version}")
}

/// Returns the option of `docker run` that mounts it.
pub fn bind(version: &str) -> String {
    format!("{}:{MOUNT_POINT}:ro", name(version))
}

/// Returns the version in a docker volume's name.
///
/// It consists of digits and dots, but need not be a version: `.` and `..` are accepted here, and rejected by
/// [`is_version`].
pub fn version(name: &str) -> Result<&str, BadName> {
    let (volume, version) = name.rsplit_once('_').ok_or(BadName::Format)?;
    let in_version = |c: char| c.is_ascii_digit() || c == '.';
    let in_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    if version.is_empty()
        || !version.chars().all(in_version)
        || volume.is_empty()
        || !volume.chars().all(in_name)
    {
        return Err(BadName::Format);
    }
    match volume {
        VOLUME => Ok(version),
        _ => Err(BadName::Unsupported),
    }
}

/// Returns true if a text is a driver version, and therefore a safe directory name: numbers separated by dots.
pub fn is_version(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 64
        && text
            .split('.')
            .all(|part| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (name, expected) in [
            ("nvidia_driver_375.66", Ok("375.66")),
            ("nvidia_driver_9", Ok("9")),
            ("nvidia_driver_..", Ok("..")),
            ("foo", Err(BadName::Format)),
            ("", Err(BadName::Format)),
            ("nvidia_driver", Err(BadName::Format)),
            ("nvidia_driver_", Err(BadName::Format)),
            ("bad/name_1", Err(BadName::Format)),
            ("_1", Err(BadName::Format)),
            ("foo_1.0", Err(BadName::Unsupported)),
            ("nvidia_driver_1_2", Err(BadName::Unsupported)),
        ] {
            assert_eq!(version(name), expected, "{name:?}");
        }
    }

    #[test]
    fn versions_are_names_of_directories() {
        for (text, good) in [
            ("375.66", true),
            ("535.261.03", true),
            ("9", true),
            (".", false),
            ("..", false),
            ("1..2", false),
            ("1.", false),
            ("", false),
            ("375.66a", false),
        ] {
            assert_eq!(is_version(text), good, "{text:?}");
        }
    }
}
