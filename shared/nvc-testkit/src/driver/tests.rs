//! Tests that a root has the files of its options.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::Command;

use nix::sys::stat::makedev;

use std::os::unix::fs::{FileTypeExt, MetadataExt};

use super::native::NATIVE_32;
use super::*;
use crate::profile::{Fault, Profile};
use crate::userland;

#[test]
fn a_root_has_the_drivers_files() {
    let directory = tempfile::tempdir().unwrap();
    let driver = Builder::new(Profile::default().on_debian())
        .legacy_gl()
        .build(directory.path())
        .unwrap();
    let lib = format!("/usr/lib/{}", NATIVE.0);
    for (link, target) in [
        ("libcuda.so.1", "libcuda.so.570.124.06"),
        ("libnvidia-ml.so.1", "libnvidia-ml.so.570.124.06"),
        ("libnvidia-nvvm.so.4", "libnvidia-nvvm.so.570.124.06"),
        ("libEGL_nvidia.so.0", "libEGL_nvidia.so.570.124.06"),
        ("libGL.so.1", "libGL.so.570.124.06"),
    ] {
        let found = fs::read_link(driver.path(format!("{lib}/{link}"))).unwrap();
        assert_eq!(found, Path::new(target));
    }
    let listed = Command::new(userland::host_ldconfig())
        .args(["-p", "-r"])
        .arg(driver.root())
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let narrow = format!("/usr/lib/{}", NATIVE_32.0);
    for expected in [
        format!("{lib}/libcuda.so.1"),
        format!("{lib}/libnvidia-glcore.so.570.124.06"),
        format!("{narrow}/libcuda.so.1"),
        format!("/lib/{}/libc.so.6", NATIVE.0),
    ] {
        assert!(
            listed.contains(&format!("=> {expected}\n")),
            "{expected}: {listed}"
        );
    }
    let socket = fs::metadata(driver.path("/var/run/nvidia-persistenced/socket")).unwrap();
    assert!(socket.file_type().is_socket());
    if driver.left_out().is_empty() {
        let node = fs::metadata(driver.path("/dev/nvidia1")).unwrap();
        assert!(node.file_type().is_char_device() && node.rdev() == makedev(195, 1));
        assert_eq!(node.mode() & 0o7777, 0o666);
        assert!(driver.path("/dev/nvidia-caps/nvidia-cap148").exists());
    }
    let access = "/proc/driver/nvidia/capabilities/gpu1/mig/gi1/ci0/access";
    let text = fs::read_to_string(driver.path(access)).unwrap();
    assert!(text.starts_with("DeviceFileMinor: 148\n"), "{text}");
    let minors = fs::read_to_string(driver.path("/proc/driver/nvidia-caps/mig-minors")).unwrap();
    assert!(minors.contains("gpu1/gi1/ci0/access 148\n"));
}

#[test]
fn unwanted_files_are_absent() {
    let directory = tempfile::tempdir().unwrap();
    let driver = Builder::new(Profile::without_gpus().on_debian())
        .without("libcuda")
        .without("/usr/bin/nvidia-smi")
        .without("/tmp/nvidia-mps")
        .library_dirs("/usr/lib64", None)
        .no_nodes()
        .no_libc()
        .no_capability_nodes()
        .build(directory.path().join("deep/root"))
        .unwrap();
    assert!(driver.path("/usr/lib64/libnvidia-ml.so.1").exists());
    for gone in [
        "/usr/lib64/libcuda.so.570.124.06",
        "/usr/bin/nvidia-smi",
        "/tmp/nvidia-mps",
        "/dev",
        "/bin/sh",
        "/proc/driver/nvidia-caps",
    ] {
        assert!(!driver.path(gone).exists(), "{gone}");
    }
    let devices = fs::read_to_string(driver.path("/proc/devices")).unwrap();
    assert!(devices.contains("195 nvidia\n") && !devices.contains("nvidia-caps\n"));
}

#[test]
fn missing_entry_points_are_missing() {
    let directory = tempfile::tempdir().unwrap();
    let symbols = |driver: &Driver| {
        let library = driver.library("libnvidia-ml");
        let output = Command::new("nm").arg("-D").arg(library).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let profile = Profile::default().fault(Fault::Missing("nvmlDeviceGetMigMode".into()));
    let driver = Builder::new(profile).build(directory.path()).unwrap();
    assert!(!symbols(&driver).contains(" nvmlDeviceGetMigMode\n"));
    assert!(symbols(&driver).contains(" nvmlDeviceGetName\n"));
}
