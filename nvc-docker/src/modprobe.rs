//! Loads the kernel's unified memory driver with NVIDIA's own program.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::process::{Command, Stdio};

use libnvc::host::major_of;
use libnvc::{Error, ErrorKind, Result};
use nix::sys::stat::makedev;

/// Fixed directories: the caller's search path must not select a program that may be setuid.
const PLACES: [&str; 4] = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"];

/// The nodes of the unified memory driver, by minor number.
const NODES: [&str; 2] = ["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"];

/// Returns true if the unified memory driver is loaded and has its nodes, so that NVIDIA's program would do nothing.
pub fn is_loaded() -> bool {
    let Ok(Some(major)) = major_of("nvidia-uvm") else {
        return false;
    };
    NODES.iter().zip(0..).all(|(path, minor)| {
        std::fs::symlink_metadata(path).is_ok_and(|node| {
            node.file_type().is_char_device() && node.rdev() == makedev(major.into(), minor)
        })
    })
}

/// Loads the unified memory driver and creates its nodes, unless that has been done.
///
/// # Errors
/// `Could not load UVM kernel module. Is nvidia-modprobe installed?`
pub fn load_unified_memory() -> Result<()> {
    if is_loaded() {
        return Ok(());
    }
    let failed = |why: String| {
        Err(Error::new(
            ErrorKind::DriverUnavailable,
            "Could not load UVM kernel module. Is nvidia-modprobe installed?",
        )
        .hint(why))
    };
    let found = PLACES
        .map(|place| Path::new(place).join("nvidia-modprobe"))
        .into_iter()
        .find(|path| path.exists());
    let Some(program) = found else {
        return failed(format!("nvidia-modprobe is not in {}", PLACES.join(", ")));
    };
    let status = Command::new(&program)
        .args(["-u", "-c=0"])
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => failed(format!("{}: {status}", program.display())),
        Err(error) => failed(format!("{}: {error}", program.display())),
    }
}
