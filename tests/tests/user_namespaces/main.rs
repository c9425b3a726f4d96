//! Tests containers with user namespaces: rootless ones and those that root starts, with all kinds of maps, owners and
//! locks. Each works, or reports the cause and changes nothing.
#![allow(clippy::unwrap_used)]

use std::process::{ExitCode, Output};

use nvc_testkit::cgroup::{Attach, DeviceCgroup};
use nvc_testkit::driver::Builder;
use nvc_testkit::harness::Need::{CgroupV1, CgroupV2, Command, Root as Privileged, UserNamespaces};
use nvc_testkit::harness::{self, test};
use nvc_testkit::machine;
use nvc_testkit::tree::Tree;

mod shifted;
mod volumes;
mod world;

use shifted::{a_container_of_shifted_users, an_idmapped_root, closed_nodes};
use volumes::{
    a_directory_of_the_hosts, a_directory_that_its_owner_may_not_write, an_idmapped_volume,
    another_tenants_links, links_beside_libraries, the_hosts_cache,
};
use world::{Root, World};

fn main() -> ExitCode {
    let needs = [Privileged, UserNamespaces];
    let mut tests = Vec::new();
    for (name, who, owner) in [
        ("root_alone", Root::Host, 0),
        ("a_user_alone", Root::User(1000), 1000),
        ("a_range_of_users", Root::Range(100_000), 100_000),
    ] {
        tests.push(test(name, &needs, move || works(who, owner)));
    }
    for (name, flags, outcome) in LOCKS {
        let outcome = *outcome;
        tests.push(test(format!("driver_locked_{name}"), &needs, move || {
            locked(flags, outcome);
        }));
    }
    tests.extend(nvc_testkit::tests![&needs;
        locked_data,
        a_read_only_root_cannot_be_unlocked,
        an_owner_without_a_map,
    ]);
    tests.extend(nvc_testkit::tests![&[Privileged, UserNamespaces, CgroupV1];
        a_cgroup_that_may_not_be_changed,
        a_cgroup_that_need_not_be_changed,
    ]);
    tests.extend(nvc_testkit::tests![&[Privileged, UserNamespaces, CgroupV2];
        a_version_2_cgroup_that_may_not_be_changed,
        a_version_2_cgroup_that_need_not_be_changed,
    ]);
    tests.extend(nvc_testkit::tests![&needs; a_container_of_shifted_users, closed_nodes]);
    tests.extend(nvc_testkit::tests![&needs;
        a_directory_of_the_hosts,
        the_hosts_cache,
        links_beside_libraries,
        a_directory_that_its_owner_may_not_write,
        another_tenants_links,
    ]);
    let tools = [Privileged, UserNamespaces, Command("cc")];
    tests.extend(nvc_testkit::tests![&tools; an_idmapped_root]);
    tests.extend(nvc_testkit::tests![&tools; an_idmapped_volume]);
    harness::main(tests)
}

