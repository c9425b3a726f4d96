//! Tests `configure` as a createContainer hook: in the container's mount namespace, under real runtimes.
//!
//! The hook is examples/rust/hook.rs; the container's own process then reports its view.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use nvc_testkit::cli::{Outcome, Run};
use nvc_testkit::compile::{Source, compiled};
use nvc_testkit::files;
use nvc_testkit::harness::Need::{Command as Program, Root};
use nvc_testkit::harness::{self, Test, test};
use nvc_testkit::machine::{self, Scratch};
use nvc_testkit::mounts;
use nvc_testkit::rootfs::{self, Layout};
use serde_json::{Value, json};

/// Commands for the container's process.
const LOOK: &str = "cat /proc/driver/nvidia/params; cd /proc/driver/nvidia/gpus; echo gpus *; \
    cd /dev; ls nvidia*; cd /usr/bin; ls nvidia*; cat /proc/self/mountinfo; \
    echo > /touched && echo the root can be written";

fn main() -> ExitCode {
    let mut tests: Vec<Test> = Vec::new();
    for runtime in ["runc", "crun"] {
        let named = |name: &str, run: fn(&str)| {
            test(
                format!("{name}_{runtime}"),
                &[Root, Program(runtime)],
                move || run(runtime),
            )
        };
        tests.extend([
            named("a_gpu", a_gpu),
            named("a_read_only_root", a_read_only_root),
            named("a_user_namespace", a_user_namespace),
            named("nothing_shows_on_the_host", nothing_shows_on_the_host),
            named("a_failure_undoes_everything", a_failure_undoes_everything),
        ]);
    }
    tests.push(test(
        "an_id_mapped_root_runc",
        &[Root, Program("runc")],
        || an_id_mapped_root("runc"),
    ));
    tests.push(test(
        "a_forbidden_gpu_does_not_exist_runc",
        &[Root, Program("runc")],
        a_forbidden_gpu_does_not_exist,
    ));
    harness::main(tests)
}

struct Bundle {
    scratch: Scratch,
    config: Value,
}

impl Bundle {
    /// Creates a Debian root, and a configuration with the hook.
    fn new(ldconfig: &[&str]) -> Self {
        let scratch = Scratch::new().unwrap();
        let root = scratch.join("bundle/rootfs");
        rootfs::Builder::new(Layout::Debian).build(root).unwrap();
        let mut arguments = vec!["hook".to_owned(), "0".to_owned()];
        arguments.push(machine::driver().root().display().to_string());
        arguments.extend(ldconfig.iter().map(ToString::to_string));
        let test = std::env::current_exe().unwrap();
        let target = test.parent().and_then(Path::parent).unwrap();
        // The root of a user namespace cannot execute a file below the host root's home.
        let program = scratch.join("hook");
        files::copy_program(&target.join("examples/hook"), &program).unwrap();
        let hook = json!({ "path": program, "args": arguments, "env": ["PATH=/usr/bin"] });
        let mount = |place: &str, kind: &str, source: &str, options: &[&str]| json!({ "destination": place, "type": kind, "source": source, "options": options });
        let gpus = json!({ "allow": true, "type": "c", "major": 195, "access": "rw" });
        let config = json!({
            "ociVersion": "1.0.2",
            "process": {
                "terminal": false,
                "user": { "uid": 0, "gid": 0 },
                "args": ["sh", "-c", LOOK],
                "env": ["PATH=/usr/bin:/bin"],
                "cwd": "/",
                "noNewPrivileges": true,
            },
            "root": { "path": "rootfs", "readonly": false },
            "mounts": [
                // With the simulated driver mounted in it.
                mount("/proc", "bind", "/proc", &["rbind"]),
                mount("/dev", "tmpfs", "tmpfs", &["nosuid", "mode=755", "size=65536k"]),
            ],
            "hooks": { "createContainer": [hook] },
            // NVML hides GPUs that the cgroup forbids; containers of real drivers have this rule.
            "linux": {
                "namespaces": [{ "type": "mount" }],
                "resources": { "devices": [{ "allow": false, "access": "rwm" }, gpus] },
            },
            // crun sends the output of hooks to /dev/null.
            "annotations": { "run.oci.hooks.stderr": scratch.join("stderr") },
        });
        Self { scratch, config }
    }

    fn path(&self) -> PathBuf {
        self.scratch.join("bundle")
    }

    fn root(&self) -> PathBuf {
        self.path().join("rootfs")
    }

    /// Runs the container to its end, in a separate mount namespace.
    fn run(&self, runtime: &str) -> Outcome {
        let config = serde_json::to_vec(&self.config).unwrap();
        fs::write(self.path().join("config.json"), config).unwrap();
        let state = self.scratch.join("state");
        // crun does not support machines with both cgroup versions mounted.
        let script = "umount /sys/fs/cgroup/unified 2>/dev/null; cd \"$1\" && exec \"$0\" --root \"$2\" run \"$3\"";
        let name = format!("nvc-here-{runtime}-{}", std::process::id());
        let run = Run::other("unshare").args(["--mount", "--propagation", "private", "sh", "-c"]);
        let run = run.args([script, runtime]).args([self.path(), state]);
        run.args([format!(
            "{name}-{}",
            self.scratch.path().file_name().unwrap().display()
        )])
        .outcome()
        .unwrap()
    }
}

