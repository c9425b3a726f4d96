//! Loads the kernel's unified memory driver with NVIDIA's own program.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::failure::{Failure, Result};

/// Fixed directories: the caller's search path must not select a program that may be setuid.
const PLACES: [&str; 4] = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"];

/// Loads the unified memory driver and creates its first node.
///
/// # Errors
/// `Could not load UVM kernel module. Is nvidia-modprobe installed?`
pub fn load_unified_memory() -> Result<()> {
    let failed = |why: String| {
        Err(
            Failure::new("Could not load UVM kernel module. Is nvidia-modprobe installed?")
                .hint(why),
        )
    };
    let found = PLACES
        .map(|place| Path::new(place).join("nvidia-modprobe"))
        .into_iter()
        .find(|path| path.exists());
    let Some(program) = found else {
        return failed(format!("there is none in {}", PLACES.join(", ")));
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
