//! Has the kernel's unified memory driver loaded, with NVIDIA's own program for it.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::failure::{Failure, Result};

/// Where the program can be. The search path of a caller has no say in what may be a setuid program.
const PLACES: [&str; 4] = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"];

/// Loads the unified memory driver and makes its first node.
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
