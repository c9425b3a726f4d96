#![allow(clippy::unwrap_used)]

use super::*;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Makes a driver root with loaded modules and one GPU of minor number 3 with one MIG device.
fn tree() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (path, content) in [
        (
            "proc/modules",
            "nvidia_uvm 1 0 - Live 0x0\nnvidia_modeset 1 0 - Live 0x0\nnvidia 1 2 - Live 0x0\n",
        ),
        (
            "proc/devices",
            "Character devices:\n234 nvidia-caps\n235 nvidia-caps-imex-channels\n510 nvidia-uvm\n",
        ),
        (
            "proc/driver/nvidia/params",
            "ModifyDeviceFiles: 1\nDeviceFileUID: 7\nDeviceFileMode: 432\nRmMsg: \"\"\n",
        ),
        (
            "proc/driver/nvidia/gpus/0000:3b:00.0/information",
            "Model: \t x\nDevice Minor: \t 3\n",
        ),
        (
            "proc/driver/nvidia/capabilities/mig/config",
            "DeviceFileMinor: 1\nDeviceFileMode: 256\nDeviceFileModify: 1\n",
        ),
        (
            "proc/driver/nvidia/capabilities/mig/monitor",
            "DeviceFileMinor: 2\nDeviceFileMode: 292\nDeviceFileModify: 0\n",
        ),
        (
            "proc/driver/nvidia/capabilities/gpu3/mig/gi1/access",
            "DeviceFileMinor: 30\n",
        ),
        (
            "proc/driver/nvidia/capabilities/gpu3/mig/gi1/ci0/access",
            "DeviceFileMinor: 31\n",
        ),
        (
            "proc/driver/nvidia/capabilities/gpu4/mig/gi1/access",
            "DeviceFileMinor: 40\n",
        ),
        ("dev/char/.keep", ""),
    ] {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    dir
}

/// Loads the modules, and creates the nodes of these channels.
fn run(dir: &Path, channels: &[u32]) -> Vec<String> {
    let root = DriverRoot::open(dir).unwrap();
    let mut loader = ModuleLoader {
        gpus_on_pci: Some(1).into(),
        ..ModuleLoader::new(&root)
    };
    loader.run();
    let planned = planned(&root, channels);
    if !planned.is_empty() {
        loader.channels(&planned);
    }
    loader.problems
}

fn planned(root: &DriverRoot, channels: &[u32]) -> Vec<DeviceNode> {
    new_channels(
        root,
        &DriverConfig {
            options: LibraryOptions::LOAD_KMODS,
            ..DriverConfig::default()
        },
        channels,
    )
}

fn nodes(dev: &Path) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut directories: Vec<PathBuf> = vec![dev.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let meta = path.symlink_metadata().unwrap();
            let name = path.strip_prefix(dev).unwrap().display().to_string();
            if meta.file_type().is_char_device() {
                let number = DeviceNumber::from_rdev(meta.rdev());
                let (major, minor) = (number.major, number.minor);
                let (mode, uid) = (meta.mode() & 0o7777, meta.uid());
                found.push(format!("{name} {major}:{minor} {mode:o} {uid}"));
            } else if meta.is_symlink() {
                let target = std::fs::read_link(path).unwrap();
                found.push(format!("{name} -> {}", target.display()));
            } else if meta.is_dir() {
                directories.push(path);
            }
        }
    }
    found.sort();
    found
}

