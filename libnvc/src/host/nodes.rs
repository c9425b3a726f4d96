//! Looks up the driver's device nodes: shared ones and IMEX channels.

use std::os::fd::AsFd;
use std::path::Path;

use log::{info, warn};
use nix::errno::Errno;
use nix::sys::stat::{FileStat, SFlag};
use serde::Serialize;

use crate::error::{Error, ErrorKind, Result, errno_text};
use crate::hint::Setting;
use crate::host::{
    CONTROL_MINOR, CharDrivers, DeviceNode, DeviceNumber, DriverRoot, NVIDIA_MAJOR, NodeOwner,
};
use crate::inroot;
use crate::options::DriverOptions;
use crate::path::HostPath;

/// Directory of the capabilities.
pub const CAPABILITY_DIRECTORY: &str = "/dev/nvidia-caps";
/// Directory of the IMEX channels.
pub const IMEX_DIRECTORY: &str = "/dev/nvidia-caps-imex-channels";

/// The way to the driver's control nodes.
pub(crate) const MAKER_OF_CONTROL: &str =
    "nvidia-ctk system create-device-nodes --control-devices or nvidia-modprobe -c 255 -u makes it";

/// Returns the way to a GPU's node, which nvidia-ctk does not make.
pub fn maker_of_gpu(minor: u32) -> String {
    format!("nvidia-modprobe -c {minor} makes it")
}

/// The way to a capability's node.
pub const MAKER_OF_CAPABILITY: &str = "nvidia-modprobe -f makes the node of a capability's file";

/// Returns the way to a node, if it is the control node, a GPU's or a capability's.
pub(crate) fn maker_of(path: &HostPath, number: DeviceNumber) -> Option<String> {
    match (number.major, number.minor) {
        _ if path.parent() == HostPath::new(CAPABILITY_DIRECTORY) => {
            Some(MAKER_OF_CAPABILITY.into())
        }
        (NVIDIA_MAJOR, CONTROL_MINOR) => Some(MAKER_OF_CONTROL.into()),
        (NVIDIA_MAJOR, minor) if minor < CONTROL_MINOR => Some(maker_of_gpu(minor)),
        _ => None,
    }
}

/// Purpose of a device that all GPUs share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceRole {
    /// Opens the driver; has a fixed number.
    Control,
    /// Unified memory; has a dynamic major number.
    Uvm,
    /// Unified memory for debuggers.
    UvmTools,
    /// Mode setting for displays.
    Modeset,
    /// All functions, on a WSL2 host.
    Dxg,
}

/// A device that all GPUs share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SharedDevice {
    /// Its node.
    pub node: DeviceNode,
    /// Its purpose.
    pub role: DeviceRole,
}

impl DeviceRole {
    /// Returns the path of its node.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Control => "/dev/nvidiactl",
            Self::Uvm => "/dev/nvidia-uvm",
            Self::UvmTools => "/dev/nvidia-uvm-tools",
            Self::Modeset => "/dev/nvidia-modeset",
            Self::Dxg => "/dev/dxg",
        }
    }
}

/// Returns the devices that all GPUs share; omits missing ones, and nodes that are not the driver's devices.
pub(crate) fn find(
    root: &DriverRoot,
    options: DriverOptions,
    drivers: &CharDrivers,
) -> Vec<SharedDevice> {
    let role = DeviceRole::Control;
    let node = DeviceNode::new(role.path(), NVIDIA_MAJOR, CONTROL_MINOR);
    let control = SharedDevice { node, role };
    let others = [
        (DriverOptions::NO_UVM, DeviceRole::Uvm),
        (DriverOptions::NO_UVM, DeviceRole::UvmTools),
        (DriverOptions::NO_MODESET, DeviceRole::Modeset),
    ];
    let others = others.into_iter().filter(|(no, _)| !options.contains(*no));
    let others = others.filter_map(|(_, role)| {
        let node = optional(root, &HostPath::new(role.path()), drivers)?;
        Some(SharedDevice { node, role })
    });
    [control].into_iter().chain(others).collect()
}

/// Returns the same devices for a specification: without following links, with permissions, in upstream's order. Adds
/// the reasons why others are missing to `missing`.
pub fn of_specification(
    root: &DriverRoot,
    drivers: &CharDrivers,
    missing: &mut Vec<String>,
) -> Vec<SharedDevice> {
    let mut found = Vec::new();
    for role in [
        DeviceRole::Modeset,
        DeviceRole::UvmTools,
        DeviceRole::Uvm,
        DeviceRole::Control,
    ] {
        let path = HostPath::new(role.path());
        match at(root, &path, drivers) {
            Ok(node) => found.push(SharedDevice { node, role }),
            Err(error) => missing.push(error.message()),
        }
    }
    found
}

/// Returns the device that the name of a path says. Symlinks are not followed, because engines do not follow them.
///
/// # Errors
/// There is no such device.
pub fn at(root: &DriverRoot, path: &HostPath, drivers: &CharDrivers) -> Result<DeviceNode> {
    let stat = root
        .resolve_nofollow(path)
        .and_then(|fd| inroot::stat(fd.as_fd()));
    let stat = stat.map_err(|errno| {
        let kind = match errno {
            Errno::ENOENT => ErrorKind::NotFound,
            _ => ErrorKind::System,
        };
        Error::new(kind, format!("{} is missing", root.join(path).display()))
    })?;
    let node = node_of(path, &stat).map_err(|_| {
        let text = format!("{} is not a character device", root.join(path).display());
        Error::new(ErrorKind::Malformed, text)
    })?;
    drivers.check(&path.to_string(), node.number)?;
    Ok(node)
}