#[track_caller]
fn check(bundle: &Bundle, outcome: &Outcome) {
    let hook = fs::read_to_string(bundle.scratch.join("stderr")).unwrap_or_default();
    assert_eq!(outcome.status, Some(0), "{hook} {outcome:#?}");
    let seen = &outcome.stdout;
    for text in [
        "ModifyDeviceFiles: 0",
        "gpus 0000:3b:00.0\n",
        "nvidia-smi\n",
        "nvidia0\n",
        "nvidiactl\n",
        "/libnvidia-ml.so.",
        "/libcuda.so.",
    ] {
        assert!(seen.contains(text), "{text}: {outcome:#?}");
    }
    assert!(!seen.contains("nvidia1\n"), "{outcome:#?}");
    // Every mount of ours is restricted.
    let of_driver = seen.lines().filter(|line| line.contains(" /usr/lib/"));
    for line in of_driver {
        assert!(line.contains(" ro,nosuid,nodev"), "{line}");
    }
}

fn a_gpu(runtime: &str) {
    for ldconfig in [&[][..], &["@/sbin/ldconfig"]] {
        let bundle = Bundle::new(ldconfig);
        let outcome = bundle.run(runtime);
        check(&bundle, &outcome);
        assert!(
            outcome.stdout.contains("the root can be written"),
            "{outcome:#?}"
        );
        let cache = fs::read(bundle.root().join("etc/ld.so.cache")).unwrap();
        let cache = String::from_utf8_lossy(&cache).into_owned();
        assert!(cache.contains("libcuda.so.1"), "{cache}");
    }
}

/// crun makes the root read-only before it runs hooks, runc afterwards. For the container it is read-only with both.
fn a_read_only_root(runtime: &str) {
    let mut bundle = Bundle::new(&[]);
    bundle.config["root"]["readonly"] = true.into();
    bundle.config["process"]["args"][2] = format!("{LOOK}; true").into();
    let outcome = bundle.run(runtime);
    check(&bundle, &outcome);
    assert!(
        !outcome.stdout.contains("the root can be written"),
        "{outcome:#?}"
    );
    let cache = fs::read(bundle.root().join("etc/ld.so.cache")).unwrap();
    assert!(String::from_utf8_lossy(&cache).contains("libcuda.so.1"));
}

/// Ids of the container's user namespace.
const FIRST: u32 = 200_000;

fn in_user_namespace(bundle: &mut Bundle) {
    let map = json!([{ "containerID": 0, "hostID": FIRST, "size": 65536 }]);
    let linux = &mut bundle.config["linux"];
    linux["uidMappings"] = map.clone();
    linux["gidMappings"] = map;
    let namespaces = linux["namespaces"].as_array_mut().unwrap();
    namespaces.push(json!({ "type": "user" }));
}

fn a_user_namespace(runtime: &str) {
    let mut bundle = Bundle::new(&[]);
    in_user_namespace(&mut bundle);
    let owner = format!("{FIRST}:{FIRST}");
    let mut command = Command::new("chown");
    let status = command
        .args(["-R", "-h", &owner])
        .arg(bundle.root())
        .status();
    assert!(status.unwrap().success());
    if runtime == "crun" {
        // Omits mounts below /proc.
        let driver = json!({
            "destination": "/proc/driver", "type": "bind", "source": "/proc/driver", "options": ["bind"],
        });
        bundle.config["mounts"].as_array_mut().unwrap().push(driver);
    }
    check(&bundle, &bundle.run(runtime));
    // Files created in the root belong to its owner.
    use std::os::unix::fs::MetadataExt;
    let made = fs::symlink_metadata(bundle.root().join("usr/bin/nvidia-smi")).unwrap();
    assert_eq!(made.uid(), FIRST);
}

/// The files belong to the host's root; the mount maps them to the container's.
fn an_id_mapped_root(runtime: &str) {
    let mut bundle = Bundle::new(&[]);
    in_user_namespace(&mut bundle);
    let (root, mapped) = (bundle.root(), bundle.scratch.join("mapped"));
    fs::create_dir(&mapped).unwrap();
    let tool = bundle.scratch.join("idmap");
    files::file(&tool, &compiled(Source::IdMap, &[]).unwrap()[..], 0o755).unwrap();
    let mut command = Command::new(tool);
    command
        .args([&root, &mapped])
        .args([FIRST.to_string(), "65536".into()]);
    assert!(command.status().unwrap().success());
    bundle.config["root"]["path"] = mapped.display().to_string().into();
    check(&bundle, &bundle.run(runtime));
    use std::os::unix::fs::MetadataExt;
    let made = fs::symlink_metadata(root.join("usr/bin/nvidia-smi")).unwrap();
    assert_eq!(made.uid(), 0);
}

fn nothing_shows_on_the_host(runtime: &str) {
    let bundle = Bundle::new(&[]);
    let before = mounts::of("self").unwrap();
    check(&bundle, &bundle.run(runtime));
    assert_eq!(mounts::of("self").unwrap(), before);
}

/// NVML hides what the cgroup forbids, so the hook has no GPU to give.
fn a_forbidden_gpu_does_not_exist() {
    let mut bundle = Bundle::new(&[]);
    bundle.config["linux"]["resources"] =
        json!({ "devices": [{ "allow": false, "access": "rwm" }] });
    let outcome = bundle.run("runc");
    let gave = |node: &str| outcome.stdout.contains(&format!("{node}\n"));
    assert!(!gave("nvidia0") && !gave("nvidia1"), "{outcome:#?}");
}

fn a_failure_undoes_everything(runtime: &str) {
    let bundle = Bundle::new(&["@/no/such/ldconfig"]);
    let names = |directory: &str| -> Vec<_> {
        let entries = fs::read_dir(bundle.root().join(directory)).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let places = ["usr/bin", "usr/lib", "usr/lib/x86_64-linux-gnu", "etc"];
    let before = places.map(names);
    let outcome = bundle.run(runtime);
    assert_ne!(outcome.status, Some(0), "{outcome:#?}");
    assert_eq!(places.map(names), before);
}