#[test]
#[ignore = "needs root"]
fn makes_nodes_and_links() {
    let dir = tree();
    let dev = dir.path().join("dev");
    assert_eq!(run(dir.path(), &[5]), [""; 0]);
    let expected = [
        "char/195:254 -> ../nvidia-modeset",
        "char/195:255 -> ../nvidiactl",
        "char/195:3 -> ../nvidia3",
        "char/234:1 -> ../nvidia-caps/nvidia-cap1",
        "char/234:30 -> ../nvidia-caps/nvidia-cap30",
        "char/234:31 -> ../nvidia-caps/nvidia-cap31",
        "char/235:5 -> ../nvidia-caps-imex-channels/channel5",
        "char/510:0 -> ../nvidia-uvm",
        "char/510:1 -> ../nvidia-uvm-tools",
        "nvidia-caps-imex-channels/channel5 235:5 660 7",
        "nvidia-caps/nvidia-cap1 234:1 400 0",
        "nvidia-caps/nvidia-cap30 234:30 666 0",
        "nvidia-caps/nvidia-cap31 234:31 666 0",
        "nvidia-modeset 195:254 660 7",
        "nvidia-uvm 510:0 666 0",
        "nvidia-uvm-tools 510:1 666 0",
        "nvidia3 195:3 660 7",
        "nvidiactl 195:255 660 7",
    ];
    assert_eq!(nodes(&dev), expected);
    let caps = dev.join("nvidia-caps").metadata().unwrap();
    assert_eq!(caps.permissions().mode() & 0o7777, 0o755);

    // Correct nodes stay, wrong ones are corrected.
    let inode = |name: &str| dev.join(name).symlink_metadata().unwrap().ino();
    let right = inode("nvidiactl");
    std::fs::remove_file(dev.join("nvidia3")).unwrap();
    std::fs::write(dev.join("nvidia3"), "").unwrap();
    std::fs::set_permissions(dev.join("nvidia-uvm"), PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::remove_file(dev.join("char/195:3")).unwrap();
    std::os::unix::fs::symlink("../null", dev.join("char/195:3")).unwrap();
    assert_eq!(run(dir.path(), &[5]), [""; 0]);
    assert_eq!(nodes(&dev), expected);
    assert_eq!(inode("nvidiactl"), right);
}

/// A container that has the host's /dev can make such links.
#[test]
#[ignore = "needs root"]
fn links_to_other_directories_are_not_followed() {
    let dir = tree();
    let (dev, etc) = (dir.path().join("dev"), dir.path().join("etc"));
    std::fs::create_dir(&etc).unwrap();
    std::fs::remove_dir_all(dev.join("char")).unwrap();
    for name in ["char", "nvidia-caps", "nvidia-caps-imex-channels"] {
        std::os::unix::fs::symlink("../etc", dev.join(name)).unwrap();
    }
    // Three capabilities and a channel.
    assert_eq!(run(dir.path(), &[5]).len(), 4);
    assert_eq!(nodes(&etc), [""; 0]);
}

/// An image can name channels that the driver does not have.
#[test]
#[ignore = "needs root"]
fn no_more_channels_than_the_driver_has() {
    let dir = tree();
    let dev = dir.path().join("dev/nvidia-caps-imex-channels");
    let params = dir.path().join("proc/driver/nvidia/params");
    std::fs::write(params, "ImexChannelCount: 4\n").unwrap();
    let all: Vec<u32> = (0..1024).collect();
    run(dir.path(), &all);
    assert_eq!(std::fs::read_dir(&dev).unwrap().count(), 4);
    let root = DriverRoot::open(dir.path()).unwrap();
    assert!(planned(&root, &[4, 1 << 19, u32::MAX]).is_empty());
}

/// Loading modules alone creates none.
#[test]
#[ignore = "needs root"]
fn channels_are_created_on_demand_only() {
    let dir = tree();
    run(dir.path(), &[]);
    let root = DriverRoot::open(dir.path()).unwrap();
    assert_eq!(planned(&root, &[5]).len(), 1);
    assert!(!dir.path().join("dev/nvidia-caps-imex-channels").exists());
}

#[test]
fn the_administrator_can_forbid_it() {
    let dir = tree();
    let params = dir.path().join("proc/driver/nvidia/params");
    std::fs::write(params, "ModifyDeviceFiles: 0\n").unwrap();
    let capabilities = dir.path().join("proc/driver/nvidia/capabilities");
    std::fs::remove_dir_all(capabilities).unwrap();
    std::fs::write(dir.path().join("proc/modules"), "nvidia 1 0 - Live 0x0\n").unwrap();
    let problems = run(dir.path(), &[5]);
    assert_eq!(nodes(&dir.path().join("dev")), [""; 0]);
    // Only the two modules that are not loaded.
    assert_eq!(problems.len(), 2, "{problems:?}");
}

#[test]
fn does_nothing_without_the_module() {
    let dir = tree();
    std::fs::remove_file(dir.path().join("proc/modules")).unwrap();
    let problems = run(dir.path(), &[]);
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].starts_with("cannot load kernel module nvidia: "));
    assert_eq!(nodes(&dir.path().join("dev")), [""; 0]);
}
