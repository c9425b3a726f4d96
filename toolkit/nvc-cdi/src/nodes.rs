//! Describes device nodes of the host, and checks that they are the devices that their names say.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use libnvc::host::{CharDrivers, DeviceNumber, numbers};
use libnvc::{Error, ErrorKind, Result};
use nix::sys::stat::{major, minor};
use nvc_hostfile::cause;
use nvc_oci::paths::clean;

use crate::DeviceNode;

/// A device node of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostNode {
    /// `b`, `c` or `p`.
    pub kind: char,
    /// Major number.
    pub major: u64,
    /// Minor number.
    pub minor: u64,
    /// Permission bits.
    pub mode: u32,
}

impl HostNode {
    /// Describes a file; None if it is no device node.
    pub fn of(facts: &fs::Metadata) -> Option<Self> {
        let of = facts.file_type();
        let kind = match () {
            () if of.is_char_device() => 'c',
            () if of.is_block_device() => 'b',
            () if of.is_fifo() => 'p',
            () => return None,
        };
        let number = facts.rdev();
        Some(Self {
            kind,
            major: major(number),
            minor: minor(number),
            mode: facts.mode() & 0o777,
        })
    }

    /// Returns the device's number.
    pub fn number(self) -> DeviceNumber {
        // The kernel's numbers are smaller.
        let [major, minor] =
            [self.major, self.minor].map(|number| u32::try_from(number).unwrap_or(u32::MAX));
        DeviceNumber { major, minor }
    }

    /// Checks that the node is the device that a name says.
    ///
    /// # Errors
    /// It is another device.
    pub fn check_name(self, name: &str, drivers: &CharDrivers) -> Result<()> {
        if self.kind != 'c' {
            let text = format!("{name} is not a character device");
            return Err(Error::new(ErrorKind::Malformed, text));
        }
        drivers.check(&clean(name), self.number())
    }
}

/// Describes the node at a path; a symlink is an error.
///
/// # Errors
/// There is no node.
pub fn look_up(path: &Path) -> Result<HostNode> {
    let facts = fs::symlink_metadata(path).map_err(|error| {
        let kind = match error.kind() {
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            _ => ErrorKind::System,
        };
        let text = format!("failed to stat {}: {}", path.display(), cause::text(&error));
        Error::new(kind, text)
    })?;
    HostNode::of(&facts).ok_or_else(|| {
        let text = format!("{} is not a device node", path.display());
        Error::new(ErrorKind::Malformed, text)
    })
}

/// Checks that a node of a specification is the device that its name on the host says, or else its name in the container.
/// Other names can be those of any device.
///
/// # Errors
/// It is another device.
pub fn check(node: &DeviceNode, found: HostNode, drivers: &CharDrivers) -> Result<()> {
    known_name(node).map_or(Ok(()), |name| found.check_name(&name, drivers))
}

/// Returns the cleaned name of a node that says its driver: that on the host, or else that in the container. None if
/// both are of no known kind.
pub fn known_name(node: &DeviceNode) -> Option<String> {
    let names = [&node.host_path, &node.path];
    let mut names = names.into_iter().map(|name| clean(name));
    names.find(|name| numbers::is_known(name))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_described() {
        let null = look_up(Path::new("/dev/null")).unwrap();
        assert_eq!((null.kind, null.major, null.minor), ('c', 1, 3));
        assert!(look_up(Path::new("/etc")).is_err());
        let missing = look_up(Path::new("/dev/no-such")).unwrap_err();
        assert_eq!(
            (missing.kind(), missing.message().as_str()),
            (
                ErrorKind::NotFound,
                "failed to stat /dev/no-such: no such file or directory"
            )
        );
    }

    #[test]
    fn a_name_is_that_of_the_cleaned_path() {
        let drivers = CharDrivers::of("Character devices:\n195 nvidia\n", "");
        let found = |major| HostNode {
            kind: 'c',
            major,
            minor: 0,
            mode: 0o666,
        };
        for path in [
            "/dev/nvidia0",
            "/dev//nvidia0",
            "/dev/./nvidia0",
            "/dev/x/../nvidia0",
            "/dev/nvidia0/",
        ] {
            for host_path in [path, "/elsewhere/thing"] {
                let node = DeviceNode {
                    path: path.into(),
                    host_path: host_path.into(),
                    ..DeviceNode::default()
                };
                assert!(check(&node, found(195), &drivers).is_ok(), "{path}");
                assert!(check(&node, found(1), &drivers).is_err(), "{path}");
            }
        }
    }
}
