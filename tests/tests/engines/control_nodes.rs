//! Runs containers in mode jit-cdi on a machine where nothing has used the driver since boot: its control nodes are
//! missing, and must be created first (`load-kmods`). In mode legacy, nodes that the engine names stay.

use std::fs;

use nvc_testkit::profile::Profile;
use nvc_tests::bundle::Bundle;
use nvc_tests::world::{World, complaint, printed};
use serde_json::json;

use super::machines::world;
use super::runtimes::Body;

/// Name and body of each test; the argument is the low-level runtime.
pub(crate) const TESTS: &[(&str, Body)] = &[
    ("creates_control_nodes", created),
    ("says_what_fails_without_control_nodes", impossible),
    ("creates_no_control_nodes_if_told", switched_off),
    ("keeps_the_nodes_of_the_engine", of_the_engine),
];

const LISTED: &str =
    "nvidia_uvm 1 0 - Live 0x0\nnvidia_modeset 1 0 - Live 0x0\nnvidia 1 2 - Live 0x0\n";

/// Creates an environment whose driver has these modules, and no nodes of nvidia-uvm.
fn fresh(runtime: &str, modules: &str) -> World {
    let world = world(runtime, "jit-cdi", &Profile::default());
    let driver = world.driver;
    fs::write(driver.path("/proc/modules"), modules).unwrap_or_else(|error| panic!("{error}"));
    for node in ["nvidia-uvm", "nvidia-uvm-tools"] {
        let node = driver.path(format!("/dev/{node}"));
        fs::remove_file(&node).unwrap_or_else(|error| panic!("{error}"));
    }
    world
}

fn bundle(world: World) -> Bundle {
    let script = "for n in /dev/nvidia-uvm*; do stat -c '%n %a' $n; done";
    Bundle::new(world, &["NVIDIA_VISIBLE_DEVICES=0"], script)
}

fn created(runtime: &str) {
    let bundle = bundle(fresh(runtime, LISTED));
    let nodes = "/dev/nvidia-uvm 666\n/dev/nvidia-uvm-tools 666\n";
    assert_eq!(printed(&mut bundle.run()), nodes, "{}", bundle.world.log());
    assert!(!bundle.world.log().contains("cannot create"));
}

/// No module is loaded, and modprobe cannot help.
fn impossible(runtime: &str) {
    let bundle = bundle(fresh(runtime, ""));
    let _ = bundle.run().output();
    let log = bundle.world.log();
    let root = bundle.world.driver.root().display();
    for part in [
        "cannot create /dev/nvidia-uvm (cannot load kernel module nvidia: ",
        "CUDA will fail in the container with error 999",
        &format!(
            "nvidia-ctk system create-device-nodes --load-kernel-modules --control-devices --root={root}"
        ),
    ] {
        assert!(log.contains(part), "{part}: {log}");
    }
}

fn switched_off(runtime: &str) {
    let world = fresh(runtime, LISTED);
    let file = world.path("config.toml");
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{error}"));
    let text = text.replace(
        "[nvidia-container-cli]\n",
        "[nvidia-container-cli]\nload-kmods = false\n",
    );
    fs::write(&file, text).unwrap_or_else(|error| panic!("{error}"));
    let bundle = bundle(world);
    let said = complaint(&mut bundle.run());
    let node = bundle.world.driver.path("/dev/nvidia-uvm");
    assert!(!node.exists(), "{said}");
}

/// config.json names a node with the owner that the container's user needs; another number is none of ours.
fn of_the_engine(runtime: &str) {
    let world = world(runtime, "legacy", &Profile::default());
    let script = "stat -c '%n %u %g %a' /dev/nvidia0 /dev/nvidiactl /dev/nvidia-uvm";
    let bundle = Bundle::new(world, &["NVIDIA_VISIBLE_DEVICES=0"], script);
    let mut spec = bundle.spec();
    let node = |path: &str, major: u32, minor: u32| json!({"path": path, "type": "c", "major": major, "minor": minor, "fileMode": 0o640, "uid": 5, "gid": 7});
    spec["linux"]["devices"] = json!([node("/dev/nvidia0", 195, 0), node("/dev/nvidia-uvm", 1, 3)]);
    bundle.write(&spec);
    let expected = "/dev/nvidia0 5 7 640\n/dev/nvidiactl 0 0 666\n/dev/nvidia-uvm 0 0 666\n";
    assert_eq!(
        printed(&mut bundle.run()),
        expected,
        "{}",
        bundle.world.log()
    );
}
