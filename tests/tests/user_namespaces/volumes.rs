//! Tests volumes of containers with a user namespace: changes that the container's own root may make are made, and no
//! others.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use nvc_testkit::cli::Run;
use nvc_testkit::compile::Source;
use nvc_testkit::driver::Builder;
use nvc_testkit::tree::Tree;
use nvc_tests::{failing_ldconfig, host_ldconfig};

use super::shifted::{FIRST, container, end, run};
use super::world::{World, own};

const BUILTIN: &str = "--ldconfig=builtin";

/// Creates a container's root, and a directory of the host owned by root.
fn world(place: &str) -> (World, PathBuf) {
    let world = World::new(&Builder::default(), FIRST);
    let volume = world.scratch.join("volume");
    fs::create_dir(&volume).unwrap();
    let at = world.root.join(place);
    fs::create_dir_all(&at).unwrap();
    lchown(at, Some(FIRST), Some(FIRST)).unwrap();
    (world, volume)
}

/// Mounts the volume before entering the user namespace.
fn mounted(world: &World, place: &str) -> String {
    let volume = world.scratch.join("volume");
    format!(
        "mount --bind \"$root\" \"$root\"; export bound=1; mount --bind {} \"$root/{place}\"",
        volume.display()
    )
}

/// Finding 3a: a link of the image points to a directory that only the host's root can write.
pub(crate) fn a_directory_of_the_hosts() {
    let (world, volume) = world("data");
    let point = world.root.join("usr/bin/nvidia-smi");
    symlink("/data/systemd/cron.service.d/owned.conf", point).unwrap();
    let before = Tree::of(&volume).unwrap();
    let (child, pid) = container(&world, &mounted(&world, "data"));
    // The program is best effort.
    let line = run(&world, pid, &host_ldconfig()).outcome().unwrap();
    assert_eq!(line.status, Some(0), "{line:?}");
    assert!(line.stderr.contains("/data is a volume"), "{line:?}");
    assert_eq!(Tree::of(&volume).unwrap().changes_since(&before), [""; 0]);
    // If the container's root may write there, so may we, and all created files belong to it.
    lchown(&volume, Some(FIRST), Some(FIRST)).unwrap();
    run(&world, pid, &host_ldconfig()).succeeds();
    let made = fs::metadata(volume.join("systemd/cron.service.d")).unwrap();
    assert_eq!((made.uid(), made.gid()), (FIRST, FIRST));
    end(child);
}

/// Finding 3b: /etc is a volume with the host's ld.so.cache.
pub(crate) fn the_hosts_cache() {
    let (world, volume) = world("etc");
    let files = fs::read_dir(world.root.join("etc")).unwrap();
    for entry in files.map(Result::unwrap) {
        if entry.path().is_file() {
            fs::copy(entry.path(), volume.join(entry.file_name())).unwrap();
        }
    }
    let before = Tree::of(&volume).unwrap();
    assert!(before.get("ld.so.cache").is_some());
    let (child, pid) = container(&world, &mounted(&world, "etc"));
    for ldconfig in [&host_ldconfig()[..], BUILTIN] {
        warns(run(&world, pid, ldconfig), "/etc is a volume");
        assert_eq!(Tree::of(&volume).unwrap().changes_since(&before), [""; 0]);
    }
    // Our group does not count as the container's.
    fs::set_permissions(&volume, Permissions::from_mode(0o775)).unwrap();
    let before = Tree::of(&volume).unwrap();
    for ldconfig in [&host_ldconfig()[..], BUILTIN] {
        warns(run(&world, pid, ldconfig), "/etc is a volume");
        assert_eq!(Tree::of(&volume).unwrap().changes_since(&before), [""; 0]);
    }
    end(child);
}

/// Runs the command, which succeeds with a warning.
#[track_caller]
fn warns(line: Run, warning: &str) {
    let done = line.outcome().unwrap();
    assert_eq!(done.status, Some(0), "{done:?}");
    assert!(done.stderr.contains(warning), "{done:?}");
}

