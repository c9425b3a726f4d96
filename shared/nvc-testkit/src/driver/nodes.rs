//! Creates the device nodes of a driver root.

use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

use super::builder::Builder;
use super::hardware;
use super::procfs::{Majors, compute_instance_minor, gpu_instance_minor};
use super::root::Driver;
use crate::files;
use crate::profile::hardware::Display;

/// Creates all nodes; if this process may not create any, the driver says so.
pub(super) fn write(builder: &Builder, driver: &mut Driver) -> io::Result<()> {
    let Majors { caps, imex, uvm } = driver.majors;
    let mut nodes = vec![
        ("/dev/null".to_owned(), 0o666, 1, 3),
        ("/dev/nvidiactl".into(), 0o666, 195, 255),
        ("/dev/nvidia-modeset".into(), 0o666, 195, 254),
        ("/dev/nvidia-uvm".into(), 0o666, uvm, 0),
        ("/dev/nvidia-uvm-tools".into(), 0o666, uvm, 1),
    ];
    for gpu in &builder.profile.gpus {
        nodes.push((format!("/dev/nvidia{}", gpu.minor), 0o666, 195, gpu.minor));
    }
    if builder.capability_nodes {
        let mut cap = |mode, minor| {
            nodes.push((
                format!("/dev/nvidia-caps/nvidia-cap{minor}"),
                mode,
                caps,
                minor,
            ));
        };
        cap(0o400, 1);
        cap(0o444, 2);
        for mig in &builder.profile.mig_devices {
            let gpu = builder.profile.gpus.get(mig.gpu).map_or(0, |gpu| gpu.minor);
            cap(0o444, gpu_instance_minor(gpu, mig.gpu_instance));
            let (gi, ci) = (mig.gpu_instance, mig.compute_instance);
            cap(0o444, compute_instance_minor(gpu, gi, ci));
        }
    }
    let channels = match builder.profile.hardware.channels.as_slice() {
        // A machine that lists its files has no channels but those that it lists.
        [] if builder.profile.layout.only.is_none() => &[0, 1, 2047],
        own => own,
    };
    for channel in channels {
        let path = format!("/dev/nvidia-caps-imex-channels/channel{channel}");
        nodes.push((path, 0o666, imex, *channel));
    }
    for (name, minor) in builder
        .profile
        .hardware
        .displays
        .iter()
        .flat_map(Display::nodes)
    {
        nodes.push((format!("/dev/dri/{name}"), 0o660, hardware::DRM, minor));
    }
    for (path, mode, major, minor) in nodes {
        let is_drivers = path != "/dev/null";
        if is_drivers && builder.profile.layout.has_no_nodes || !builder.wants(&path) {
            continue;
        }
        match node(&driver.path(&path), mode, major, minor) {
            Ok(()) => {}
            Err(Errno::EPERM) => {
                let why = "device nodes: this process may not make any";
                driver.left_out.push(why.into());
                return Ok(());
            }
            Err(error) => return Err(io::Error::other(format!("{path}: {error}"))),
        }
    }
    let mut odd = builder.profile.hardware.nodes.iter();
    odd.try_for_each(|node| driver.replace(node))
}

/// Creates a character device node.
fn node(path: &Path, mode: u32, major: u32, minor: u32) -> Result<(), Errno> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    files::directory(parent).map_err(|_| Errno::ENOTDIR)?;
    let number = makedev(major.into(), minor.into());
    mknod(path, SFlag::S_IFCHR, Mode::from_bits_truncate(mode), number)?;
    // The umask has cleared bits.
    files::mode(path, mode).map_err(|_| Errno::EPERM)
}
