//! Makes containers with hooks for a real runtime.

use std::fs;
use std::path::PathBuf;

use nvc_testkit::cli::{self, Outcome, Run};
use nvc_testkit::machine::{self, Scratch};
use nvc_testkit::rootfs::{self, Layout};
use nvc_tests::apply::{own_devices, plan, profile};
use serde_json::{Value, json};

/// Commands for the container's process.
pub(super) const LOOK: &str = "cd /proc/driver/nvidia; cat params; cd gpus; echo gpus *; ls -l /usr/lib/x86_64-linux-gnu; \
    cat /proc/self/mountinfo; cat /etc/nvidia/nvidia-application-profiles-rc.d/*";

pub(super) struct Bundle {
    pub(super) scratch: Scratch,
    pub(super) config: Value,
    /// Shell commands that run in the runtime's mount namespace first.
    pub(super) before: String,
}

impl Bundle {
    /// Creates a container with GPU 0 and these hooks.
    pub(super) fn new(hooks: &[Vec<String>]) -> Self {
        machine::driver();
        let scratch = Scratch::new().unwrap();
        let root = scratch.join("bundle/rootfs");
        rootfs::Builder::new(Layout::Debian).build(root).unwrap();
        let program = cli::beside("nvidia-cdi-hook").unwrap();
        let hook = |words: &Vec<String>| {
            let words = [&["nvidia-cdi-hook".to_owned()], words.as_slice()].concat();
            json!({ "path": program, "args": words, "env": ["NVIDIA_CTK_DEBUG=false"] })
        };
        let hooks: Vec<Value> = hooks.iter().map(hook).collect();
        let mount = |place: &str, kind: &str, source: &str, options: &[&str]| json!({ "destination": place, "type": kind, "source": source, "options": options });
        let config = json!({
            "ociVersion": "1.0.2",
            "process": {
                "terminal": false, "user": { "uid": 0, "gid": 0 }, "args": ["sh", "-c", LOOK],
                "env": ["PATH=/usr/bin:/bin"], "cwd": "/", "noNewPrivileges": true,
            },
            "root": { "path": "rootfs", "readonly": false },
            "mounts": [
                // With the simulated driver mounted in it.
                mount("/proc", "bind", "/proc", &["rbind"]),
                mount("/dev", "tmpfs", "tmpfs", &["nosuid", "mode=755", "size=65536k"]),
            ],
            "hooks": { "createContainer": hooks },
            "linux": {
                "namespaces": [{ "type": "mount" }],
                "devices": [{ "path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0 }],
            },
            // crun sends the output of hooks to /dev/null.
            "annotations": { "run.oci.hooks.stderr": "/proc/self/fd/2" },
        });
        Self {
            scratch,
            config,
            before: "true".into(),
        }
    }

    pub(super) fn root(&self) -> PathBuf {
        self.scratch.join("bundle/rootfs")
    }

    /// Lets system calls of the first hook fail, with ENOSYS unless EPERM is the first word.
    pub(super) fn without(&mut self, calls: &[&str]) {
        let hook = &mut self.config["hooks"]["createContainer"][0];
        let program = hook["path"].as_str().unwrap().to_owned();
        let own = hook["args"].as_array_mut().unwrap().split_off(1);
        let words = [&["nvc-without"], calls, &["--", &program]].concat();
        let words = words.into_iter().map(Value::from);
        hook["args"] = words.chain(own).collect();
        let without = cli::beside("nvc-without").unwrap();
        hook["path"] = without.display().to_string().into();
    }

    /// Runs the container to its end, in a separate mount namespace.
    pub(super) fn run(&self, runtime: &str) -> Outcome {
        let path = self.scratch.join("bundle");
        let config = serde_json::to_vec(&self.config).unwrap();
        fs::write(path.join("config.json"), config).unwrap();
        let state = self.scratch.join("state");
        // crun does not support machines with both cgroup versions mounted.
        let script = format!(
            "umount /sys/fs/cgroup/unified 2>/dev/null; {} && cd \"$1\" && exec \"$0\" --root \"$2\" run \"$3\"",
            self.before
        );
        let own = self
            .scratch
            .path()
            .file_name()
            .unwrap()
            .display()
            .to_string();
        let name = format!("nvc-cdi-{runtime}-{}-{own}", std::process::id());
        let run = Run::other("unshare").args(["--mount", "--propagation", "private", "sh", "-c"]);
        let run = run.args([script.as_str(), runtime]).args([path, state]);
        run.args([name]).outcome().unwrap()
    }

    #[track_caller]
    pub(super) fn succeeds(&self, runtime: &str) -> String {
        let outcome = self.run(runtime);
        assert_eq!(outcome.status, Some(0), "{outcome:#?}");
        outcome.stdout
    }
}

pub(super) fn words(line: &str) -> Vec<String> {
    line.split(' ').map(String::from).collect()
}

/// Returns the hook of a live specification for a driver root.
pub(super) fn live(root: &str) -> Vec<String> {
    let plan = plan(&[own_devices(true), profile()]);
    words(&format!("apply --discover --driver-root {root} {plan}"))
}

#[track_caller]
pub(super) fn sees(seen: &str, texts: &[&str]) {
    for text in texts {
        assert!(seen.contains(text), "{text}: {seen}");
    }
}
