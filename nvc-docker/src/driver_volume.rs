//! Names the driver's volume: `nvidia_driver_VERSION`.

/// The volume's name without the version.
pub const VOLUME: &str = "nvidia_driver";

/// Its mount point in containers.
pub const MOUNT_POINT: &str = "/usr/local/nvidia";

const BAD_FORMAT: &str = "bad volume format";

/// Returns the docker volume of a driver version.
pub fn name(version: &str) -> String {
    format!("{VOLUME}_{version}")
}

/// Returns the option of `docker run` that mounts it.
pub fn bind(version: &str) -> String {
    format!("{}:{MOUNT_POINT}:ro", name(version))
}

/// Returns the version in a docker volume's name; an error is in upstream's words, without the name.
///
/// It consists of digits and dots, but need not be a version: `.` and `..` are accepted here, and rejected by
/// [`is_version`].
pub fn version(name: &str) -> Result<&str, &'static str> {
    let (volume, version) = name.rsplit_once('_').ok_or(BAD_FORMAT)?;
    let in_version = |c: char| c.is_ascii_digit() || c == '.';
    let in_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    if version.is_empty()
        || !version.chars().all(in_version)
        || volume.is_empty()
        || !volume.chars().all(in_name)
    {
        return Err(BAD_FORMAT);
    }
    match volume {
        VOLUME => Ok(version),
        _ => Err("unsupported volume"),
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
            ("foo", Err(BAD_FORMAT)),
            ("", Err(BAD_FORMAT)),
            ("nvidia_driver", Err(BAD_FORMAT)),
            ("nvidia_driver_", Err(BAD_FORMAT)),
            ("bad/name_1", Err(BAD_FORMAT)),
            ("_1", Err(BAD_FORMAT)),
            ("foo_1.0", Err("unsupported volume")),
            ("nvidia_driver_1_2", Err("unsupported volume")),
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
