//! Creates what a profile has beside GPUs: the kernel's list of DRM nodes by PCI address, links to them, and odd nodes.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;

use nix::sys::stat::{Mode, SFlag, makedev, mknod};

use super::root::Driver;
use crate::files;
use crate::profile::hardware::{Display, Node};

/// Major number of DRM nodes.
pub(super) const DRM: u32 = 226;

/// Creates the kernel's list of PCI devices with their DRM nodes, and udev's links to the nodes by address.
pub(super) fn sysfs(driver: &Driver) -> io::Result<()> {
    let profile = &driver.profile;
    for display in &profile.hardware.displays {
        let Some(gpu) = profile.gpus.get(display.gpu) else {
            continue;
        };
        let device = driver.path(format!("/sys/bus/pci/devices/{}", gpu.bus_id));
        let links = driver.path("/dev/dri/by-path");
        files::directory(&links)?;
        for ((name, minor), word) in Display::nodes(display).into_iter().zip(["card", "render"]) {
            let file = device.join("drm").join(&name).join("dev");
            files::file(&file, format!("{DRM}:{minor}\n"), 0o444)?;
            let link = format!("pci-{}-{word}", gpu.bus_id);
            symlink(format!("../{name}"), links.join(link))?;
        }
    }
    Ok(())
}

impl Driver {
    /// Returns the major number of a driver in /proc/devices, or the number that the text is.
    pub fn major(&self, driver: &str) -> Option<u32> {
        Some(match driver {
            "nvidia" => 195,
            "nvidia-caps" => self.majors.caps,
            "nvidia-caps-imex-channels" => self.majors.imex,
            "nvidia-uvm" => self.majors.uvm,
            other => match self.modules.iter().find(|(name, _)| name == other) {
                Some((_, major)) => *major,
                None => other.parse().ok()?,
            },
        })
    }

    /// Creates a node in the place of whatever has its path.
    ///
    /// # Errors
    /// The driver is unknown, or the system refuses.
    pub fn replace(&self, node: &Node) -> io::Result<()> {
        let path = self.path(&node.path);
        let unknown = || io::Error::other(format!("no driver {}", node.major));
        let major = self.major(&node.major).ok_or_else(unknown)?;
        if let Some(parent) = path.parent() {
            files::directory(parent)?;
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let kind = match node.kind {
            'b' => SFlag::S_IFBLK,
            'p' => SFlag::S_IFIFO,
            'f' => SFlag::S_IFREG,
            _ => SFlag::S_IFCHR,
        };
        let number = makedev(major.into(), node.minor.into());
        mknod(&path, kind, Mode::from_bits_truncate(0o666), number)?;
        files::mode(&path, 0o666)
    }
}
