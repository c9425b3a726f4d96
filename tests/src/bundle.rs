//! Makes bundles for the runtime, without an engine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::world::{World, printed};

/// A bundle whose process runs shell commands.
#[derive(Debug)]
pub struct Bundle {
    pub world: World,
    path: PathBuf,
}

impl Bundle {
    pub fn new(world: World, env: &[&str], script: &str) -> Self {
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

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn spec(&self) -> Value {
        let text = fs::read_to_string(self.path.join("config.json")).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Allows the process to create nodes.
    pub fn allow_mknod(&self) {
        let mut spec = self.spec();
        for set in ["bounding", "effective", "permitted"] {
            if let Some(list) = spec["process"]["capabilities"][set].as_array_mut() {
                list.push(json!("CAP_MKNOD"));
            }
        }
        self.write(&spec);
    }

    /// Adds a mount that requests a device.
    pub fn request_by_mount(&self, name: &str) {
        let mut spec = self.spec();
        let mount = json!({
            "destination": format!("/var/run/nvidia-container-devices/{name}"), "source": "/dev/null",
            "type": "bind", "options": ["bind"],
        });
        if let Some(mounts) = spec["mounts"].as_array_mut() {
            mounts.push(mount);
        }
        self.write(&spec);
    }

    pub fn write(&self, spec: &Value) {
        fs::write(self.path.join("config.json"), spec.to_string())
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// Prepares a run of the bundle by our runtime.
    pub fn run(&self) -> Command {
        self.run_with("nvidia-container-runtime")
    }

    /// Prepares a run of the bundle by any runtime.
    pub fn run_with(&self, program: &str) -> Command {
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

/// Returns the arguments of our prestart hook.
pub fn hook_words(spec: &Value) -> Vec<String> {
    let entries = spec["hooks"]["prestart"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let ours = entries.iter().find(|entry| {
        let path = entry["path"].as_str().unwrap_or_default();
        path.ends_with("/nvidia-container-runtime-hook")
    });
    let words = ours.and_then(|entry| entry["args"].as_array());
    let words = words.into_iter().flatten().filter_map(Value::as_str);
    words.map(String::from).collect()
}
