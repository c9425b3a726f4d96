//! Names the device nodes for docker's command line, if they are the driver's devices.
//!
//! Docker takes a path and gives the container whatever is there. A container with the host's /dev and the right to make
//! nodes can put the host's disk or another GPU there, so each node is looked up before it is named. Docker looks it up
//! again, later: this check finds what is wrong, and does not prevent a change in between.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use libnvc::host::DeviceRole;
use libnvc::host::{CharDrivers, DeviceNumber};
use libnvc::{Error, ErrorKind, Result};

/// Returns the nodes that all GPUs share, and those of the GPUs with these minor numbers.
///
/// # Errors
/// `missing device node: …`, `invalid device node: …`.
pub(crate) fn of_gpus(minors: impl IntoIterator<Item = u32>) -> Result<Vec<String>> {
    let drivers = CharDrivers::discover();
    let mut paths = Vec::new();
    for path in [DeviceRole::Control.path(), DeviceRole::Uvm.path()] {
        paths.push(required(path.to_owned(), &drivers)?);
    }
    let debuggers = DeviceRole::UvmTools.path();
    if is_there(debuggers, &drivers)? {
        paths.push(debuggers.to_owned());
    }
    for minor in minors {
        paths.push(required(format!("/dev/nvidia{minor}"), &drivers)?);
    }
    Ok(paths)
}

fn required(path: String, drivers: &CharDrivers) -> Result<String> {
    if is_there(&path, drivers)? {
        Ok(path)
    } else {
        Err(
            Error::new(ErrorKind::NotFound, format!("missing device node: {path}"))
                .hint("load the driver, or run nvidia-modprobe -u -c=0"),
        )
    }
}

/// Returns false if there is no such node. Links are followed, because docker follows them.
pub(crate) fn is_there(path: &str, drivers: &CharDrivers) -> Result<bool> {
    let facts = match Path::new(path).metadata() {
        Ok(facts) => facts,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(Error::new(ErrorKind::System, format!("{path}: {error}"))),
    };
    let (kind, number) = (facts.file_type(), DeviceNumber::from_rdev(facts.rdev()));
    let malformed = |text| Error::new(ErrorKind::Malformed, text);
    let checked = match () {
        () if kind.is_char_device() => drivers.check(path, number),
        () if kind.is_block_device() => Err(malformed(format!(
            "{path} is the block device {number}, and should be a character device"
        ))),
        () => Err(malformed(format!("{path} is not a character device"))),
    };
    checked.map(|()| true).map_err(|error| {
        error
            .context("invalid device node")
            .hint("remove it and load the driver again")
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use nix::sys::stat::{Mode, SFlag, makedev, mknod};

    use super::*;

    /// A container with the host's /dev may have replaced any node.
    #[test]
    #[ignore = "needs root"]
    fn only_the_drivers_devices_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let dev = dir.path().join("dev");
        fs::create_dir(&dev).unwrap();
        for (name, kind, major, minor) in [
            ("nvidia0", SFlag::S_IFCHR, 195, 0),
            ("nvidia1", SFlag::S_IFBLK, 195, 1),
            ("nvidia2", SFlag::S_IFIFO, 0, 0),
            ("nvidia3", SFlag::S_IFCHR, 1, 1),
            ("nvidia4", SFlag::S_IFCHR, 195, 0),
            ("sda", SFlag::S_IFBLK, 8, 0),
        ] {
            let rw = Mode::from_bits_truncate(0o666);
            mknod(&dev.join(name), kind, rw, makedev(major, minor)).unwrap();
        }
        symlink("sda", dev.join("nvidia5")).unwrap();
        symlink("nvidia0", dev.join("nvidia6")).unwrap();
        fs::create_dir(dev.join("nvidia7")).unwrap();
        symlink("nowhere", dev.join("nvidia9")).unwrap();
        let drivers = CharDrivers::of("Character devices:\n  1 mem\n195 nvidia\n", "");
        let block =
            |number| format!("is the block device {number}, and should be a character device");
        let other = "is not a character device".to_owned();
        for (minor, expected) in [
            (0, Ok(true)),
            (1, Err(block("195:1"))),
            (2, Err(other.clone())),
            (3, Err("is 1:1, and its major number should be 195".into())),
            (4, Err("is 195:0, and its minor number should be 4".into())),
            (5, Err(block("8:0"))),
            (6, Err("is 195:0, and its minor number should be 6".into())),
            (7, Err(other)),
            (8, Ok(false)),
            (9, Ok(false)),
        ] {
            let path = dev.join(format!("nvidia{minor}")).display().to_string();
            let expected = expected.map_err(|why| format!("invalid device node: {path} {why}"));
            let found = is_there(&path, &drivers).map_err(|failure| failure.message());
            assert_eq!(found, expected);
        }
    }
}
