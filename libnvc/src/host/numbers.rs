//! Checks that a device node is what its name says: a device of the driver with that name.
//!
//! A container with the host's /dev and the right to make nodes can replace any node there, by another driver's or by
//! another GPU's. So a name alone says nothing. A node counts if its major number is that of its driver in
//! /proc/devices, and its minor number is the one in its name: the driver itself names its devices so. NVML, the
//! kernel's list of PCI devices, or the driver's capability files decide which names belong to a chosen GPU.
//!
//! Some devices are exempt from what they cannot meet. They are character devices in any case:
//!
//! | exempt | from | because |
//! | --- | --- | --- |
//! | /dev/infiniband/uverbs* | the minor number; the driver need not be listed | the driver is not NVIDIA's, has two major numbers, and counts devices as it finds them |
//! | /dev/infiniband/rdma_cm, /dev/dxg | likewise | misc devices, whose minor numbers are dynamic; Windows' GPUs share one device, and NVML knows neither |
//! | other names, e.g. in a Jetson's lists | all numbers | the drivers of a SoC register dynamic numbers under many names, which differ by release |
//!
//! None of the first two may have the number of another driver.

use nix::errno::Errno;

use super::{DeviceNumber, NVIDIA_MAJOR, majors, nodes};
use crate::error::errno_text;
use crate::read_file;

/// The kernel's list of devices that share the major number of `misc`.
const MISC_PATH: &str = "/proc/misc";
const MISC: &str = "misc";

/// Major number of all GPUs' displays, reserved by the kernel.
const DRM_MAJOR: u32 = 226;

/// A kind of device, by its name.
struct Kind {
    /// Name below /dev, without the number.
    name: &'static str,
    major: Major,
    minor: Minor,
}

/// The major number that a kind must have.
enum Major {
    /// The kernel reserves it.
    Fixed(u32),
    /// That of the driver with this name in /proc/devices.
    Of(&'static str),
    /// Any, except that of another driver: for the exempt ones.
    NotOfOthers {
        driver: &'static str,
        misc: Option<&'static str>,
    },
}

/// The minor number that a kind must have.
enum Minor {
    Is(u32),
    /// The number at the end of its name.
    Named,
    Any,
}

const KINDS: [Kind; 17] = {
    use Major::{Fixed, NotOfOthers, Of};
    use Minor::{Any, Is, Named};
    const fn kind(name: &'static str, major: Major, minor: Minor) -> Kind {
        Kind { name, major, minor }
    }
    const fn misc(name: &'static str) -> Major {
        NotOfOthers {
            driver: MISC,
            misc: Some(name),
        }
    }
    const VERBS: Major = NotOfOthers {
        driver: "infiniband_verbs",
        misc: None,
    };
    [
        kind("nvidiactl", Fixed(NVIDIA_MAJOR), Is(nodes::CONTROL_MINOR)),
        kind(
            "nvidia-modeset",
            Fixed(NVIDIA_MAJOR),
            Is(nodes::MODESET_MINOR),
        ),
        kind("nvidia", Fixed(NVIDIA_MAJOR), Named),
        kind("nvidia-uvm", Of("nvidia-uvm"), Is(0)),
        kind("nvidia-uvm-tools", Of("nvidia-uvm"), Is(1)),
        kind("nvidia-caps/nvidia-cap", Of("nvidia-caps"), Named),
        kind(
            "nvidia-caps-imex-channels/channel",
            Of("nvidia-caps-imex-channels"),
            Named,
        ),
        kind("nvidia-fs", Of("nvidia-fs"), Named),
        kind("nvidia-nvswitchctl", Of("nvidia-nvswitch"), Is(255)),
        kind("nvidia-nvswitch", Of("nvidia-nvswitch"), Named),
        kind("nvidia-nvlink", Of("nvidia-nvlink"), Is(0)),
        kind("gdrdrv", Of("gdrdrv"), Is(0)),
        kind("dri/card", Fixed(DRM_MAJOR), Named),
        kind("dri/renderD", Fixed(DRM_MAJOR), Named),
        kind("infiniband/uverbs", VERBS, Any),
        kind("infiniband/rdma_cm", misc("rdma_cm"), Any),
        kind("dxg", misc("dxg"), Any),
    ]
};

/// The character drivers that the kernel lists.
#[derive(Clone, Debug, Default)]
pub struct CharDrivers {
    devices: Vec<u8>,
    misc: Vec<u8>,
}

impl CharDrivers {
    /// Reads the kernel's lists.
    pub fn discover() -> Self {
        let read = |path: &str| {
            read_file::read_path(path).unwrap_or_else(|errno| {
                if errno != Errno::ENOENT {
                    log::warn!("skipping {path}: {}", errno_text(errno));
                }
                Vec::new()
            })
        };
        Self::of(read(majors::PATH), read(MISC_PATH))
    }

