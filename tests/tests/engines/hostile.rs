//! Runs our runtime with hostile images and accidents: nothing escapes, nothing is lost, and the next start works.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nvc_tests::bundle::Bundle;
use nvc_tests::world::{World, printed};
use serde_json::{Value, json};

/// Name and body of each test.
pub(crate) const TESTS: &[(&str, fn())] = &[
    ("image_loads_nothing_into_hooks", loads_nothing),
    (
        "image_reaches_no_terminal_or_log",
        reaches_no_terminal_or_log,
    ),
    ("image_names_nothing_on_a_volume", names_nothing),
    ("runtime_survives_sigkill", survives_sigkill),
    ("runtime_edits_two_hundred_at_once", two_hundred_at_once),
];

/// The image's own /proc has directories where procfs has links: until that is mounted, a path by /proc/self/root stays
/// in the image. Afterwards it leads to a volume, on which the low-level runtime would create what the image chooses.
fn names_nothing() {
    let worlds = [
        (
            World::new("runc", "jit-cdi", ""),
            "NVIDIA_VISIBLE_DEVICES=1",
        ),
        (World::new("runc", "legacy", ""), "NVIDIA_VISIBLE_DEVICES=1"),
        (
            World::with_specification("runc", &["--style=live"]),
            "NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0",
        ),
    ];
    for (world, gpu) in worlds {
        let icd = world.driver.path("/usr/share/vulkan/icd.d/nvidia_icd.json");
        nvc_testkit::files::file(&icd, "{}", 0o644).unwrap_or_else(|error| panic!("{error}"));
        let all = "NVIDIA_DRIVER_CAPABILITIES=all";
        let bundle = Bundle::new(world, &[gpu, all], "echo here");
        let (root, volume) = (bundle.path().join("rootfs"), bundle.world.path("volume"));
        let made = fs::create_dir_all(root.join("proc/self/root/vol"))
            .and_then(|()| fs::create_dir(&volume))
            .and_then(|()| fs::create_dir_all(root.join("etc/vulkan")))
            .and_then(|()| {
                symlink(
                    "/proc/self/root/vol/nologin",
                    root.join("usr/bin/nvidia-smi"),
                )
            })
            .and_then(|()| symlink("/proc/self/root/vol/new", root.join("etc/vulkan/icd.d")));
        made.unwrap_or_else(|error| panic!("{error}"));
        let mut spec = bundle.spec();
        if let Some(mounts) = spec["mounts"].as_array_mut() {
            mounts.push(json!({
                "destination": "/vol", "source": volume, "type": "bind", "options": ["rbind"],
            }));
        }
        bundle.write(&spec);
        assert_eq!(printed(&mut bundle.run()), "here\n");
        let made: Vec<_> = fs::read_dir(&volume)
            .into_iter()
            .flatten()
            .flatten()
            .collect();
        assert!(made.is_empty(), "{gpu}: {made:?}");
    }
}

/// Says on the host that it was loaded. In the container, the directory does not exist.
const LIBRARY: &str = r#"
#include <fcntl.h>
__attribute__((constructor)) static void loaded(void) { open(MARK, O_CREAT | O_WRONLY, 0600); }
"#;

/// runc 1.1 gives a createContainer hook without `env` the environment of the container.
fn loads_nothing() {
    for mode in ["jit-cdi", "legacy"] {
        let world = World::new("runc", mode, "");
        let (source, library, mark) = (world.path("x.c"), world.path("x.so"), world.path("loaded"));
        fs::write(&source, LIBRARY).unwrap_or_else(|error| panic!("{error}"));
        let mut compile = Command::new("cc");
        compile.args(["-shared", "-fPIC", "-o"]).arg(&library);
        compile.arg(format!("-DMARK=\"{}\"", mark.display()));
        printed(compile.arg(&source));
        let foreign = world.path("foreign.toml");
        fs::write(&foreign, "not TOML").unwrap_or_else(|error| panic!("{error}"));
        let preload = format!("LD_PRELOAD={}", library.display());
        let config = format!("NVIDIA_CTK_CONFIG_FILE_PATH={}", foreign.display());
        let env = [
            "NVIDIA_VISIBLE_DEVICES=0",
            &preload,
            &config,
            "NVIDIA_CTK_DEBUG=true",
        ];
        let bundle = Bundle::new(world, &env, "echo here");
        assert_eq!(printed(&mut bundle.run()), "here\n");
        assert!(
            !mark.exists(),
            "{mode}: the image's library ran on the host"
        );

        // A dynamic program, without the environment that our runtime gives the hook.
        let mut spec = bundle.spec();
        let hooks = spec
            .pointer_mut("/hooks/createContainer")
            .and_then(Value::as_array_mut);
        let Some(hooks) = hooks else {
            assert_eq!(mode, "legacy", "jit-cdi has a createContainer hook");
            continue;
        };
        for hook in hooks.iter_mut().filter_map(Value::as_object_mut) {
            hook.remove("env");
            let dynamic = bundle.world.bin().join("nvc-query");
            hook.insert("path".into(), json!(dynamic));
        }
        bundle.write(&spec);
        let _ = bundle.run_with("sim-runc").output();
        assert!(mark.exists(), "the library is not loaded where it could be");
    }
}

