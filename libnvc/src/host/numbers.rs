//! Checks that a device node has the device number that its name implies.
//!
//! A container with the host's /dev and the right to make nodes can replace any node there, by another driver's or by
//! another GPU's. So a name alone says nothing. A node counts if its major number is that of its driver in
//! /proc/devices, and its minor number is the one in its name: the driver itself names its devices so. It writes a number
//! in one way only, so nvidia00 is no second name of nvidia0. NVML, the kernel's list of PCI devices, or the driver's
//! capability files decide which names belong to a chosen GPU.
//!
//! Some devices are exempt from what they cannot meet. They are character devices in any case:
//!
//! | exempt | from | because |
//! | --- | --- | --- |
//! | /dev/infiniband/uverbs* | a minor number that follows from the name | the driver counts devices as it finds them, from two major numbers |
//! | /dev/infiniband/rdma_cm, /dev/dxg | likewise | misc devices, whose minor numbers are dynamic |
//! | other names, e.g. in a Jetson's lists | all numbers | the drivers of a SoC register dynamic numbers under many names, which differ by release |
//!
//! The first two have a class in sysfs, which says their numbers. On a machine without that class they must have a
//! number that the kernel reserves for the driver, or that is the driver's alone: /dev/infiniband/umad* share a major
//! number with uverbs*. Where we look for devices ourselves, other names must have the major number of a driver whose
//! name begins with `nvidia`.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::{CONTROL_MINOR, DeviceNumber, MODESET_MINOR, NVIDIA_MAJOR, majors};
use crate::error::{Error, ErrorKind, Result, errno_text};
use crate::read_file;

/// The kernel's list of devices that share the major number of `misc`.
const MISC_PATH: &str = "/proc/misc";

/// The kernel's description of devices by class.
const SYSFS: &str = "/sys";

/// Devices of drivers that share major number 10.
const MISC: Class = Class {
    name: "misc",
    major: 10,
    minors: 0..=u32::MAX,
};

/// Devices for programs' use of InfiniBand. Only the first 32 have reserved numbers.
const VERBS: Class = Class {
    name: "infiniband_verbs",
    major: 231,
    minors: 192..=223,
};

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
    /// That of the class's device with this name: for the exempt ones.
    In(&'static Class),
}

/// Devices that the kernel lists together, and their driver.
struct Class {
    /// Its name in sysfs, and the driver's in /proc/devices.
    name: &'static str,
    /// The major number that the kernel reserves, and the minor numbers.
    major: u32,
    minors: RangeInclusive<u32>,
}

/// The minor number that a kind must have.
enum Minor {
    Is(u32),
    /// The number at the end of its name.
    Named,
    Any,
}

const KINDS: [Kind; 17] = {
    use Major::{Fixed, In, Of};
    use Minor::{Any, Is, Named};
    const fn kind(name: &'static str, major: Major, minor: Minor) -> Kind {
        Kind { name, major, minor }
    }
    [
        kind("nvidiactl", Fixed(NVIDIA_MAJOR), Is(CONTROL_MINOR)),
        kind("nvidia-modeset", Fixed(NVIDIA_MAJOR), Is(MODESET_MINOR)),
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
        kind("infiniband/uverbs", In(&VERBS), Any),
        kind("infiniband/rdma_cm", In(&MISC), Any),
        kind("dxg", In(&MISC), Any),
    ]
};

