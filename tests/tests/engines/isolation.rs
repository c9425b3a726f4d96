//! Checks that a container with one GPU lacks another GPU's node, procfs entry, MIG capability and device rule, and the
//! parameter that allows creating nodes: in every mode, as root and rootless.
//!
//! Each check is a cell of the matrix. The test also removes the protection of each cell alone from the edited config.json,
//! and the check must then find something: a check that never finds anything proves nothing.

use std::fs;
use std::path::Path;
use std::process::Command;

use nvc_testkit::driver::Driver;
use serde_json::{Value, json};

use super::runtimes::{Body, Bundle};
use super::world::{World, printed};

/// Name and body of each test.
pub(crate) const TESTS: &[(&str, Body)] = &[
    ("isolates_in_legacy_mode", |runtime| {
        isolates(runtime, "legacy", User::Root);
    }),
    ("isolates_in_cdi_mode", |runtime| {
        isolates(runtime, "cdi", User::Root);
    }),
    ("isolates_in_jit_cdi_mode", |runtime| {
        isolates(runtime, "jit-cdi", User::Root);
    }),
    ("isolates_in_csv_mode", |runtime| {
        isolates(runtime, "csv", User::Root);
    }),
    ("isolates_rootless_in_legacy_mode", |runtime| {
        isolates(runtime, "legacy", User::Rootless);
    }),
    ("isolates_rootless_in_cdi_mode", |runtime| {
        isolates(runtime, "cdi", User::Rootless);
    }),
    ("isolates_rootless_in_jit_cdi_mode", |runtime| {
        isolates(runtime, "jit-cdi", User::Rootless);
    }),
];

/// Who runs the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum User {
    Root,
    /// An ordinary user, who is root in a user namespace, as podman does.
    Rootless,
}

/// A check, and its protection.
struct Cell {
    name: &'static str,
    /// Shell commands that find what must not be there.
    look: String,
    /// Their output with protection.
    expected: &'static str,
    /// Removes the protection from an edited config.json.
    open: fn(&mut Value, &Driver),
    /// The modes and users that have this protection.
    applies: fn(&str, User) -> bool,
}

fn everywhere(_: &str, _: User) -> bool {
    true
}

/// A rootless container has no device rules: the kernel lets nobody create nodes there.
fn with_rules(_: &str, user: User) -> bool {
    user == User::Root
}

/// A Jetson's driver has no such files.
fn with_procfs(mode: &str, _: User) -> bool {
    mode != "csv"
}

/// Returns the rows of the matrix.
fn cells(driver: &Driver) -> Vec<Cell> {
    let bus = bus_name(&driver.profile().gpus[1].bus_id);
    let opened = |number: &str| {
        format!(
            "mknod /tmp/n c {number} && (exec 3</tmp/n) 2>&1 | grep -o 'No such device or address'; rm -f /tmp/n"
        )
    };
    vec![
        Cell {
            name: "node",
            look: "ls /dev | grep -x nvidia1".into(),
            expected: "",
            open: |spec, driver| {
                let node = driver.path("/dev/nvidia1");
                let mount = json!({"destination": "/dev/nvidia1", "source": node, "type": "bind", "options": ["bind"]});
                push(spec, "/mounts", mount);
            },
            applies: everywhere,
        },
        Cell {
            name: "device rule",
            look: opened("195 1"),
            expected: "",
            open: |spec, _| push(spec, "/linux/resources/devices", rule(195, 1)),
            applies: with_rules,
        },
        Cell {
            name: "rule of a MIG capability",
            look: opened(&format!("{} 148", driver.majors().caps)),
            expected: "",
            open: |spec, driver| {
                let rule = rule(driver.majors().caps.into(), 148);
                push(spec, "/linux/resources/devices", rule);
            },
            applies: with_rules,
        },
        Cell {
            name: "procfs entry",
            look: format!("ls /proc/driver/nvidia/gpus | grep -ix '{bus}'"),
            expected: "",
            open: |spec, _| without_hook(spec, "filter-driver-proc"),
            applies: with_procfs,
        },
        Cell {
            name: "file of a MIG capability",
            look: "ls /proc/driver/nvidia/capabilities/gpu1/mig 2>/dev/null | grep -c gi".into(),
            expected: "0\n",
            open: |spec, _| without_hook(spec, "filter-driver-proc"),
            applies: with_procfs,
        },
        Cell {
            name: "advice to make nodes",
            look: "grep -x 'ModifyDeviceFiles: 1' /proc/driver/nvidia/params".into(),
            expected: "",
            open: |spec, _| without_hook(spec, "disable-device-node-modification"),
            applies: with_procfs,
        },
    ]
}

