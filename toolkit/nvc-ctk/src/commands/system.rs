//! Creates device nodes, and links to them by number.

pub(super) mod links;
pub(super) mod nodes;

use std::process::Command;

use libnvc::host::major_of;
use libnvc::{Error, ErrorKind, Result};
use nvc_hostfile::system;

/// The kernel modules, in dependency order.
const MODULES: [&str; 3] = ["nvidia", "nvidia-uvm", "nvidia-modeset"];

/// Control nodes: name, the driver that has the major number, minor number.
const CONTROL: [(&str, &str, u32); 4] = [
    ("nvidiactl", "nvidia", 255),
    ("nvidia-modeset", "nvidia", 254),
    ("nvidia-uvm", "nvidia-uvm", 0),
    ("nvidia-uvm-tools", "nvidia-uvm", 1),
];

/// Returns the major number of a loaded driver.
fn major(driver: &str) -> Result<u32> {
    major_of(driver)?.ok_or_else(|| {
        let text = format!("no {driver} in /proc/devices");
        Error::new(ErrorKind::NotFound, text)
            .hint("the kernel module is not loaded; try --load-kernel-modules")
    })
}

/// Loads the modules, chrooted into the driver root if it is not `/`.
fn load_modules(root: &str, dry_run: bool) -> Result<()> {
    for module in MODULES {
        let mut words = vec!["/sbin/modprobe", module];
        if !matches!(root, "" | "/") {
            words.splice(0..0, ["chroot", root]);
        }
        if dry_run {
            log::info!("Running: {}", words.join(" "));
            continue;
        }
        let output = Command::new(words[0]).args(&words[1..]).output();
        let output = output.map_err(|error| system("execution failed", words[0], &error))?;
        if !output.status.success() {
            let reason = String::from_utf8_lossy(&output.stderr);
            let text = format!("{}: {}: {}", words.join(" "), output.status, reason.trim());
            return Err(Error::new(ErrorKind::System, text));
        }
    }
    Ok(())
}
