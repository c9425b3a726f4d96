//! Loads the kernel's unified memory driver with NVIDIA's own program.

use std::path::Path;
use std::process::{Command, Stdio};

use libnvc::host::{CharDrivers, DeviceRole};
use libnvc::{Error, ErrorKind, Result};

use crate::device_nodes::is_there;

/// Fixed directories: the caller's search path must not select a program that may be setuid.
const PLACES: [&str; 4] = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"];

/// Returns true if the unified memory driver is loaded and has its nodes, so that NVIDIA's program would do nothing.
pub fn is_loaded() -> bool {
    let drivers = CharDrivers::discover();
    let nodes = [DeviceRole::Uvm, DeviceRole::UvmTools].map(DeviceRole::path);
    nodes
        .iter()
        .all(|path| matches!(is_there(path, &drivers), Ok(true)))
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