fn text(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// As documented for rootless containers: no device nodes of our own, no cgroups.
const ROOTLESS: &str = "--no-cgroups --no-devbind --device=0";

const LISTS: &str = "NVIDIA_SIM_NO_NODES=1 chroot . /usr/bin/nvidia-smi -L 2>&1
    grep \" $root/usr/bin/nvidia-smi \" proc/self/mountinfo
    stat -c 'owner %u' etc/ld.so.cache usr/bin/nvidia-smi.there 2>/dev/null
    ldconfig -p -C etc/ld.so.cache | grep -c libnvidia-ml";

fn works(who: Root, owner: u32) {
    let world = World::new(&Builder::default().no_nodes(), owner);
    let output = world.configure(who, "", "", ROOTLESS, LISTS);
    let (out, err) = text(&output);
    assert!(out.starts_with("status 0\n"), "{out}{err}");
    assert!(out.contains(&world.driver.listing(0, &[])), "{out}{err}");
    assert!(out.contains(" ro,nosuid,nodev"), "{out}{err}");
    // The owner is root inside the namespace.
    assert!(out.contains("owner 0\n"), "{out}{err}");
    // Remaining files in the image belong to its owner.
    let changed = Tree::of(&world.root).unwrap();
    let cache = changed.get("etc/ld.so.cache").unwrap();
    assert_eq!((cache.uid, cache.gid), (owner, owner));
    let point = changed.get("usr/bin/nvidia-smi").unwrap();
    assert_eq!((point.uid, point.gid, point.size), (owner, owner, 0));
}

/// Flags of the driver's mount that are locked in a less privileged namespace, and the result.
const LOCKS: &[(&str, &str, Locked)] = &[
    ("ro", "ro", Locked::Works),
    ("nosuid", "nosuid", Locked::Works),
    ("noatime", "noatime", Locked::Works),
    // NVML itself cannot be executed there.
    (
        "noexec",
        "noexec",
        Locked::Refused("its file system may be mounted noexec"),
    ),
    (
        "nodev",
        "nodev",
        Locked::Refused(
            "/driver/dev is mounted nodev or noexec, which a user namespace cannot clear",
        ),
    ),
    (
        "everything",
        "ro,nosuid,nodev,noexec,noatime",
        Locked::Refused("its file system may be mounted noexec"),
    ),
];

#[derive(Clone, Copy, Debug)]
enum Locked {
    Works,
    /// With this hint.
    Refused(&'static str),
}

fn locked(flags: &str, expected: Locked) {
    let world = World::new(&Builder::default(), 0);
    let before = Tree::of(&world.root).unwrap();
    let lock = format!(
        "mount --bind \"$driver\" \"$driver\" && mount -o remount,bind,{flags} \"$driver\""
    );
    for shim in [
        "",
        "open_tree move_mount fsopen fsconfig fsmount mount_setattr",
    ] {
        let arguments = "--no-cgroups --device=0";
        let mut setup = String::new();
        if !shim.is_empty() {
            // Before Linux 5.2: by mount(2), which replaces all flags at once.
            let without = world.shim();
            setup = format!(
                "printf '#!/bin/sh\\nexec {without} {shim} -- {} \"$@\"\\n' > run/cli; chmod 755 run/cli; \
                 cli=\"$root/run/cli\"",
                world.cli().display()
            );
        }
        let output = world.configure(Root::Host, &lock, &setup, arguments, "");
        let (out, err) = text(&output);
        match expected {
            Locked::Works => {
                assert!(out.starts_with("status 0\n"), "{shim} {out}{err}");
            }
            Locked::Refused(hint) => {
                assert!(out.starts_with("status 1\n"), "{shim} {out}{err}");
                assert!(err.contains(hint), "{shim} {err}");
                let after = Tree::of(&world.root).unwrap();
                assert_eq!(after.changes_since(&before), [""; 0]);
            }
        }
    }
}

/// Firmware, manifests and the like are read, not executed.
fn locked_data() {
    let world = World::new(&Builder::default(), 0);
    let lock = "for place in lib/firmware; do mount --bind \"$driver/$place\" \"$driver/$place\"
        mount -o remount,bind,noexec \"$driver/$place\"; done";
    let look = "awk '/firmware.* .*noexec/ { n++ } END { print n }' proc/self/mountinfo";
    let arguments = "--no-cgroups --device=0 --graphics --compute";
    let (out, err) = text(&world.configure(Root::Host, lock, "", arguments, look));
    assert!(out.starts_with("status 0\n"), "{out}{err}");
    assert!(!err.contains("noexec"), "{err}");
    let count = out.lines().last().and_then(|line| line.parse().ok());
    assert!(count > Some(0), "{out}{err}");
}

impl World {
    fn shim(&self) -> String {
        let program = nvc_testkit::cli::program().unwrap();
        program.with_file_name("nvc-without").display().to_string()
    }
}

fn a_read_only_root_cannot_be_unlocked() {
    let world = World::new(&Builder::default().no_nodes(), 0);
    let before = Tree::of(&world.root).unwrap();
    let lock = "mount --bind \"$root\" \"$root\" && mount -o remount,bind,ro \"$root\"";
    let output = world.configure(Root::Host, lock, "", ROOTLESS, "");
    let (out, err) = text(&output);
    assert!(out.starts_with("status 1\n"), "{out}{err}");
    assert!(
        err.contains("hint: the container's root is read-only"),
        "{err}"
    );
    let after = Tree::of(&world.root).unwrap();
    assert_eq!(after.changes_since(&before), [""; 0]);
}

/// The namespace does not map the root's owner: nothing can be created there.
fn an_owner_without_a_map() {
    let world = World::new(&Builder::default().no_nodes(), 5000);
    let before = Tree::of(&world.root).unwrap();
    let output = world.configure(Root::User(1000), "", "", ROOTLESS, "");
    let (out, err) = text(&output);
    assert!(out.starts_with("status 1\n"), "{out}{err}");
    assert!(err.contains("permission denied"), "{err}");
    let after = Tree::of(&world.root).unwrap();
    assert_eq!(after.changes_since(&before), [""; 0]);
}

/// The rules belong to the host: a namespace's root may not change them, whatever its user outside.
fn a_cgroup_that_may_not_be_changed() {
    let world = World::new(&Builder::default().lenient(), 0);
    let before = Tree::of(&world.root).unwrap();
    let cgroup = DeviceCgroup::v1().unwrap();
    let output = in_cgroup(&world, &cgroup);
    let (out, err) = text(&output);
    assert!(out.starts_with("status 1\n"), "{out}{err}");
    assert!(err.contains("failed to add device rules"), "{err}");
    assert!(err.contains("--no-cgroups"), "{err}");
    let after = Tree::of(&world.root).unwrap();
    assert_eq!(after.changes_since(&before), [""; 0]);
}

/// The need for a change is determined for each container.
fn a_cgroup_that_need_not_be_changed() {
    let world = World::new(&Builder::default(), 0);
    let cgroup = DeviceCgroup::v1_allowing_all().unwrap();
    let output = in_cgroup(&world, &cgroup);
    let (out, err) = text(&output);
    assert!(out.starts_with("status 0\n"), "{out}{err}");
}

fn in_cgroup(world: &World, cgroup: &DeviceCgroup) -> Output {
    let join = format!("echo $$ > {}/cgroup.procs", cgroup.directory().display());
    let sys = "mount --rbind /sys sys";
    world.configure(Root::Host, &join, sys, "--device=all", "")
}

/// Not even querying the attached programs is allowed.
fn a_version_2_cgroup_that_may_not_be_changed() {
    let world = World::new(&Builder::default().lenient(), 0);
    let before = Tree::of(&world.root).unwrap();
    let output = in_filtered_cgroup(&world, &["1:3"]);
    let (out, err) = text(&output);
    assert!(out.starts_with("status 1\n"), "{out}{err}");
    assert!(err.contains("bpf_prog_query"), "{err}");
    assert!(err.contains("--no-cgroups"), "{err}");
    let after = Tree::of(&world.root).unwrap();
    assert_eq!(after.changes_since(&before), [""; 0]);
}

/// A rootless engine: the rules cannot be changed, but nothing denies the devices.
fn a_version_2_cgroup_that_need_not_be_changed() {
    let world = World::new(&Builder::default(), 0);
    let driver = machine::driver();
    let devices = driver.fill("1:3 195:255 195:0 UVM:0 UVM:1");
    let devices: Vec<_> = devices.split(' ').collect();
    let output = in_filtered_cgroup(&world, &devices);
    let (out, err) = text(&output);
    assert!(out.starts_with("status 0\n"), "{out}{err}");
}

/// Configures a container in a cgroup with a filter that allows these devices.
fn in_filtered_cgroup(world: &World, devices: &[&str]) -> Output {
    let cgroup = DeviceCgroup::v2().unwrap();
    let cgroup = cgroup.attach(Attach::Multi, devices).unwrap();
    let join = format!("echo $$ > {}/cgroup.procs", cgroup.directory().display());
    let hierarchy = machine::cgroup_hierarchy(2).unwrap();
    let path = cgroup.directory().strip_prefix(hierarchy).unwrap();
    // Version 1 has precedence if it is mounted, so it is hidden.
    let show = format!(
        "mount -t proc proc /proc; mount --bind \"$driver/proc/devices\" /proc/devices
         echo 0::/{} > run/cgroup; mount --bind run/cgroup /proc/$$/cgroup",
        path.display()
    );
    world.configure(Root::Host, &join, &show, "--device=all --pid=$$", "")
}