/// Returns the device of a WSL2 host. It belongs to the caller's root, even if the driver root is another.
///
/// # Errors
/// `stat failed: /dev/dxg: <cause>`.
pub(crate) fn find_dxg() -> Result<SharedDevice> {
    let role = DeviceRole::Dxg;
    let path = role.path();
    let failed = |errno| Error::file("stat failed", path, errno);
    let stat = nix::sys::stat::stat(path).map_err(failed)?;
    let node = node_of(&HostPath::new(path), &stat).map_err(failed)?;
    if let Some(is) = CharDrivers::discover().difference(path, node.number) {
        return Err(another(Path::new(path), &is));
    }
    Ok(SharedDevice { node, role })
}

/// Returns the node of an IMEX channel.
///
/// # Errors
/// `stat failed: <node>: <cause>`, or `invalid device node: <node>: <why>`.
pub(crate) fn imex_channel(
    root: &DriverRoot,
    channel: u32,
    drivers: &CharDrivers,
) -> Result<DeviceNode> {
    let path = HostPath::new(format!("{IMEX_DIRECTORY}/channel{channel}"));
    let node = lookup(root, &path).map_err(|errno| {
        Error::file("stat failed", root.join(&path), errno)
            .with_kind(ErrorKind::NotFound)
            .hint(Setting::LoadKmods.between(
                "create the node of the IMEX channel: ",
                " or nvidia-modprobe -i",
            ))
    })?;
    match drivers.difference(&path.to_string(), node.number) {
        None => Ok(node),
        Some(is) => Err(another(&root.join(&path), &is)),
    }
}

/// Describes a node that is another device than its name says.
fn another(path: &Path, is: &str) -> Error {
    let error = Error::new(ErrorKind::Malformed, "invalid device node").of(path.display());
    let error = error.with_cause(format!("it {is}"));
    error.hint("remove it and load the driver again")
}

fn optional(root: &DriverRoot, path: &HostPath, drivers: &CharDrivers) -> Option<DeviceNode> {
    match lookup(root, path) {
        Ok(node) => {
            let difference = drivers.difference(&path.to_string(), node.number);
            if let Some(is) = &difference {
                warn!("skipping {}: it {is}", root.join(path).display());
            }
            difference.is_none().then_some(node)
        }
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

/// Returns the character device that a path leads to inside the root.
fn lookup(root: &DriverRoot, path: &HostPath) -> Result<DeviceNode, Errno> {
    node_of(path, &inroot::stat(root.resolve(path)?.as_fd())?)
}

fn node_of(path: &HostPath, stat: &FileStat) -> Result<DeviceNode, Errno> {
    if inroot::kind(stat) != SFlag::S_IFCHR {
        return Err(Errno::ENODEV);
    }
    Ok(DeviceNode {
        path: path.clone(),
        number: DeviceNumber::from_rdev(stat.st_rdev),
        owner: Some(NodeOwner::of(stat)),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_node_has_the_command_that_makes_it() {
        let maker =
            |path, major, minor| maker_of(&HostPath::new(path), DeviceNumber { major, minor });
        let gpu = maker("/dev/nvidia3", NVIDIA_MAJOR, 3);
        assert_eq!(gpu.as_deref(), Some("nvidia-modprobe -c 3 makes it"));
        let control = maker("/dev/nvidiactl", NVIDIA_MAJOR, CONTROL_MINOR);
        assert_eq!(control.as_deref(), Some(MAKER_OF_CONTROL));
        let capability = maker("/dev/nvidia-caps/nvidia-cap3", 234, 3);
        assert_eq!(capability.as_deref(), Some(MAKER_OF_CAPABILITY));
        assert_eq!(maker("/dev/nvidia-uvm", 500, 0), None);
    }

    #[test]
    fn only_the_control_device_is_taken_for_granted() {
        let dir = tempfile::tempdir().unwrap();
        let root = DriverRoot::open(dir.path()).unwrap();
        let found = find(&root, DriverOptions::empty(), &CharDrivers::default());
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0].node.number,
            DeviceNumber {
                major: 195,
                minor: 255
            }
        );
    }

    #[test]
    fn other_file_types_are_omitted() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("dev/nvidia-modeset")).unwrap();
        std::fs::write(dir.path().join("dev/nvidia-uvm"), "").unwrap();
        let root = DriverRoot::open(dir.path()).unwrap();
        let found = find(&root, DriverOptions::empty(), &CharDrivers::default());
        assert_eq!(found.len(), 1);
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
        let error = imex_channel(&root, 7, &CharDrivers::default()).unwrap_err();
        let path = dir.path().join("dev/nvidia-caps-imex-channels/channel7");
        let text = format!("stat failed: {}: no such file or directory", path.display());
        assert_eq!(error.message(), text);
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
}
