//! Looks up the driver's device nodes: those all GPUs share, and IMEX channels.

use std::os::fd::AsFd;

use log::{info, warn};
use nix::errno::Errno;
use nix::sys::stat::SFlag;

use crate::error::{Error, ErrorKind, Result, errno_text};
use crate::host::{DeviceNode, DeviceNumber, DriverRoot, NVIDIA_MAJOR};
use crate::inroot;
use crate::options::DriverOptions;
use crate::path::HostPath;

/// The control device; its number is fixed.
pub const CONTROL: &str = "/dev/nvidiactl";
/// Unified memory; its major number is dynamic.
pub const UVM: &str = "/dev/nvidia-uvm";
/// Unified memory for debuggers.
pub const UVM_TOOLS: &str = "/dev/nvidia-uvm-tools";
/// Mode setting for displays.
pub const MODESET: &str = "/dev/nvidia-modeset";
/// Directory of the IMEX channels.
pub const IMEX_DIRECTORY: &str = "/dev/nvidia-caps-imex-channels";
/// The only device of a WSL2 host.
const DXG: &str = "/dev/dxg";

pub(super) const CONTROL_MINOR: u32 = 255;
pub(super) const MODESET_MINOR: u32 = 254;

/// The devices that all GPUs share; those that are not there are left out.
pub fn find(root: &DriverRoot, options: DriverOptions) -> Vec<DeviceNode> {
    let control = DeviceNode {
        path: HostPath::new(CONTROL),
        number: DeviceNumber {
            major: NVIDIA_MAJOR,
            minor: CONTROL_MINOR,
        },
    };
    let others = [
        (DriverOptions::NO_UVM, UVM),
        (DriverOptions::NO_UVM, UVM_TOOLS),
        (DriverOptions::NO_MODESET, MODESET),
    ];
    let others = others.into_iter().filter(|(no, _)| !options.contains(*no));
    let others = others.filter_map(|(_, path)| optional(root, &HostPath::new(path)));
    [control].into_iter().chain(others).collect()
}

/// The device of a WSL2 host, which is the caller's whatever the driver root is.
///
/// # Errors
/// `stat failed: /dev/dxg: <cause>`.
pub fn find_dxg() -> Result<DeviceNode> {
    let stat = nix::sys::stat::stat(DXG).map_err(|errno| Error::file("stat failed", DXG, errno))?;
    Ok(DeviceNode {
        path: HostPath::new(DXG),
        number: DeviceNumber::from_rdev(stat.st_rdev),
    })
}

/// The node of an IMEX channel.
///
/// # Errors
/// `stat failed: <node>: <cause>`.
pub fn imex_channel(root: &DriverRoot, channel: u32) -> Result<DeviceNode> {
    let path = HostPath::new(format!("{IMEX_DIRECTORY}/channel{channel}"));
    lookup(root, &path).map_err(|errno| {
        Error::file("stat failed", root.join(&path), errno)
            .with_kind(ErrorKind::NotFound)
            .hint("create the node of the IMEX channel: nvidia-container-cli --load-kmods or nvidia-modprobe -i")
    })
}

fn optional(root: &DriverRoot, path: &HostPath) -> Option<DeviceNode> {
    match lookup(root, path) {
        Ok(node) => Some(node),
        Err(Errno::ENOENT) => {
            info!("missing device {path}");
            None
        }
        Err(errno) => {
            let path = root.join(path);
            warn!("skipping {}: {}", path.display(), errno_text(errno));
            None
        }
    }
}

/// The character device that a path leads to inside the root.
fn lookup(root: &DriverRoot, path: &HostPath) -> Result<DeviceNode, Errno> {
    let stat = inroot::stat(root.resolve(path)?.as_fd())?;
    if inroot::kind(&stat) != SFlag::S_IFCHR {
        return Err(Errno::ENODEV);
    }
    Ok(DeviceNode {
        path: path.clone(),
        number: DeviceNumber::from_rdev(stat.st_rdev),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_the_control_device_is_taken_for_granted() {
        let dir = tempfile::tempdir().unwrap();
        let root = DriverRoot::open(dir.path()).unwrap();
        let found = find(&root, DriverOptions::empty());
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0].number,
            DeviceNumber {
                major: 195,
                minor: 255
            }
        );
    }

    #[test]
    fn what_is_no_character_device_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("dev/nvidia-modeset")).unwrap();
        std::fs::write(dir.path().join("dev/nvidia-uvm"), "").unwrap();
        let root = DriverRoot::open(dir.path()).unwrap();
        assert_eq!(find(&root, DriverOptions::empty()).len(), 1);
    }

    #[test]
    fn numbers_come_from_the_nodes() {
        let root = DriverRoot::open(std::path::Path::new("/")).unwrap();
        let node = lookup(&root, &HostPath::new("/dev/null")).unwrap();
        assert_eq!(node.number, DeviceNumber { major: 1, minor: 3 });
    }

    #[test]
    fn a_missing_channel_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let root = DriverRoot::open(dir.path()).unwrap();
        let error = imex_channel(&root, 7).unwrap_err();
        let path = dir.path().join("dev/nvidia-caps-imex-channels/channel7");
        let text = format!("stat failed: {}: no such file or directory", path.display());
        assert_eq!(error.message(), text);
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
}