/// Returns the name of a GPU's directory, with a four-digit domain.
fn bus_name(bus: &str) -> String {
    let digits = bus.find(':').unwrap_or(0);
    bus[digits.saturating_sub(4)..].to_ascii_lowercase()
}

fn rule(major: u64, minor: u64) -> Value {
    json!({"allow": true, "type": "c", "major": major, "minor": minor, "access": "rwm"})
}

fn push(spec: &mut Value, list: &str, item: Value) {
    match spec.pointer_mut(list).and_then(Value::as_array_mut) {
        Some(list) => list.push(item),
        None => panic!("no {list} in config.json"),
    }
}

/// Removes one of our hooks: an entry of its own, a part of the merged hook, or the prestart hook, which does everything.
fn without_hook(spec: &mut Value, name: &str) {
    let before = spec["hooks"].clone();
    let flag = json!(format!("--{name}"));
    if let Some(hooks) = spec.pointer_mut("/hooks/createContainer") {
        let hooks = hooks.as_array_mut().into_iter();
        for hooks in hooks {
            hooks.retain(|hook| hook["args"][1] != name);
            for words in hooks
                .iter_mut()
                .filter_map(|hook| hook["args"].as_array_mut())
            {
                words.retain(|word| *word != flag);
            }
        }
    }
    drop_prestart(spec, "/nvidia-container-runtime-hook");
    assert_ne!(before, spec["hooks"], "no hook {name} in config.json");
}

/// Removes the prestart hooks that are a program.
fn drop_prestart(spec: &mut Value, program: &str) {
    let hooks = spec
        .pointer_mut("/hooks/prestart")
        .and_then(Value::as_array_mut);
    if let Some(hooks) = hooks {
        hooks.retain(|hook| {
            !hook["path"]
                .as_str()
                .is_some_and(|path| path.ends_with(program))
        });
    }
}

/// Shell commands that find what a container must have: its own GPU's node, and the driver's library in the loader's cache.
const GRANTED: &str = "(exec 3</dev/nvidia0) 2>&1 | grep -o 'No such device or address'; ldconfig -p | grep -o -m1 libcuda.so.1";

fn script(cells: &[Cell]) -> String {
    let parts = cells
        .iter()
        .map(|Cell { name, look, .. }| format!("echo '[{name}]'; {look}"));
    let granted = format!("echo '[granted]'; {GRANTED}; true");
    parts.chain([granted]).collect::<Vec<_>>().join("\n")
}

/// Returns the output of one check.
fn part<'a>(output: &'a str, name: &str) -> &'a str {
    let heading = format!("[{name}]\n");
    let after = output.split_once(&heading).map_or("?", |(_, after)| after);
    &after[..after.find('[').unwrap_or(after.len())]
}

fn world(runtime: &str, mode: &str) -> World {
    match mode {
        "cdi" => World::with_specification(runtime, &[]),
        "csv" => World::jetson(runtime),
        mode => World::new(runtime, mode, ""),
    }
}

