//! Tests our runtime with the inputs of engines, images and accidents: nothing is lost, and containers without GPUs are
//! unaffected.
//!
//! The real runtime is a script that reports how it was called.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;

use nvc_testkit::cli;
use serde_json::{Value, json};

/// A directory with a configuration, a stub for runc, and a bundle.
struct World {
    directory: tempfile::TempDir,
}

impl World {
    fn new(mode: &str) -> Self {
        Self::with(mode, "runc")
    }

    /// Creates one whose stub has this name.
    fn with(mode: &str, runtime: &str) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let world = Self { directory };
        let runc = world.path(runtime);
        let stub = "#!/bin/sh\necho \"executed $*\"\n";
        nvc_testkit::files::file(&runc, stub, 0o755).expect("a stub for runc");
        // A driver root that makes any access fail.
        let config = format!(
            "[nvidia-container-cli]\nroot = \"/no/such/driver\"\n[nvidia-container-runtime]\nmode = \"{mode}\"\n\
             runtimes = [\"{}\"]\n[nvidia-container-runtime-hook]\npath = \"/opt/hook\"\n",
            runc.display()
        );
        fs::write(world.path("config.toml"), config).expect("a configuration");
        fs::create_dir(world.path("bundle")).expect("a bundle");
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn spec(&self) -> PathBuf {
        self.path("bundle/config.json")
    }

    fn write(&self, text: impl AsRef<[u8]>) {
        fs::write(self.spec(), text).expect("a config.json");
    }

    fn read(&self) -> Vec<u8> {
        fs::read(self.spec()).expect("a config.json")
    }

    fn value(&self) -> Value {
        serde_json::from_slice(&self.read()).expect("JSON")
    }

    fn create_at(&self, bundle: &Path) -> Output {
        self.runtime()
            .args(["create", "--bundle"])
            .arg(bundle)
            .arg("name")
            .output()
            .expect("cargo build -p nvc-runtime comes first")
    }

    fn runtime(&self) -> Command {
        let program = cli::beside("nvidia-container-runtime").expect("it is beside the tests");
        let mut command = Command::new(program);
        command.env("NVIDIA_CTK_CONFIG_FILE_PATH", self.path("config.toml"));
        command
    }

