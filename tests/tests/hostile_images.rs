//! Tests hostile images and containers: none of their files is opened without need, and nothing blocks forever.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, ExitCode};

use nvc_testkit::container::Builder;
use nvc_testkit::harness;
use nvc_testkit::harness::Need::Root;
use nvc_tests::{State, configure, debian, debian_root, start};

fn main() -> ExitCode {
    harness::main(nvc_testkit::tests![&[Root];
        a_device_in_the_place_of_the_compat_directory,
        too_many_compat_libraries,
        names_of_files_cannot_forge_lines,
        a_pattern_of_many_stars,
        things_in_the_place_of_our_files,
        a_place_that_ends_with_us,
        the_cache_in_the_place_of_a_device,
    ])
}

/// Opening a device, even for reading, can have side effects: a watchdog starts, a tape rewinds.
fn a_device_in_the_place_of_the_compat_directory() {
    let root = debian_root().no_programs().directory("/usr/local/cuda");
    let root = root.edit(|root| device(&root.join("usr/local/cuda/compat")));
    let container = start(Builder::new(root));
    // No driver has this number: opening it would fail the command.
    configure(&container, &["--compute", "--device=0"]).succeeds();
}

fn too_many_compat_libraries() {
    let compat = "/usr/local/cuda/compat";
    let root = debian_root().no_programs().directory(compat);
    let root = root.edit(|root| {
        let directory = root.join("usr/local/cuda/compat");
        let mut names = (0..5000).map(|number| format!("libcuda.so.999.{number}"));
        names.try_for_each(|name| fs::write(directory.join(name), ""))
    });
    let container = start(Builder::new(root));
    let before = State::of(&container);
    let message = configure(&container, &["--compute", "--device=0"]).fails();
    let text = format!("container error: too many libraries in {compat}: more than 512");
    assert_eq!(message, format!("nvidia-container-cli: {text}"));
    before.assert_unchanged(&container);
}

fn names_of_files_cannot_forge_lines() {
    let name = "libcuda.so.999\nnvidia-container-cli: all is well\u{1b}[31m";
    let root = debian_root().no_programs();
    let root = root.directory("/usr/local/cuda/compat");
    let root = root.edit(move |root| fs::create_dir(root.join("usr/local/cuda/compat").join(name)));
    let container = start(Builder::new(root));
    // The library is best effort.
    let run = configure(&container, &["--compute", "--device=0"])
        .outcome()
        .unwrap();
    assert_eq!(run.status, Some(0), "{run:?}");
    let warning = run.stderr.strip_suffix('\n').unwrap_or_default();
    let shown = "libcuda.so.999\\x0anvidia-container-cli: all is well\\x1b[31m";
    assert!(warning.contains(shown), "{warning:?}");
}

/// A naive comparison takes exponential time.
fn a_pattern_of_many_stars() {
    let root = debian_root().no_programs().directory("/etc/ld.so.conf.d");
    let root = root.edit(|root| {
        let name = "a".repeat(255);
        fs::write(root.join("etc/ld.so.conf.d").join(name), "")?;
        let line = format!("include ld.so.conf.d/{}b\n", "*a".repeat(30));
        fs::write(root.join("etc/ld.so.conf"), line)
    });
    configure(&start(Builder::new(root)), &["--utility", "--device=0"]).succeeds();
}

fn things_in_the_place_of_our_files() {
    for (kind, cause) in [
        ("device", "file exists"),
        ("link", "file exists"),
        ("fifo", "file exists"),
        // Reading it would take all memory.
        ("large", "file too large"),
    ] {
        let container = debian();
        configure(&container, &["--utility", "--device=0"]).succeeds();
        let path = container.inside("/proc/driver/nvidia/params");
        fs::remove_file(&path).unwrap();
        match kind {
            "device" => device(&path).unwrap(),
            "link" => symlink("/etc/passwd", &path).unwrap(),
            "fifo" => fifo(&path),
            _ => fs::File::create(&path).unwrap().set_len(1 << 40).unwrap(),
        }
        let before = mounts_and_links(&container);
        let message = configure(&container, &["--utility", "--device=0"]).fails();
        let end = format!("/proc/driver/nvidia/params: {cause}");
        assert!(message.ends_with(&end), "{message}");
        assert_eq!(mounts_and_links(&container), before);
    }
}

/// Mounts on /proc/self are on the command's own directory, and vanish with it.
fn a_place_that_ends_with_us() {
    let container = debian();
    let driver = container.inside("/proc/driver/nvidia");
    fs::remove_dir(&driver).unwrap();
    symlink("../self", &driver).unwrap();
    let before = State::of(&container);
    let message = configure(&container, &["--utility", "--device=0"]).fails();
    let end = "/proc/driver/nvidia: too many levels of symbolic links";
    assert!(message.ends_with(end), "{message}");
    before.assert_unchanged(&container);
}

/// ldconfig replaces the cache, and removes a mount on it: either this is reported, or the device was mounted later.
fn the_cache_in_the_place_of_a_device() {
    for _ in 0..10 {
        let container = debian();
        symlink("../etc/ld.so.cache", container.inside("/dev/nvidiactl")).unwrap();
        fs::write(container.inside("/etc/ld.so.cache"), "").unwrap();
        let before = State::of(&container);
        let done = configure(&container, &["--utility", "--device=0"])
            .outcome()
            .unwrap();
        if done.status == Some(0) {
            let mounts = container.mounts().unwrap();
            assert!(
                mounts
                    .iter()
                    .any(|mount| mount.root.ends_with("dev/nvidiactl")),
                "{mounts:?}"
            );
        } else {
            // Either ldconfig has replaced the cache under the mount, or the mount came first and ldconfig cannot.
            let reasons = ["/dev/nvidiactl: ", "Device or resource busy"];
            assert!(
                reasons.iter().any(|reason| done.stderr.contains(reason)),
                "{done:?}"
            );
            before.assert_unchanged(&container);
        }
    }
}

/// Without contents, some of which are unreadable.
fn mounts_and_links(container: &nvc_testkit::container::Container) -> (usize, Vec<String>) {
    let directory = fs::read_dir(container.inside("/proc/driver/nvidia")).unwrap();
    let mut names: Vec<_> = directory
        .map(|entry| {
            let entry = entry.unwrap();
            let kind = entry.file_type().unwrap();
            format!("{} {kind:?}", entry.file_name().display())
        })
        .collect();
    names.sort();
    (container.mounts().unwrap().len(), names)
}

fn device(path: &Path) -> std::io::Result<()> {
    let status = Command::new("mknod")
        .arg(path)
        .args(["c", "4000", "0"])
        .status()?;
    assert!(status.success());
    Ok(())
}

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}