    /// Takes the texts of /proc/devices and /proc/misc.
    pub fn of(devices: impl Into<Vec<u8>>, misc: impl Into<Vec<u8>>) -> Self {
        Self {
            devices: devices.into(),
            misc: misc.into(),
        }
    }

    /// Checks the number of a character device by its path; the part up to `/dev/` does not matter. A device whose name
    /// is of no known kind passes.
    ///
    /// # Errors
    /// The reason why it is another device, for a sentence that begins with the path.
    pub fn check(&self, path: &str, number: DeviceNumber) -> Result<(), String> {
        let Some((kind, named)) = kind_of(path) else {
            return Ok(());
        };
        self.check_major(kind, number)
            .map_err(|driver| format!("is {number}, and {driver}"))?;
        let minor = match kind.minor {
            Minor::Is(minor) => Some(minor),
            Minor::Named => named,
            Minor::Any => None,
        };
        match minor {
            Some(minor) if minor != number.minor => Err(format!(
                "is {number}, and its minor number should be {minor}"
            )),
            _ => Ok(()),
        }
    }

    fn check_major(&self, kind: &Kind, number: DeviceNumber) -> Result<(), String> {
        let major = number.major;
        match &kind.major {
            Major::Fixed(expected) if major == *expected => Ok(()),
            Major::Fixed(expected) => Err(format!("its major number should be {expected}")),
            Major::Of(driver) => {
                let known: Vec<u32> = majors::majors(&self.devices, driver).collect();
                if known.contains(&major) {
                    return Ok(());
                }
                let known: Vec<String> = known.iter().map(u32::to_string).collect();
                Err(match known.is_empty() {
                    true => format!("{} has no {driver}: is its module loaded?", majors::PATH),
                    false => format!("the driver's major number is {}", known.join(" or ")),
                })
            }
            Major::NotOfOthers { driver, misc } => {
                let owners: Vec<&str> = majors::drivers(&self.devices, major).collect();
                if !owners.is_empty() && !owners.contains(driver) {
                    return Err(format!("the major number is that of {}", owners.join(", ")));
                }
                let owner = misc_driver(&self.misc, number.minor);
                match (misc, owner) {
                    (Some(misc), Some(owner)) if owners.contains(driver) && owner != *misc => {
                        Err(format!("the number is that of {owner}"))
                    }
                    _ => Ok(()),
                }
            }
        }
    }
}

/// Returns true if the name of a device says its driver.
pub fn is_known(path: &str) -> bool {
    kind_of(path).is_some()
}

/// Returns the kind of a device, and the number in its name.
fn kind_of(path: &str) -> Option<(&'static Kind, Option<u32>)> {
    const DEV: &str = "/dev/";
    let name = path.rfind(DEV).map(|at| &path[at + DEV.len()..])?;
    KINDS.iter().find_map(|kind| {
        let rest = name.strip_prefix(kind.name)?;
        let is_number = !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit());
        match kind.minor {
            Minor::Is(_) => rest.is_empty().then_some((kind, None)),
            Minor::Named if is_number => Some((kind, Some(rest.parse().unwrap_or(u32::MAX)))),
            Minor::Named => None,
            Minor::Any => (rest.is_empty() || is_number).then_some((kind, None)),
        }
    })
}

