//! Finds the firmware files of the GPU system processors (GSP).

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use log::{info, warn};
use nix::dir::Dir;
use nix::errno::Errno;
use nix::sys::stat::SFlag;

use crate::error::errno_text;
use crate::host::{DriverFile, DriverRoot, FileClass};
use crate::inroot;
use crate::path::HostPath;

/// Returns the firmware of a driver version, sorted by name; empty if the directory is missing or unreadable.
pub(crate) fn find(root: &DriverRoot, driver_version: &str) -> Vec<DriverFile> {
    let directory = HostPath::new("/lib/firmware/nvidia").join(driver_version);
    match names(root, &directory) {
        Ok(names) => {
            let paths = names
                .iter()
                .map(|name| directory.join(OsStr::from_bytes(name)));
            let found: Vec<_> = paths.filter(|path| is_file(root, path)).collect();
            if found.is_empty() {
                info!("missing firmware {directory}/gsp*.bin");
            }
            let file = |path| DriverFile::new(path, FileClass::Firmware);
            found.into_iter().map(file).collect()
        }
        Err(Errno::ENOENT) => {
            info!("missing firmware {directory}/gsp*.bin");
            Vec::new()
        }
        Err(errno) => {
            let directory = root.join(&directory);
            warn!(
                "skipping firmware in {}: {}",
                directory.display(),
                errno_text(errno)
            );
            Vec::new()
        }
    }
}

/// Returns true if a path leads to a regular file; warns if not.
fn is_file(root: &DriverRoot, path: &HostPath) -> bool {
    let stat = root.resolve(path).and_then(|fd| inroot::stat(fd.as_fd()));
    let why = match stat {
        Ok(stat) if inroot::kind(&stat) == SFlag::S_IFREG => return true,
        Ok(_) => "it is not a regular file".to_owned(),
        Err(errno) => errno_text(errno),
    };
    warn!("skipping {}: {why}", root.join(path).display());
    false
}

/// Returns true for the names of firmware that containers get: of the GSP, and microcode (since R615).
pub(super) fn is_firmware(name: &[u8]) -> bool {
    (name.starts_with(b"gsp") || name.starts_with(b"ucodes")) && name.ends_with(b".bin")
}

fn names(root: &DriverRoot, directory: &HostPath) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::from_fd(OwnedFd::from(root.open_file(directory)?))?.iter() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if is_firmware(name) {
            names.push(name.to_vec());
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lists_gsp_files_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let firmware = dir.path().join("usr/lib/firmware/nvidia/550.1");
        std::fs::create_dir_all(&firmware).unwrap();
        std::os::unix::fs::symlink("usr/lib", dir.path().join("lib")).unwrap();
        for name in [
            "ucodes_x.bin",
            "ucodes.txt",
            "gsp_tu10x.bin",
            "gsp_ga10x.bin",
            "other.bin",
            "gsp.txt",
        ] {
            std::fs::write(firmware.join(name), "").unwrap();
        }
        std::fs::create_dir(firmware.join("gsp_directory.bin")).unwrap();
        std::os::unix::fs::symlink("/nowhere", firmware.join("gsp_dangling.bin")).unwrap();
        let root = DriverRoot::open(dir.path()).unwrap();
        let found = find(&root, "550.1");
        let file = |name: &str| {
            let path = HostPath::new(format!("/lib/firmware/nvidia/550.1/{name}"));
            DriverFile::new(path, FileClass::Firmware)
        };
        let expected = ["gsp_ga10x.bin", "gsp_tu10x.bin", "ucodes_x.bin"];
        assert_eq!(found, expected.map(file));
        assert!(find(&root, "535.9").is_empty());
        assert!(find(&root, "550.1/gsp.txt").is_empty());
    }
}