/// Creates a world whose low-level runtime does nothing, and some bundles with one config.json.
fn bundles(count: usize) -> (World, Value, Vec<PathBuf>) {
    let world = World::new("runc", "jit-cdi", "");
    let runc = world.bin().join("sim-runc");
    fs::remove_file(&runc).unwrap_or_else(|error| panic!("{error}"));
    nvc_testkit::files::file(&runc, "#!/bin/sh\n", 0o755).unwrap_or_else(|error| panic!("{error}"));
    let spec = json!({
        "ociVersion": "1.0.2",
        "process": {"env": ["NVIDIA_VISIBLE_DEVICES=0"], "args": ["sh"], "cwd": "/"},
        "root": {"path": "rootfs"},
        "linux": {"namespaces": [{"type": "mount"}]},
        "annotations": {"x": "y".repeat(100_000)},
    });
    let paths: Vec<PathBuf> = (0..count).map(|n| world.path(&format!("b{n}"))).collect();
    for path in &paths {
        let written = fs::create_dir(path)
            .and_then(|()| fs::write(path.join("config.json"), spec.to_string()));
        written.unwrap_or_else(|error| panic!("{error}"));
    }
    (world, spec, paths)
}

fn create(world: &World, bundle: &Path) -> Command {
    let mut command = world.command("nvidia-container-runtime");
    command.args(["create", "--bundle"]).arg(bundle).arg("name");
    command
}

fn read(bundle: &Path) -> Value {
    let text = fs::read(bundle.join("config.json")).unwrap_or_else(|error| panic!("{error}"));
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("config.json is damaged: {error}"))
}

fn nodes(spec: &Value) -> usize {
    let devices = spec["linux"]["devices"].as_array();
    devices.map_or(0, Vec::len)
}

/// A killed runtime leaves config.json as it was, or edited: never a part of either.
fn survives_sigkill() {
    const ROUNDS: u32 = 40;
    let (world, spec, bundles) = bundles(1);
    let bundle = &bundles[0];
    let start = Instant::now();
    printed(&mut create(&world, bundle));
    let whole = start.elapsed();
    let edited = read(bundle);
    assert_eq!(nodes(&edited), 4, "{}", edited["linux"]);

    let mut killed = 0;
    for round in 0..ROUNDS {
        let original = fs::write(bundle.join("config.json"), spec.to_string());
        original.unwrap_or_else(|error| panic!("{error}"));
        let mut command = create(&world, bundle);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{error}"));
        // Most of the work is done at the end. The first start may have been slow: the others may all end in time.
        if round > 0 {
            thread::sleep(whole * (round + ROUNDS / 2) / (ROUNDS + ROUNDS / 2));
        }
        let _ = child.kill();
        let status = child.wait().unwrap_or_else(|error| panic!("{error}"));
        killed += u32::from(!status.success());
        let found = read(bundle);
        assert!(
            found == spec || found == edited,
            "round {round}: {}",
            found["linux"]
        );
        printed(&mut create(&world, bundle));
        assert_eq!(read(bundle), edited, "round {round}: the next start");
    }
    assert!(killed > 0, "no process was killed in time");
}

/// Every container gets its own devices; nothing is left in the bundles but config.json.
fn two_hundred_at_once() {
    let (world, _, bundles) = bundles(200);
    let (first, others) = (&bundles[0], &bundles[1..]);
    printed(&mut create(&world, first));
    let expected = read(first);
    let start = Instant::now();
    thread::scope(|scope| {
        for bundle in others {
            let world = &world;
            scope.spawn(move || printed(&mut create(world, bundle)));
        }
    });
    let took = start.elapsed();
    assert!(took < Duration::from_secs(600), "{took:?}");
    for bundle in &bundles {
        assert_eq!(read(bundle), expected);
        let files = fs::read_dir(bundle).map_or(0, Iterator::count);
        assert_eq!(files, 1, "{}", bundle.display());
    }
}