/// Returns the driver of a minor number in the text of /proc/misc, with lines `minor name`.
fn misc_driver(misc: &[u8], minor: u32) -> Option<&str> {
    let mut lines = misc.split(|byte| *byte == b'\n');
    lines.find_map(|line| {
        let (number, name) = std::str::from_utf8(line)
            .ok()?
            .trim_start()
            .split_once(' ')?;
        (number.parse() == Ok(minor)).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICES: &str = "Character devices:\n  1 mem\n 10 misc\n195 nvidia\n231 infiniband_verbs\n\
        234 nvidia-caps\n235 nvidia-caps-imex-channels\n236 nvidia-nvswitch\n240 nvidia-uvm\n241 nvidia-fs\n\
        242 infiniband_verbs\n\nBlock devices:\n  8 sd\n511 gdrdrv\n";
    const MISC_DEVICES: &str = " 58 rdma_cm\n232 kvm\n";

    fn check(name: &str, major: u32, minor: u32) -> Result<(), String> {
        let number = DeviceNumber { major, minor };
        CharDrivers::of(DEVICES, MISC_DEVICES).check(&format!("/root/dev/{name}"), number)
    }

    #[test]
    fn devices_of_their_driver_pass() {
        for (name, major, minor) in [
            ("nvidiactl", 195, 255),
            ("nvidia-modeset", 195, 254),
            ("nvidia0", 195, 0),
            ("nvidia12", 195, 12),
            ("nvidia-uvm", 240, 0),
            ("nvidia-uvm-tools", 240, 1),
            ("nvidia-caps/nvidia-cap148", 234, 148),
            ("nvidia-caps-imex-channels/channel2047", 235, 2047),
            ("nvidia-fs3", 241, 3),
            ("nvidia-nvswitchctl", 236, 255),
            ("nvidia-nvswitch1", 236, 1),
            ("dri/card1", 226, 1),
            ("dri/renderD129", 226, 129),
            ("infiniband/uverbs0", 231, 192),
            ("infiniband/uverbs40", 242, 8),
            // Nobody has this major number: there is nothing behind the node.
            ("infiniband/uverbs0", 500, 0),
            ("infiniband/rdma_cm", 10, 58),
            ("dxg", 10, 125),
            // Of no known kind.
            ("nvmap", 1, 1),
            ("nvhost-gpu", 195, 7),
        ] {
            assert_eq!(check(name, major, minor), Ok(()), "{name} {major}:{minor}");
        }
    }

    #[test]
    fn other_devices_are_refused_with_the_reason() {
        for (name, major, minor, reason) in [
            (
                "nvidia0",
                195,
                1,
                "is 195:1, and its minor number should be 0",
            ),
            (
                "nvidia0",
                1,
                0,
                "is 1:0, and its major number should be 195",
            ),
            (
                "nvidiactl",
                195,
                0,
                "is 195:0, and its minor number should be 255",
            ),
            (
                "nvidia99999999999",
                195,
                0,
                "is 195:0, and its minor number should be 4294967295",
            ),
            (
                "nvidia-uvm",
                195,
                0,
                "is 195:0, and the driver's major number is 240",
            ),
            (
                "nvidia-uvm",
                240,
                1,
                "is 240:1, and its minor number should be 0",
            ),
            (
                "nvidia-caps/nvidia-cap1",
                234,
                2,
                "is 234:2, and its minor number should be 1",
            ),
            (
                "nvidia-nvlink",
                240,
                0,
                "is 240:0, and /proc/devices has no nvidia-nvlink: is its module loaded?",
            ),
            // A block device's driver has the name.
            (
                "gdrdrv",
                511,
                0,
                "is 511:0, and /proc/devices has no gdrdrv: is its module loaded?",
            ),
            (
                "dri/card1",
                226,
                0,
                "is 226:0, and its minor number should be 1",
            ),
            (
                "dri/renderD128",
                195,
                128,
                "is 195:128, and its major number should be 226",
            ),
            (
                "infiniband/uverbs9",
                195,
                1,
                "is 195:1, and the major number is that of nvidia",
            ),
            (
                "infiniband/rdma_cm",
                10,
                232,
                "is 10:232, and the number is that of kvm",
            ),
            ("dxg", 1, 1, "is 1:1, and the major number is that of mem"),
        ] {
            assert_eq!(
                check(name, major, minor),
                Err(reason.to_owned()),
                "{name} {major}:{minor}"
            );
        }
    }
}