    /// Runs our runtime in this directory; returns its output, which is the stub's.
    #[track_caller]
    fn passes_on(&self, directory: &Path, words: &[&str]) -> String {
        let mut command = self.runtime();
        let output = command.args(words).current_dir(directory).output();
        let output = output.expect("cargo build -p nvc-runtime comes first");
        assert!(output.status.success(), "{words:?}: {output:?}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(text, format!("executed {}\n", words.join(" ")));
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    #[track_caller]
    fn is_executed(&self) {
        let output = self.create_at(&self.path("bundle"));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success() && text.starts_with("executed create"),
            "{output:?}"
        );
    }

    /// Adds lines before the tables of the configuration.
    fn set_at_top(&self, lines: &str) {
        let file = self.path("config.toml");
        let text = fs::read_to_string(&file).expect("a configuration");
        fs::write(&file, format!("{lines}\n{text}")).expect("a configuration");
    }

    /// Runs our hook, which must fail; returns its messages.
    #[track_caller]
    fn is_refused_by_hook(&self) -> String {
        let bundle = self.path("bundle");
        let state = json!({"ociVersion": "1.0.2", "id": "x", "pid": 1, "bundle": bundle});
        let program = cli::beside("nvidia-container-runtime-hook").expect("it is beside the tests");
        fs::write(self.path("state"), state.to_string()).expect("a state");
        let output = Command::new(program)
            .arg(format!("-config={}", self.path("config.toml").display()))
            .arg("prestart")
            .stdin(fs::File::open(self.path("state")).expect("a state"))
            .output()
            .expect("cargo build -p nvc-hook comes first");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{text}");
        text
    }

    #[track_caller]
    fn is_refused(&self) -> String {
        let output = self.create_at(&self.path("bundle"));
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

fn spec(env: &[&str]) -> Value {
    json!({
        "ociVersion": "1.0.2",
        "process": {"env": env, "args": ["sh"], "cwd": "/"},
        "root": {"path": "rootfs"},
        "linux": {"namespaces": [{"type": "mount"}]},
    })
}

/// Returns true if the container has the hook of legacy mode, which does not depend on the driver.
fn has_hook(value: &Value) -> bool {
    value["hooks"]["prestart"][0]["path"] == "/opt/hook"
}

#[test]
fn mig_devices_are_managed_in_privileged_containers_only() {
    let world = World::new("jit-cdi");
    for (value, expected) in [
        (
            "all",
            "cannot set NVIDIA_MIG_CONFIG_DEVICES or NVIDIA_MIG_MONITOR_DEVICES in a non-privileged container",
        ),
        (
            "0",
            "invalid NVIDIA_MIG_CONFIG_DEVICES \"0\": only \"all\" is supported",
        ),
    ] {
        let value = format!("NVIDIA_MIG_CONFIG_DEVICES={value}");
        world.write(spec(&["NVIDIA_VISIBLE_DEVICES=all", &value]).to_string());
        let text = world.is_refused().replace("\\\"", "\"");
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn containers_without_gpus_do_not_notice_us() {
    for mode in ["auto", "legacy", "cdi", "jit-cdi", "csv"] {
        let world = World::new(mode);
        // Not formatted as a JSON serialiser would.
        let text = "{ \"ociVersion\":\"1.0.2\", \"process\": {\"env\":[\"A=1\"]},\n \"root\":{\"path\":\"r\"}, \"x\": 1.50 }  ";
        world.write(text);
        let before = fs::metadata(world.spec()).expect("metadata");
        world.is_executed();
        let after = fs::metadata(world.spec()).expect("metadata");
        assert_eq!(world.read(), text.as_bytes(), "{mode}");
        assert_eq!(
            (before.ino(), before.mtime_nsec()),
            (after.ino(), after.mtime_nsec()),
            "{mode}"
        );
    }
}

/// Without a config.json there is no request that could be lost.
#[test]
fn calls_without_a_config_are_passed_on() {
    for mode in ["auto", "legacy", "cdi", "jit-cdi", "csv"] {
        for runtime in ["runc", "crun"] {
            let world = World::with(mode, runtime);
            for line in [
                "run -h",
                "run --help",
                "create",
                "create --frob c",
                "create --bundle /no/such/bundle c",
                "create --bundle /dev/null c",
                "create c --bundle",
                "create c -f",
                "run --config /no/such/file c",
                "run --config= c",
            ] {
                let words: Vec<&str> = line.split(' ').collect();
                let said = world.passes_on(&world.path("bundle"), &words);
                assert_eq!(said, "", "{mode}: {line}");
            }
        }
    }
}

/// crun reads the file that its option names; runc has no such option.
#[test]
fn the_config_is_that_of_cruns_option() {
    let wants = spec(&["NVIDIA_VISIBLE_DEVICES=0"]).to_string();
    let wants_not = spec(&["A=1"]).to_string();
    for (line, in_bundle, elsewhere) in [
        ("run -b bundle c", true, false),
        ("run -b bundle -f other.json c", false, true),
        ("create --config=other.json --bundle bundle c", false, true),
        ("create --conf other.json -b bundle c", false, true),
        ("run -dfother.json -b bundle c", false, true),
        ("run -b bundle --config config.json c", true, false),
        ("run -b bundle --config bundle/config.json c", true, false),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        for (first, second) in [(&wants, &wants_not), (&wants_not, &wants)] {
            let world = World::with("legacy", "crun");
            let other = world.path("other.json");
            world.write(first);
            fs::write(&other, second).expect("a file");
            world.passes_on(&world.path(""), &words);
            assert_eq!(
                has_hook(&world.value()),
                in_bundle && first == &wants,
                "{line}"
            );
            let other = fs::read(other).expect("a file");
            let other = serde_json::from_slice(&other).expect("JSON");
            assert_eq!(has_hook(&other), elsewhere && second == &wants, "{line}");
        }
    }
    let world = World::with("legacy", "runc");
    world.write(&wants);
    fs::write(world.path("other.json"), &wants_not).expect("a file");
    let words = ["run", "-b", "bundle", "-f", "other.json", "c"];
    world.passes_on(&world.path(""), &words);
    assert!(has_hook(&world.value()));
}

/// The low-level runtime reads the file again, and would find the old one or nothing.
#[test]
fn a_config_that_cannot_be_edited_is_refused() {
    let world = World::with("legacy", "crun");
    let wants = spec(&["NVIDIA_VISIBLE_DEVICES=0"]).to_string();
    let refused = |config: &str, input: Stdio| {
        let mut command = world.runtime();
        let command = command.args(["run", "-b", "bundle", "-f", config, "c"]);
        let output = command.current_dir(world.path("")).stdin(input).output();
        let output = output.expect("cargo build -p nvc-runtime comes first");
        assert!(!output.status.success(), "{config}: {output:?}");
        assert!(output.stdout.is_empty(), "{config}: {output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let fifo = world.path("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status();
    assert!(made.expect("mkfifo").success());
    // Nobody writes to it: to open it would wait forever.
    let said = refused("fifo", Stdio::null());
    assert!(said.contains("it is not a regular file"), "{said}");
    let said = refused("/dev/stdin", Stdio::piped());
    assert!(said.contains("it is not a regular file"), "{said}");
    world.write(&wants);
    let file = fs::File::open(world.spec()).expect("a config.json");
    let said = refused("/dev/stdin", file.into());
    assert!(said.contains("it is the name of an open file"), "{said}");
}

#[test]
fn text_that_is_no_json_is_left_to_the_real_runtime_unless_it_mentions_gpus() {
    let world = World::new("legacy");
    let deep = "[".repeat(100_000);
    for text in ["", "{", "[]", "\u{feff}{}", "{\"process\": 7}", &deep] {
        world.write(text);
        world.is_executed();
        assert_eq!(world.read(), text.as_bytes());
    }
    for text in [
        "{\"process\": {\"env\": [\"NVIDIA_VISIBLE_DEVICES=0\"]",
        "{\"process\": \"NVIDIA_\"}",
    ] {
        world.write(text);
        let said = world.is_refused();
        assert!(said.contains("error reading OCI specification: "), "{said}");
    }
}

/// crun takes the first value of a key that is there twice, others the last or both.
#[test]
fn a_key_that_is_there_twice_is_refused_if_the_file_mentions_gpus() {
    let wants = r#"{"env": ["NVIDIA_VISIBLE_DEVICES=all"]}"#;
    for mode in ["legacy", "jit-cdi"] {
        let world = World::new(mode);
        for (first, second) in [(wants, "{}"), ("{}", wants)] {
            world.write(format!(
                r#"{{"ociVersion": "1.0.2", "process": {first}, "process": {second}}}"#
            ));
            let said = world.is_refused();
            assert!(
                said.contains("process") && said.contains("is there twice"),
                "{said}"
            );
            let said = world.is_refused_by_hook();
            assert!(said.contains("is there twice"), "{said}");
        }
        let text = r#"{"process": {}, "process": {}}"#;
        world.write(text);
        world.is_executed();
        assert_eq!(world.read(), text.as_bytes());
    }
}

/// Hooks are told the paths in JSON.
#[test]
fn a_path_that_is_not_utf_8_is_refused_for_a_gpu_container() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    for runtime in ["runc", "crun"] {
        let world = World::with("legacy", runtime);
        let bundle = world.directory.path().join(OsStr::from_bytes(b"b\xff"));
        fs::create_dir(&bundle).expect("a bundle");
        let file = bundle.join("config.json");
        fs::write(&file, spec(&["NVIDIA_VISIBLE_DEVICES=0"]).to_string()).expect("a config.json");
        for (option, path) in [("--bundle", &bundle), ("--config", &file)] {
            if (option, runtime) == ("--config", "runc") {
                continue;
            }
            let mut command = world.runtime();
            let output = command
                .arg("create")
                .arg(option)
                .arg(path)
                .arg("c")
                .output();
            let output = output.expect("cargo build -p nvc-runtime comes first");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{said}");
            assert!(said.contains("the path is not UTF-8"), "{said}");
        }
        // Nothing is to be told about another container.
        fs::write(&file, spec(&["A=1"]).to_string()).expect("a config.json");
        let output = world.create_at(&bundle);
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
fn a_file_that_is_too_large_is_refused() {
    let world = World::new("legacy");
    world.write(vec![b' '; (16 << 20) + 1]);
    let said = world.is_refused();
    assert!(said.contains("larger than 16 MiB"), "{said}");
}

#[test]
fn unknown_members_stay() {
    let world = World::new("legacy");
    let mut value = spec(&["NVIDIA_VISIBLE_DEVICES=0", "A=\u{fffd}"]);
    value["annotations"] =
        json!({"long": "x".repeat(1 << 20), "$serde_json::private::Number": "7"});
    value["vendor"] = json!({"$serde_json::private::RawValue": "[1]", "list": [1, 1.5, -1, u64::MAX, null, false, ""]});
    value["linux"]["resources"] = json!({"devices": [{"allow": false, "access": "rwm"}]});
    value["linux"]["empty"] = json!({});
    world.write(value.to_string());
    world.is_executed();
    let mut after = world.value();
    assert!(has_hook(&after));
    after.as_object_mut().expect("an object").remove("hooks");
    assert_eq!(after, value);
    // Includes the order of members, because users read these files.
    let before = value.to_string();
    let after = String::from_utf8_lossy(&world.read()).into_owned();
    let prefix = &before[..before.len() - 1];
    assert!(after.starts_with(prefix), "members have moved");
}

#[test]
fn a_second_create_changes_nothing_more() {
    let world = World::new("legacy");
    world.write(spec(&["NVIDIA_VISIBLE_DEVICES=all"]).to_string());
    world.is_executed();
    let once = world.read();
    world.is_executed();
    assert_eq!(
        world.value(),
        serde_json::from_slice::<Value>(&once).expect("JSON")
    );
}

#[test]
fn the_file_keeps_its_mode_and_its_links() {
    let world = World::new("legacy");
    let elsewhere = world.path("elsewhere.json");
    fs::write(&elsewhere, spec(&["NVIDIA_VISIBLE_DEVICES=0"]).to_string()).expect("a file");
    fs::set_permissions(&elsewhere, fs::Permissions::from_mode(0o600)).expect("a mode");
    symlink("../elsewhere.json", world.spec()).expect("a link");
    symlink("bundle", world.path("linked")).expect("a link");
    let output = world.create_at(&world.path("linked"));
    assert!(output.status.success(), "{output:?}");
    assert!(
        fs::symlink_metadata(world.spec())
            .expect("it is there")
            .is_symlink()
    );
    assert_eq!(
        fs::metadata(&elsewhere).expect("metadata").mode() & 0o7777,
        0o600
    );
    assert!(has_hook(&world.value()));
    let left: Vec<_> = fs::read_dir(world.path("bundle"))
        .expect("a directory")
        .collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn leftovers_of_a_killed_process_are_harmless() {
    let world = World::new("legacy");
    world.write(spec(&["NVIDIA_VISIBLE_DEVICES=0"]).to_string());
    // Every name that a process could have chosen; pids of tests are small numbers.
    let left = world.path("bundle/.config.json.nvidia-1");
    fs::write(&left, "half").expect("a file");
    world.is_executed();
    assert!(has_hook(&world.value()));
}

#[test]
fn the_image_cannot_choose_devices_with_words_of_others() {
    let world = World::new("legacy");
    for env in [
        &["nvidia_visible_devices=all"][..],
        &["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES=void"],
        &["NVIDIA_VISIBLE_DEVICES="],
        &[
            "NVIDIA_CTK_CONFIG_FILE_PATH=/tmp/x",
            "LD_PRELOAD=/evil.so",
            "NVIDIA_MOFED=enabled",
        ],
    ] {
        let value = spec(env);
        world.write(value.to_string());
        world.is_executed();
        assert_eq!(world.value(), value);
    }
}

/// Each line of the container's lists would cost time and be printed: 2 MB of names.
#[test]
fn too_many_names_are_refused_by_number() {
    let names: Vec<String> = (0..300_000).map(|name| name.to_string()).collect();
    let list = names.join(",");
    let expected = "too many device names: 300000 (a request has at most 1024)";
    for mode in ["auto", "legacy", "cdi", "jit-cdi", "csv"] {
        for variable in ["NVIDIA_VISIBLE_DEVICES", "NVIDIA_IMEX_CHANNELS"] {
            let world = World::new(mode);
            let value = spec(&["NVIDIA_VISIBLE_DEVICES=0", &format!("{variable}={list}")]);
            world.write(value.to_string());
            let text = world.is_refused();
            assert!(text.contains(variable) && text.contains(expected), "{mode}");
            assert!(text.len() < 4096, "{mode}: {} bytes", text.len());
            assert_eq!(world.value(), value, "{mode}");
        }
        let world = World::new(mode);
        let mut value = spec(&["NVIDIA_VISIBLE_DEVICES=0"]);
        value["annotations"] = json!({"cdi.k8s.io/x": list});
        world.write(value.to_string());
        let text = world.is_refused();
        assert!(text.contains(expected) && text.len() < 4096, "{mode}");
    }
}

/// The hook is started with the container that an engine without our runtime has created.
#[test]
fn the_hook_refuses_too_many_names() {
    let world = World::new("legacy");
    let list = "0,".repeat(1025);
    world.write(spec(&[&format!("NVIDIA_VISIBLE_DEVICES={list}")]).to_string());
    let text = world.is_refused_by_hook();
    assert!(
        text.contains("NVIDIA_VISIBLE_DEVICES: too many device names: 1025"),
        "{text}"
    );
}

/// The driver's files would be mounted on the host, and stay there.
#[test]
fn a_gpu_needs_a_mount_namespace() {
    for mode in ["auto", "legacy", "cdi", "jit-cdi", "csv"] {
        let world = World::new(mode);
        for namespaces in [
            json!([{"type": "pid"}]),
            json!([{"type": "mount", "path": "/proc/self/ns/mnt"}]),
        ] {
            let mut value = spec(&["NVIDIA_VISIBLE_DEVICES=0"]);
            value["linux"]["namespaces"] = namespaces;
            world.write(value.to_string());
            let text = world.is_refused();
            assert!(
                text.contains("no mount namespace of its own"),
                "{mode}: {text}"
            );
            assert_eq!(world.value(), value, "{mode}");
            // Without a GPU request it does not matter.
            value["process"]["env"] = json!([]);
            world.write(value.to_string());
            world.is_executed();
        }
    }
}

#[test]
fn the_runtimes_log_is_not_given_a_directory() {
    let world = World::new("legacy");
    let log = world.path("missing/log");
    let words = ["--log", log.to_str().expect("text"), "list"];
    world.passes_on(&world.path(""), &words);
    assert!(!world.path("missing").exists());
    // Ours is.
    let debug = world.path("own/debug.log");
    let file = world.path("config.toml");
    let text = fs::read_to_string(&file).expect("a configuration");
    let line = format!("runtimes = [\"{}\"]\n", world.path("runc").display());
    let more = format!("{line}debug = \"{}\"\n", debug.display());
    fs::write(&file, text.replace(&line, &more)).expect("a configuration");
    world.write(spec(&[]).to_string());
    world.is_executed();
    assert!(debug.exists());
}

/// The image's environment must not decide in place of a mount with an unknown name.
#[test]
fn mounts_with_bad_names_are_refused() {
    for mode in ["auto", "legacy", "cdi", "jit-cdi", "csv"] {
        for (name, expected) in [
            ("cdi/gpu0", "invalid mount request for CDI device cdi/gpu0"),
            (
                "cdi/nvidia.com/gpu/x/y",
                "invalid mount request for CDI device cdi/nvidia.com/gpu/x/y",
            ),
            // Two GPUs for a program that splits lists, an unknown one for others.
            ("0,1", "invalid mount request 0,1: "),
            ("imex/0,1", "invalid mount request imex/0,1: "),
        ] {
            let world = World::new(mode);
            world.set_at_top("accept-nvidia-visible-devices-as-volume-mounts = true");
            let mut value = spec(&["NVIDIA_VISIBLE_DEVICES=all"]);
            let place = format!("/var/run/nvidia-container-devices/{name}");
            value["mounts"] = json!([{"source": "/dev/null", "destination": place}]);
            world.write(value.to_string());
            let text = world.is_refused();
            assert!(text.contains(expected), "{mode}: {text}");
            assert_eq!(world.value(), value, "{mode}");
            let text = world.is_refused_by_hook();
            assert!(text.contains(expected), "{mode}: {text}");
        }
    }
}

#[test]
fn two_hundred_concurrent_requests_succeed() {
    thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                for _ in 0..10 {
                    let world = World::new("legacy");
                    world.write(spec(&["NVIDIA_VISIBLE_DEVICES=0"]).to_string());
                    world.is_executed();
                    assert!(has_hook(&world.value()));
                }
            });
        }
    });
}