/// The character drivers that the kernel lists.
#[derive(Clone, Debug, Default)]
pub struct CharDrivers {
    devices: Vec<u8>,
    misc: Vec<u8>,
    /// Where sysfs is; None to ignore it.
    sysfs: Option<PathBuf>,
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
        Self::of(read(majors::PATH), read(MISC_PATH)).with_sysfs(SYSFS)
    }

    /// Takes the texts of /proc/devices and /proc/misc.
    pub fn of(devices: impl Into<Vec<u8>>, misc: impl Into<Vec<u8>>) -> Self {
        Self {
            devices: devices.into(),
            misc: misc.into(),
            sysfs: None,
        }
    }

    /// Takes the numbers of classes of devices from this sysfs.
    #[must_use]
    pub(crate) fn with_sysfs(self, sysfs: impl Into<PathBuf>) -> Self {
        let sysfs = Some(sysfs.into());
        Self { sysfs, ..self }
    }

    /// Returns true if a major number is that of a driver whose name begins with `nvidia`, and of no other driver.
    pub fn is_nvidias(&self, number: DeviceNumber) -> bool {
        let mut owners = majors::drivers(&self.devices, number.major).peekable();
        owners.peek().is_some() && owners.all(|owner| owner.starts_with("nvidia"))
    }

    /// Checks the number of a character device by its path; the part up to `/dev/` does not matter. A device whose name
    /// is of no known kind passes.
    ///
    /// # Errors
    /// It is another device.
    pub fn check(&self, path: &str, number: DeviceNumber) -> Result<()> {
        match self.difference(path, number) {
            None => Ok(()),
            Some(is) => Err(Error::new(ErrorKind::Malformed, format!("{path} {is}"))),
        }
    }

    /// Returns what a device is instead of what its name says, for a sentence that begins with the path; None if
    /// [`check`](Self::check) succeeds.
    pub(super) fn difference(&self, path: &str, number: DeviceNumber) -> Option<String> {
        let (kind, rest) = kind_of(path)?;
        let named = canonical(rest);
        if named.is_none() && !rest.is_empty() {
            return Some(format!(
                "is {number}, and no driver writes the number as {rest}"
            ));
        }
        let device = path.rsplit('/').next().unwrap_or_default();
        if let Some(driver) = self.wrong_major(kind, device, number) {
            return Some(format!("is {number}, and {driver}"));
        }
        let minor = match kind.minor {
            Minor::Is(minor) => Some(minor),
            Minor::Named => named,
            Minor::Any => None,
        };
        match minor {
            Some(minor) if minor != number.minor => Some(format!(
                "is {number}, and its minor number should be {minor}"
            )),
            _ => None,
        }
    }

    /// Returns what is wrong with a major number, or with the whole number of a class's device; None if it is right.
    fn wrong_major(&self, kind: &Kind, device: &str, number: DeviceNumber) -> Option<String> {
        let major = number.major;
        match &kind.major {
            Major::Fixed(expected) if major == *expected => None,
            Major::Fixed(expected) => Some(format!("its major number should be {expected}")),
            Major::Of(driver) => {
                let known: Vec<u32> = majors::majors(&self.devices, driver).collect();
                if known.contains(&major) {
                    return None;
                }
                let known: Vec<String> = known.iter().map(u32::to_string).collect();
                Some(if known.is_empty() {
                    format!("{} has no {driver}: is its module loaded?", majors::PATH)
                } else {
                    format!("the driver's major number is {}", known.join(" or "))
                })
            }
            Major::In(class) => match self.registered(class, device) {
                Some(Some(same)) if same == number => None,
                Some(Some(other)) => Some(format!("the driver's number is {other}")),
                Some(None) => Some(format!(
                    "class {} has no {device}: is its module loaded?",
                    class.name
                )),
                None => self.wrong_in_class(class, device, number),
            },
        }
    }

    /// Returns the number of a class's device in sysfs; None if sysfs does not have the class.
    fn registered(&self, class: &Class, device: &str) -> Option<Option<DeviceNumber>> {
        let directory = self.sysfs.as_ref()?.join("class").join(class.name);
        directory
            .is_dir()
            .then(|| number_in(&directory.join(device).join("dev")))
    }

    /// Returns what is wrong with the number of a class's device according to /proc; None if it is right.
    fn wrong_in_class(&self, class: &Class, device: &str, number: DeviceNumber) -> Option<String> {
        let owners: Vec<&str> = majors::drivers(&self.devices, number.major).collect();
        let is_reserved = number.major == class.major;
        let fits = if is_reserved {
            owners.is_empty() || owners.contains(&class.name)
        } else {
            !owners.is_empty() && owners.iter().all(|owner| *owner == class.name)
        };
        if !fits {
            return Some(if owners.is_empty() {
                "no driver has the major number".into()
            } else {
                format!("the major number is that of {}", owners.join(", "))
            });
        }
        if is_reserved && !class.minors.contains(&number.minor) {
            let (first, last) = class.minors.clone().into_inner();
            return Some(format!("its minor number should be {first} to {last}"));
        }
        if class.name != MISC.name {
            return None;
        }
        misc_driver(&self.misc, number.minor)
            .filter(|owner| *owner != device)
            .map(|owner| format!("the number is that of {owner}"))
    }
}

/// Returns the device number in a file of sysfs.
fn number_in(path: &Path) -> Option<DeviceNumber> {
    let text = read_file::read_path(path).ok()?;
    let (major, minor) = std::str::from_utf8(&text)
        .ok()?
        .trim_end()
        .split_once(':')?;
    Some(DeviceNumber {
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
    })
}

/// Returns true if the name of a device says its driver.
pub fn is_known(path: &str) -> bool {
    kind_of(path).is_some()
}

/// Parses a number in the name of a device: in decimal, without a sign or leading zeros.
pub fn canonical(digits: &str) -> Option<u32> {
    let number: u32 = digits.parse().ok()?;
    (number.to_string() == digits).then_some(number)
}

/// Returns the kind of a device, and the digits after that in its name.
fn kind_of(path: &str) -> Option<(&'static Kind, &str)> {
    const DEV: &str = "/dev/";
    let name = path.rfind(DEV).map(|at| &path[at + DEV.len()..])?;
    KINDS.iter().find_map(|kind| {
        let rest = name.strip_prefix(kind.name)?;
        let is_number = !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit());
        let is_kind = match kind.minor {
            Minor::Is(_) => rest.is_empty(),
            Minor::Named => is_number,
            Minor::Any => rest.is_empty() || is_number,
        };
        is_kind.then_some((kind, rest))
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
#[allow(clippy::unwrap_used)]
mod tests;
