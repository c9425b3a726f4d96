//! Runs bundles by our runtime with runc and with crun, without an engine.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use super::world::{World, complaint, look, printed, sight};

/// A test; the argument is the low-level runtime.
pub(crate) type Body = fn(&str);

/// Name and body of each test.
pub(crate) const TESTS: &[(&str, Body)] = &[
    ("gives_one_gpu", gives_one_gpu),
    ("leaves_others_alone", leaves_others_alone),
    ("says_what_is_missing", says_what_is_missing),
];

/// A bundle whose process runs shell commands.
pub(crate) struct Bundle {
    pub world: World,
    path: PathBuf,
}

impl Bundle {
    pub(crate) fn new(world: World, env: &[&str], script: &str) -> Self {
        let path = world.path("bundle");
        fs::create_dir(&path).unwrap_or_else(|error| panic!("{error}"));
        world.rootfs("bundle/rootfs");
        printed(Command::new("runc").arg("spec").current_dir(&path));
        let bundle = Self { world, path };
        let mut spec = bundle.spec();
        spec["process"]["terminal"] = json!(false);
        spec["process"]["args"] = json!(["sh", "-c", script]);
        spec["root"]["readonly"] = json!(false);
        if let Some(list) = spec["process"]["env"].as_array_mut() {
            list.extend(env.iter().map(|entry| json!(entry)));
        }
        bundle.write(&spec);
        bundle
    }

    pub(crate) fn spec(&self) -> Value {
        let text = fs::read_to_string(self.path.join("config.json")).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Allows the process to create nodes.
    pub(crate) fn allow_mknod(&self) {
        let mut spec = self.spec();
        for set in ["bounding", "effective", "permitted"] {
            if let Some(list) = spec["process"]["capabilities"][set].as_array_mut() {
                list.push(json!("CAP_MKNOD"));
            }
        }
        self.write(&spec);
    }

    pub(crate) fn write(&self, spec: &Value) {
        fs::write(self.path.join("config.json"), spec.to_string())
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// Prepares a run of the bundle by our runtime.
    pub(crate) fn run(&self) -> Command {
        self.run_with("nvidia-container-runtime")
    }

    /// Prepares a run of the bundle by any runtime.
    pub(crate) fn run_with(&self, program: &str) -> Command {
        let mut command = self.world.command(program);
        // It is also the name of a cgroup, and all tests share that namespace.
        let name = self.world.name();
        command
            .arg("--root")
            .arg(self.world.path("state"))
            .args(["run", &name])
            .current_dir(&self.path);
        command
    }
}

fn gives_one_gpu(runtime: &str) {
    let world = World::new(runtime, "legacy", "");
    let bundle = Bundle::new(world, &["NVIDIA_VISIBLE_DEVICES=1"], &look());
    let seen = printed(&mut bundle.run());
    assert_eq!(seen, sight(bundle.world.driver, 1));
    // Also in config.json: rules that are only in the cgroup are lost when systemd reloads.
    let spec = bundle.spec();
    let devices = spec["linux"]["devices"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let mut paths: Vec<&str> = devices
        .iter()
        .filter_map(|device| device["path"].as_str())
        .collect();
    paths.sort_unstable();
    let expected = [
        "/dev/nvidia-modeset",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia1",
        "/dev/nvidiactl",
    ];
    assert_eq!(paths, expected);
    let rules = spec["linux"]["resources"]["devices"].to_string();
    assert!(rules.contains("195"), "{rules}");
    let log = bundle.world.log();
    assert!(
        log.contains("devices 1 by NVIDIA_VISIBLE_DEVICES; mode legacy"),
        "{log}"
    );
}

fn leaves_others_alone(runtime: &str) {
    let world = World::new(runtime, "legacy", "");
    let bundle = Bundle::new(
        world,
        &["NVIDIA_VISIBLE_DEVICES=void"],
        "ls /dev; ls /usr/bin/nvidia-smi",
    );
    let before = bundle.spec();
    let output = bundle
        .run()
        .output()
        .unwrap_or_else(|error| panic!("{error}"));
    let seen = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!seen.contains("nvidia"), "{seen}");
    let mut after = bundle.spec();
    // The hook of the simulated kernel.
    if let Some(object) = after.as_object_mut() {
        object.remove("hooks");
    }
    assert_eq!(before, after);
}

fn says_what_is_missing(runtime: &str) {
    let world = World::new(runtime, "legacy", "");
    let bundle = Bundle::new(world, &["NVIDIA_VISIBLE_DEVICES=7"], "true");
    let said = complaint(&mut bundle.run());
    assert!(
        said.contains("7: unknown device") || runtime == "crun",
        "{said}"
    );
}