/// ldconfig creates links where the container's root may, and in no other directory.
pub(crate) fn links_beside_libraries() {
    let (world, volume) = world("vol");
    fs::write(world.root.join("etc/ld.so.conf"), "/vol\n").unwrap();
    let library = world.driver.library("libnvidia-ml");
    fs::copy(library, volume.join("libnvidia-ml.so.99")).unwrap();
    let before = Tree::of(&volume).unwrap();
    let (child, pid) = container(&world, &mounted(&world, "vol"));
    warns(run(&world, pid, &host_ldconfig()), "/vol/libnvidia-ml.so.1");
    assert_eq!(Tree::of(&volume).unwrap().changes_since(&before), [""; 0]);
    own(&volume, FIRST);
    warns(run(&world, pid, &host_ldconfig()), "/vol/libnvidia-ml.so.1");
    let link = fs::symlink_metadata(volume.join("libnvidia-ml.so.1")).unwrap();
    assert_eq!(link.uid(), FIRST);
    end(child);
}

/// The container's root may write its own directories whatever their modes, and so may ldconfig.
pub(crate) fn a_directory_that_its_owner_may_not_write() {
    let world = World::new(&Builder::default(), FIRST);
    for name in ["etc", "usr/bin"] {
        fs::set_permissions(world.root.join(name), Permissions::from_mode(0o555)).unwrap();
    }
    let (child, pid) = container(&world, "");
    run(&world, pid, &host_ldconfig()).succeeds();
    let cache = fs::metadata(world.root.join("etc/ld.so.cache")).unwrap();
    assert_eq!(cache.uid(), FIRST);
    end(child);
}

/// Finding 5: another tenant's changes while ldconfig runs are not undone when ldconfig fails.
pub(crate) fn another_tenants_links() {
    let (world, volume) = world("vol");
    fs::write(world.root.join("etc/ld.so.conf"), "/vol\n").unwrap();
    symlink("libx.so.1.1", volume.join("libx.so.1")).unwrap();
    symlink("v1", volume.join("current")).unwrap();
    let (child, pid) = container(&world, &mounted(&world, "vol"));
    let ldconfig = failing_ldconfig(&world.scratch, &["-DUNTIL=\"/etc/changed\"".into()]);
    thread::scope(|scope| {
        let running = scope.spawn(|| run(&world, pid, &ldconfig).fails());
        let cache = world.root.join("etc/ld.so.cache");
        let runs = || fs::read(&cache).is_ok_and(|content| content == b"useless");
        let started = Instant::now();
        while !runs() {
            assert!(
                started.elapsed() < Duration::from_secs(120),
                "it did not run"
            );
            thread::sleep(Duration::from_millis(1));
        }
        for (name, text) in [("libx.so.1", "libx.so.1.2"), ("current", "v2")] {
            fs::remove_file(volume.join(name)).unwrap();
            symlink(text, volume.join(name)).unwrap();
        }
        fs::write(world.root.join("etc/changed"), "").unwrap();
        running.join().unwrap();
    });
    for (name, text) in [("libx.so.1", "libx.so.1.2"), ("current", "v2")] {
        assert_eq!(
            fs::read_link(volume.join(name)).unwrap().to_str(),
            Some(text)
        );
        assert_eq!(fs::symlink_metadata(volume.join(name)).unwrap().uid(), 0);
    }
    end(child);
}

/// As Kubernetes mounts volumes: their files belong to the container's users, and so do created files.
pub(crate) fn an_idmapped_volume() {
    let (world, volume) = world("usr/lib/x86_64-linux-gnu");
    let place = "usr/lib/x86_64-linux-gnu";
    let script = format!(
        "cp -a {}/. {}; ",
        world.root.join(place).display(),
        volume.display()
    );
    let status = Command::new("sh").args(["-c", &script]).status();
    assert!(status.unwrap().success());
    own(&volume, 0);
    let tool = world.tool(Source::IdMap, "idmap");
    let mount = format!(
        "mount --bind \"$root\" \"$root\"; export bound=1; {} {} \"$root/{place}\" {FIRST} 65536",
        tool.display(),
        volume.display()
    );
    let (child, pid) = container(&world, &mount);
    for ldconfig in [&host_ldconfig()[..], BUILTIN] {
        run(&world, pid, ldconfig).succeeds();
        let link = fs::symlink_metadata(volume.join("libnvidia-ml.so.1")).unwrap();
        assert_eq!(link.uid(), 0);
        fs::remove_file(volume.join("libnvidia-ml.so.1")).unwrap();
    }
    end(child);
}