fn isolates(runtime: &str, mode: &str, user: User) {
    let world = world(runtime, mode);
    let mut cells = cells(world.driver);
    cells.retain(|cell| (cell.applies)(mode, user));
    let bundle = Bundle::new(world, &["NVIDIA_VISIBLE_DEVICES=0"], &script(&cells));
    match user {
        User::Root => bundle.allow_mknod(),
        User::Rootless => make_rootless(&bundle),
    }
    let run = |program: &str| match user {
        User::Root => printed(&mut bundle.run_with(program)),
        User::Rootless => printed(&mut rootless(&bundle, runtime, program)),
    };

    let seen = run("nvidia-container-runtime");
    assert!(
        part(&seen, "granted").starts_with("No such device or address\nlibcuda.so.1\n"),
        "{mode} under {runtime}: the GPU is missing\n{seen}"
    );
    for cell in &cells {
        let found = part(&seen, cell.name);
        let name = cell.name;
        assert_eq!(
            found, cell.expected,
            "{mode} under {runtime}: {name}\n{seen}"
        );
    }

    let mut edited = bundle.spec();
    // The simulated kernel's own hook, which each run adds.
    drop_prestart(&mut edited, &format!("/sim-{runtime}"));
    for cell in &cells {
        let mut open = edited.clone();
        (cell.open)(&mut open, bundle.world.driver);
        bundle.write(&open);
        let seen = run(&format!("sim-{runtime}"));
        assert_ne!(
            part(&seen, cell.name),
            cell.expected,
            "{mode} under {runtime}: without its protection the check of the {} finds nothing\n{seen}",
            cell.name
        );
    }
}

/// The user that runs rootless containers.
pub(crate) const USER: &str = "1000:1000";

/// Runs a command as the user, who can become root in a user namespace. The second procfs is one without mounts on it: the
/// kernel lets a user namespace mount its own only if it sees such a one. Arguments: where that is, the command.
pub(crate) const AS_USER: &str = r#"
proc=$1; shift
umount -l /sys/fs/cgroup/unified 2>/dev/null
mkdir -p "$proc"
mount -t proc proc "$proc"
exec setpriv --reuid=1000 --regid=1000 --clear-groups -- "$@"
"#;

/// Becomes root in a user namespace.
const NAMESPACE: [&str; 5] = [
    "unshare",
    "--user",
    "--map-root-user",
    "--mount",
    "--propagation=unchanged",
];

/// Makes a bundle one that an ordinary user can run.
fn make_rootless(bundle: &Bundle) {
    let mut spec = bundle.spec();
    let sys = |mount: &Value| {
        mount["destination"]
            .as_str()
            .is_some_and(|at| at.starts_with("/sys"))
    };
    if let Some(mounts) = spec["mounts"].as_array_mut() {
        mounts.retain(|mount| !sys(mount));
        for options in mounts
            .iter_mut()
            .filter_map(|mount| mount["options"].as_array_mut())
        {
            // This group does not exist in the user namespace.
            options.retain(|option| option != "gid=5");
        }
    }
    bundle.write(&spec);
    let state = bundle.world.path("state");
    fs::create_dir(&state).unwrap_or_else(|error| panic!("{error}"));
    for path in [bundle.path(), &state] {
        printed(Command::new("chown").args(["-R", USER]).arg(path));
    }
    let log = bundle.world.path("runtime.log");
    fs::write(&log, "").unwrap_or_else(|error| panic!("{error}"));
    printed(Command::new("chown").arg(USER).arg(log));
}

fn rootless(bundle: &Bundle, runtime: &str, program: &str) -> Command {
    let mut command = bundle.world.command("unshare");
    let program = bundle.world.bin().join(program);
    command
        .args(["--mount", "sh", "-c", AS_USER, "sh"])
        .arg(bundle.world.path("proc"))
        .args(NAMESPACE)
        .arg(program)
        .arg("--root")
        .arg(bundle.world.path("state"));
    if runtime == "crun" {
        command.arg("--cgroup-manager=disabled");
    }
    let here: &Path = bundle.path();
    command
        .args(["run", &bundle.world.name()])
        .current_dir(here);
    command
}
