//! Tests containers with their own user namespaces that root configures, as daemons do.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Child;

use nvc_testkit::cli::Run;
use nvc_testkit::compile::Source;
use nvc_testkit::driver::Builder;
use nvc_testkit::tree::Tree;
use nvc_tests::{command_line, host_ldconfig};

use super::world::{Root, World, expect_line};

pub(crate) const FIRST: u32 = 100_000;

/// Starts a container that waits to be configured; `read` ends it.
pub(crate) fn container(world: &World, before: &str) -> (Child, u32) {
    let mut child = world.start(Root::Range(FIRST), before, "echo ready; read end || true");
    expect_line(&mut child, "ready");
    // unshare(1) waits for the process in the new pid namespace, which is the container's.
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let inner = fs::read_to_string(children).unwrap();
    let inner = inner.split_whitespace().next().unwrap().parse().unwrap();
    (child, inner)
}

fn configure(world: &World, pid: u32) {
    run(world, pid, &host_ldconfig()).succeeds();
}

/// Prepares `configure` with an ldconfig.
pub(crate) fn run(world: &World, pid: u32, ldconfig: &str) -> Run {
    let pid = format!("--pid={pid}");
    let words = [
        "configure",
        "--no-cgroups",
        &pid,
        ldconfig,
        "--utility",
        "--compute",
        "--device=0",
    ];
    let mut line = command_line(&world.driver, &words);
    line.push((&world.root).into());
    Run::cli(line)
}

/// Runs nvidia-smi as the container's root in all of its namespaces.
fn listing(world: &World, pid: u32) -> String {
    let pid = pid.to_string();
    let output = Run::other("nsenter")
        .args(["-t", &pid, "-U", "-m", "-p", "--", "chroot"])
        .args([&world.root])
        .args(["/usr/bin/nvidia-smi", "-L"])
        .env("NVIDIA_SIM_NO_NODES", "1")
        .outcome()
        .unwrap();
    format!("{}{}", output.stdout, output.stderr)
}

pub(crate) fn end(mut container: Child) {
    drop(container.stdin.take());
    container.wait().unwrap();
}

/// The files belong to the container's owner, as with Docker's `userns-remap`.
pub(crate) fn a_container_of_shifted_users() {
    let world = World::new(&Builder::default(), FIRST);
    let before = Tree::of(&world.root).unwrap();
    let (container, pid) = container(&world, "");
    configure(&world, pid);
    let listed = listing(&world, pid);
    assert!(listed.contains(&world.driver.listing(0, &[])), "{listed}");
    let after = Tree::of(&world.root).unwrap();
    check_owner(&before, &after, FIRST);
    // A second run finds everything in place.
    configure(&world, pid);
    end(container);
}

/// As on distributions whose nodes are for a group: the container's root is another user of the host.
pub(crate) fn closed_nodes() {
    let world = World::new(&Builder::default(), FIRST);
    let says = |mode: u32| {
        for node in ["nvidia0", "nvidiactl"] {
            let node = world.driver.path(format!("/dev/{node}"));
            fs::set_permissions(node, fs::Permissions::from_mode(mode)).unwrap();
        }
        let (mut child, pid) = container(&world, "");
        let outcome = run(&world, pid, &host_ldconfig()).outcome().unwrap();
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(outcome.status, Some(0), "{outcome:?}");
        outcome.stderr
    };
    let closed = says(0o660);
    for text in [
        "may not open",
        "/dev/nvidia0 (mode 0660, owner 0:0)",
        "/dev/nvidiactl (",
        "NVreg_DeviceFileMode=0666",
    ] {
        assert!(closed.contains(text), "{closed}");
    }
    assert!(!closed.contains("nvidia-uvm"), "{closed}");
    let open = says(0o666);
    assert!(!open.contains("may not open"), "{open}");
}

/// On disk the files belong to root; the mount maps them to the container's users.
pub(crate) fn an_idmapped_root() {
    let world = World::new(&Builder::default(), 0);
    let before = Tree::of(&world.root).unwrap();
    let tool = world.tool(Source::IdMap, "idmap");
    let shift = format!(
        "{} \"$root\" \"$root\" {FIRST} 65536; export bound=1",
        tool.display()
    );
    let (container, pid) = container(&world, &shift);
    configure(&world, pid);
    let listed = listing(&world, pid);
    assert!(listed.contains(&world.driver.listing(0, &[])), "{listed}");
    let after = Tree::of(&world.root).unwrap();
    check_owner(&before, &after, 0);
    configure(&world, pid);
    end(container);
}

/// Checks that all new files belong to this user.
fn check_owner(before: &Tree, after: &Tree, owner: u32) {
    let changes = after.changes_since(before);
    assert!(changes.len() > 5, "{changes:#?}");
    for path in ["etc/ld.so.cache", "usr/bin/nvidia-smi"] {
        let entry = after.get(path).unwrap();
        assert_eq!((entry.uid, entry.gid), (owner, owner), "{path}");
    }
    let foreign = changes
        .iter()
        .filter_map(|line| line.split(' ').nth(1))
        .filter(|path| after.get(path).is_some_and(|entry| entry.uid != owner));
    assert_eq!(foreign.count(), 0, "{changes:#?}");
}