/// Words that an image or a specification can choose, with what terminals, logs and shells obey.
const WORDS: &[&str] = &[
    "NVIDIA_VISIBLE_DEVICES=\u{9b}31m\nlevel=info msg=forged\n* * * * * root id\n\\",
    "NVIDIA_DRIVER_CAPABILITIES=\u{1b}[31m\n$(id)`id`;id\r",
    "CUDA_VERSION=\u{1b}]0;title\u{7}\n\u{202e}",
    "NVIDIA_REQUIRE_X=\u{1b}[2J\nx",
    "NVIDIA_IMEX_CHANNELS=\u{1b}[31m\n",
    "no equals \u{1b}[31m\n* * * * * root id",
];

/// What programs print and log is printable ASCII in every mode, whatever the words are.
fn reaches_no_terminal_or_log() {
    let mut printed = String::new();
    let mut check = |case: &str, text: &[u8]| {
        nvc_testkit::cli::check_messages(text).unwrap_or_else(|fault| panic!("{case}: {fault}"));
        printed += &String::from_utf8_lossy(text);
    };
    for mode in ["legacy", "jit-cdi", "cdi", "csv", "auto"] {
        let world = World::new("runc", mode, "");
        let runc = world.bin().join("sim-runc");
        fs::remove_file(&runc).unwrap_or_else(|error| panic!("{error}"));
        let script = nvc_testkit::files::file(&runc, "#!/bin/sh\n", 0o755);
        script.unwrap_or_else(|error| panic!("{error}"));
        for word in WORDS {
            for (program, mut command, log) in programs(&world, word) {
                let case = format!("{mode}, {program}, {word:?}");
                let output = command.output().unwrap_or_else(|error| panic!("{error}"));
                check(&case, &output.stderr);
                for log in [log, world.path("runtime.log")] {
                    check(&case, &fs::read(&log).unwrap_or_default());
                    let _ = fs::remove_file(log);
                }
            }
        }
    }
    assert!(printed.contains("\\x1b[31m\\x0a"), "the words were printed");
    assert!(printed.contains("\"msg\""), "there were records as JSON");
}

/// Returns runs of our programs that are given a word: the program, the command, and its log.
fn programs(world: &World, word: &str) -> Vec<(&'static str, Command, PathBuf)> {
    let bundle = world.path("bundle");
    let spec = json!({
        "ociVersion": "1.0.2",
        "process": {"env": ["NVIDIA_VISIBLE_DEVICES=0", word], "args": ["sh"], "cwd": "/"},
        "root": {"path": "rootfs"},
        "linux": {},
    });
    let _ = fs::create_dir(&bundle);
    let state = world.path("state");
    // No process has this number, so that nothing is configured.
    let text = json!({"pid": 1 << 22, "bundle": bundle}).to_string();
    for (file, text) in [
        (bundle.join("config.json"), spec.to_string()),
        (state.clone(), text),
    ] {
        fs::write(file, text).unwrap_or_else(|error| panic!("{error}"));
    }
    let log = world.path("log");
    let value = word.split_once('=').map_or(word, |(_, value)| value);
    let mut runs = Vec::new();
    let mut add = |program, words: &[&str]| {
        let mut command = world.command(program);
        let input = fs::File::open(&state).unwrap_or_else(|error| panic!("{error}"));
        command.args(words).stdin(input).stdout(Stdio::null());
        runs.push((program, command, log.clone()));
    };
    let (bundle, file) = (bundle.display().to_string(), log.display().to_string());
    for format in ["text", "json"] {
        let words = [
            "--log",
            &file,
            "--log-format",
            format,
            "--debug",
            "create",
            "--bundle",
            &bundle,
            value,
        ];
        add("nvidia-container-runtime", &words);
    }
    add("nvidia-container-runtime-hook", &["prestart"]);
    let (debug, option) = (format!("--debug={file}"), |name| {
        format!("--{name}={value}")
    });
    let (device, require) = (option("device"), option("require"));
    add(
        "nvidia-container-cli",
        &[&debug, "configure", "--pid=4194304", &device, &bundle],
    );
    add(
        "nvidia-container-cli",
        &[
            &debug,
            "configure",
            "--pid=4194304",
            &require,
            "--device=0",
            &bundle,
        ],
    );
    add("nvidia-container-cli", &[value]);
    add("nvidia-ctk", &["--debug", "hook", value]);
    add("nvidia-ctk", &["config", &option("set")]);
    add("nvidia-ctk", &["cdi", "generate", &option("device-id")]);
    add(
        "nvidia-cdi-hook",
        &["--debug", "create-symlinks", &option("link")],
    );
    add("nvidia-cdi-hook", &[value]);
    runs
}
