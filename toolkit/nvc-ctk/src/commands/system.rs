//! Creates device nodes, and links to them by number.

pub(super) mod links;
pub(super) mod nodes;

use std::time::Duration;

use libnvc::host::major_of;
use libnvc::{Error, ErrorKind, Result};

use crate::ask::ask_within;

/// The kernel modules, in dependency order.
const MODULES: [&str; 3] = ["nvidia", "nvidia-uvm", "nvidia-modeset"];

/// How long a module may take to find its devices.
const TIMEOUT: Duration = Duration::from_secs(120);

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
        ask_within(words[0], &words[1..], TIMEOUT)?;
    }
    Ok(())
}
