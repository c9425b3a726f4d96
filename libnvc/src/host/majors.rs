//! Looks up the major numbers of character devices in /proc/devices.
//!
//! The kernel writes a line `major name` for each driver, in a section with a headline for each kind of device. Names
//! of block devices are a different set, so the section matters.

use crate::error::{Error, Result};
use crate::read_file;

/// The kernel's file.
pub(crate) const PATH: &str = "/proc/devices";

/// Drivers of the GPUs' devices; before 2023 they registered under the second name.
pub(crate) const GPU_DRIVERS: [&str; 2] = ["nvidia", "nvidia-frontend"];

const CHARACTERS: &[u8] = b"Character devices:";

/// Returns the major number of a driver on this machine, `nvidia` by either of its names; None if it is not loaded.
///
/// # Errors
/// `open failed: /proc/devices: <cause>`.
pub fn major_of(driver: &str) -> Result<Option<u32>> {
    let devices = read_file::read_path(PATH);
    let devices = devices.map_err(|errno| Error::file("open failed", PATH, errno))?;
    Ok(by_any_name(&devices, driver))
}

fn by_any_name(devices: &[u8], driver: &str) -> Option<u32> {
    let names = match driver {
        "nvidia" => &GPU_DRIVERS[..],
        _ => &[driver],
    };
    names.iter().find_map(|name| major(devices, name))
}

/// Returns the major number of a driver in the text of /proc/devices.
pub(crate) fn major(devices: &[u8], driver: &str) -> Option<u32> {
    majors(devices, driver).next()
}

/// Returns all major numbers of a driver: one that has run out of minor numbers registers again.
pub(crate) fn majors<'t>(devices: &'t [u8], driver: &'t str) -> impl Iterator<Item = u32> + 't {
    let of_driver = entries(devices).filter(move |(_, name)| *name == driver);
    of_driver.map(|(major, _)| major)
}

/// Returns the names of the drivers that share a major number.
pub(super) fn drivers(devices: &[u8], major: u32) -> impl Iterator<Item = &str> {
    let of_major = entries(devices).filter(move |(number, _)| *number == major);
    of_major.map(|(_, name)| name)
}

/// Returns the major numbers of character devices, with the names of their drivers.
fn entries(devices: &[u8]) -> impl Iterator<Item = (u32, &str)> {
    let lines = devices.split(|byte| *byte == b'\n');
    let section = lines.skip_while(|line| *line != CHARACTERS).skip(1);
    let entries = section.take_while(|line| !line.is_empty());
    entries.filter_map(|line| {
        let line = std::str::from_utf8(line).ok()?;
        let (major, name) = line.trim_start().split_once(' ')?;
        Some((major.parse().ok()?, name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICES: &[u8] = b"Character devices:\n  1 mem\n  4 \xff\n195 nvidia\n195 nvidiactl\n\
        234 nvidia-caps\n235 nvidia-caps-imex-channels\n236 nvidia-caps\n\nBlock devices:\n  7 loop\n  8 sd\n";

    #[test]
    fn character_devices_by_whole_name() {
        for (driver, expected) in [
            ("mem", Some(1)),
            ("nvidia", Some(195)),
            ("nvidia-caps", Some(234)),
            ("nvidia-caps-imex-channels", Some(235)),
            ("nvidia-", None),
            ("loop", None),
            ("devices:", None),
            ("", None),
        ] {
            assert_eq!(major(DEVICES, driver), expected, "{driver}");
        }
        assert!(majors(DEVICES, "nvidia-caps").eq([234, 236]));
        assert_eq!(major(b"Block devices:\n195 nvidia\n", "nvidia"), None);
        assert_eq!(major(b"", "nvidia"), None);
    }

    #[test]
    fn the_gpus_driver_has_two_names() {
        let text = b"Character devices:\n  1 mem\n195 nvidia-frontend\n510 nvidia-uvm\n\nBlock devices:\n  8 nvidia\n";
        assert_eq!(by_any_name(text, "nvidia"), Some(195));
        assert_eq!(by_any_name(text, "nvidia-uvm"), Some(510));
        assert_eq!(by_any_name(text, "nvidia-caps"), None);
    }
}
