//! Checks that a container with one GPU, or with one MIG device, lacks another's node, procfs entry, MIG capability and
//! device rule, and the parameter that allows creating nodes: in every mode, as root and rootless.
//!
//! Each check is a cell of the matrix. The test also removes the protection of each cell alone from the edited
//! config.json, and the check must then find something: a check that never finds anything proves nothing.

use std::fs;
use std::path::Path;
use std::process::Command;

use nvc_testkit::driver::{Builder, Driver};
use nvc_testkit::profile::Profile;
use nvc_tests::bundle::Bundle;
use nvc_tests::world::{World, printed};
use serde_json::{Value, json};

use super::jetsons;
use super::runtimes::Body;

/// Name and body of each test.
pub(crate) const TESTS: &[(&str, Body)] = &[
    ("isolates_in_legacy_mode", |runtime| {
        isolates(runtime, "legacy", User::Root);
    }),
    ("isolates_in_cdi_mode", |runtime| {
        isolates(runtime, "cdi", User::Root);
    }),
    ("isolates_in_cdi_mode_with_merged_hooks", |runtime| {
        isolates(runtime, "cdi-merged", User::Root);
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
    ("isolates_rootless_in_csv_mode", |runtime| {
        isolates(runtime, "csv", User::Rootless);
    }),
    ("isolates_the_gpus_of_a_jetson", |runtime| {
        isolates_a_pair(runtime, User::Root);
    }),
    ("isolates_the_gpus_of_a_jetson_rootless", |runtime| {
        isolates_a_pair(runtime, User::Rootless);
    }),
    ("isolates_mig_devices", |runtime| {
        // A Jetson has none.
        for mode in ["legacy", "jit-cdi", "cdi"] {
            isolates_mig_devices(runtime, mode, User::Root);
        }
    }),
    ("isolates_mig_devices_rootless", |runtime| {
        for mode in ["legacy", "jit-cdi", "cdi"] {
            isolates_mig_devices(runtime, mode, User::Rootless);
        }
    }),
];

/// The user that runs the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum User {
    Root,
    /// An ordinary user, who is root in a user namespace, as podman does.
    Rootless,
}

/// A check, and its protection.
struct Cell {
    name: String,
    /// Shell commands that find what must not be there.
    look: String,
    /// Their output with protection.
    expected: &'static str,
    /// The protection, which the test removes.
    guard: Guard,
    /// The users that have this protection.
    applies: fn(User) -> bool,
}

/// A change of config.json.
type Change = Box<dyn Fn(&mut Value, &Driver)>;

/// A protection.
enum Guard {
    /// This change removes it from an edited config.json.
    Config(Change),
    /// The user namespace of a rootless container: the kernel refuses to create nodes there.
    UserNamespace,
}

impl Guard {
    fn config(open: impl Fn(&mut Value, &Driver) + 'static) -> Self {
        Self::Config(Box::new(open))
    }
}

fn everywhere(_: User) -> bool {
    true
}

/// A rootless container needs no device rules, and has none.
fn with_rules(user: User) -> bool {
    user == User::Root
}

fn without_rules(user: User) -> bool {
    user == User::Rootless
}

/// Checks a device that was not granted: its node, its rule, and the creation of a node by the container.
fn device(what: &'static str, path: &str, (major, minor): (u64, u64)) -> [Cell; 3] {
    let names = ["node of ", "rule of ", "making a node of "].map(|word| format!("{word}{what}"));
    let [node, rule_name, making] = names;
    let (directory, name) = path.rsplit_once('/').unwrap_or_default();
    let number = format!("{major} {minor}");
    let path = path.to_owned();
    let bound = move |spec: &mut Value, driver: &Driver| {
        let source = driver.path(&path);
        let mount =
            json!({"destination": path, "source": source, "type": "bind", "options": ["bind"]});
        push(spec, "/mounts", mount);
    };
    [
        Cell {
            name: node,
            look: format!("ls {directory} 2>/dev/null | grep -x {name}"),
            expected: "",
            guard: Guard::config(bound),
            applies: everywhere,
        },
        Cell {
            name: rule_name,
            look: format!(
                "mknod /tmp/n c {number} && (exec 3</tmp/n) 2>&1 | grep -o 'No such device or address'; rm -f /tmp/n"
            ),
            expected: "",
            guard: Guard::config(move |spec, _| {
                push(spec, "/linux/resources/devices", rule(major, minor));
            }),
            applies: with_rules,
        },
        Cell {
            name: making,
            look: format!("mknod /tmp/n c {number} 2>/dev/null && echo made; rm -f /tmp/n"),
            expected: "",
            guard: Guard::UserNamespace,
            applies: without_rules,
        },
    ]
}

/// Checks the parameter by which the driver's own code creates nodes.
fn advice() -> Cell {
    Cell {
        name: "advice to make nodes".into(),
        look: "grep -x 'ModifyDeviceFiles: 1' /proc/driver/nvidia/params".into(),
        expected: "",
        guard: Guard::config(|spec, _| without_hook(spec, "disable-device-node-modification")),
        applies: everywhere,
    }
}

fn filtered(name: &str, look: String, expected: &'static str) -> Cell {
    Cell {
        name: name.into(),
        look,
        expected,
        guard: Guard::config(|spec, _| without_hook(spec, "filter-driver-proc")),
        applies: everywhere,
    }
}

/// Returns the rows of the matrix for a container with GPU 0.
fn cells(driver: &Driver) -> Vec<Cell> {
    let bus = bus_name(&driver.profile().gpus[1].bus_id);
    let caps = u64::from(driver.majors().caps);
    let mut cells = Vec::new();
    cells.extend(device("another GPU", "/dev/nvidia1", (195, 1)));
    let path = "/dev/nvidia-caps/nvidia-cap148";
    cells.extend(device("a MIG capability", path, (caps, 148)));
    cells.push(filtered(
        "procfs entry of another GPU",
        format!("ls /proc/driver/nvidia/gpus | grep -ix '{bus}'"),
        "",
    ));
    cells.push(filtered(
        "file of a MIG capability",
        "ls /proc/driver/nvidia/capabilities/gpu1/mig 2>/dev/null | grep -c gi".into(),
        "0\n",
    ));
    cells.push(advice());
    cells
}

/// Returns the rows for a container with the first MIG device of GPU 1.
fn mig_cells(driver: &Driver) -> Vec<Cell> {
    let caps = u64::from(driver.majors().caps);
    let bus = bus_name(&driver.profile().gpus[0].bus_id);
    let mut cells = Vec::new();
    cells.extend(device("another GPU", "/dev/nvidia0", (195, 0)));
    let other = other_instance(driver);
    let path = format!("/dev/nvidia-caps/nvidia-cap{}", other.minor);
    cells.extend(device("another MIG device", &path, (caps, other.minor)));
    cells.push(filtered(
        "procfs entry of another GPU",
        format!("ls /proc/driver/nvidia/gpus | grep -ix '{bus}'"),
        "",
    ));
    cells.push(filtered(
        "file of another MIG device",
        format!(
            "ls /proc/driver/nvidia/capabilities/gpu1/mig | grep -x gi{}",
            other.id
        ),
        "",
    ));
    cells.push(advice());
    cells
}

/// Returns the rows for a container with one of a Jetson's two GPUs.
fn pair_cells(driver: &Driver, index: usize) -> Vec<Cell> {
    let imex = u64::from(driver.majors().imex);
    let mut cells = Vec::new();
    if index == 0 {
        cells.extend(device("the discrete GPU", "/dev/nvidia1", (195, 1)));
    } else {
        cells.extend(device("the integrated GPU", "/dev/nvidia0", (195, 0)));
        cells.extend(device("its display", "/dev/nvidia2", (195, 2)));
        let number = (imex, jetsons::IGPU_MINOR);
        cells.extend(device("its own driver", jetsons::IGPU, number));
    }
    let bus = bus_name(&driver.profile().gpus[1 - index].bus_id);
    cells.push(filtered(
        "procfs entry of the other GPU",
        format!("ls /proc/driver/nvidia/gpus | grep -ix '{bus}'"),
        "",
    ));
    cells.push(advice());
    cells
}

/// A GPU instance.
struct Instance {
    id: u32,
    /// Minor number of its capability.
    minor: u64,
}

/// Returns the GPU instance of the last MIG device of GPU 1.
fn other_instance(driver: &Driver) -> Instance {
    let profile = driver.profile();
    let mut devices = profile.mig_devices.iter().filter(|mig| mig.gpu == 1);
    let ids = devices.next().zip(devices.next_back());
    let ids = ids.map(|(first, last)| (first.gpu_instance, last.gpu_instance));
    let Some((first, id)) = ids else {
        panic!("GPU 1 has no two MIG devices");
    };
    assert_ne!(first, id, "one GPU instance has all MIG devices");
    let minor = nvc_testkit::driver::gpu_instance_minor(profile.gpus[1].minor, id);
    Instance {
        id,
        minor: minor.into(),
    }
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

/// Removes one of our hooks: an entry of its own, its part of a plan, or the prestart hook, which does everything.
fn without_hook(spec: &mut Value, name: &str) {
    let before = spec["hooks"].clone();
    let (part, without) = match name {
        "filter-driver-proc" => (r#""devices":"own""#, r#""devices":"all""#),
        _ => (r#""no_new_nodes":true"#, r#""no_new_nodes":false"#),
    };
    if let Some(hooks) = spec.pointer_mut("/hooks/createContainer") {
        let hooks = hooks.as_array_mut().into_iter();
        for hooks in hooks {
            hooks.retain(|hook| hook["args"][1] != name);
            for words in hooks
                .iter_mut()
                .filter_map(|hook| hook["args"].as_array_mut())
            {
                for word in words {
                    let plan = word.as_str().filter(|word| word.starts_with("--plan="));
                    if let Some(plan) = plan {
                        *word = json!(plan.replacen(part, without, 1));
                    }
                }
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

/// Returns shell commands that check what a container must have: its own GPU's node, and the driver's library in the
/// loader's cache.
fn granted(index: usize) -> String {
    format!(
        "(exec 3</dev/nvidia{index}) 2>&1 | grep -o 'No such device or address'; ldconfig -p | grep -o -m1 libcuda.so.1"
    )
}

fn script(cells: &[Cell], index: usize) -> String {
    let parts = cells
        .iter()
        .map(|Cell { name, look, .. }| format!("echo '[{name}]'; {look}"));
    let granted = format!("echo '[granted]'; {}; true", granted(index));
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
        "cdi-merged" => World::with_specification(runtime, &["--hooks=merged"]),
        "csv" => World::jetson(runtime),
        mode => World::new(runtime, mode, ""),
    }
}

fn isolates(runtime: &str, mode: &str, user: User) {
    let world = world(runtime, mode);
    let cells = cells(world.driver);
    check(
        runtime,
        world,
        &format!("{mode} under {runtime}"),
        user,
        cells,
        ("0", 0),
    );
}

fn isolates_mig_devices(runtime: &str, mode: &str, user: User) {
    let world = world(runtime, mode);
    let cells = mig_cells(world.driver);
    let place = format!("a MIG device, {mode} under {runtime}");
    check(runtime, world, &place, user, cells, ("1:0", 1));
}

/// Checks both GPUs of a Jetson whose integrated GPU has an entry in procfs.
fn isolates_a_pair(runtime: &str, user: User) {
    for (name, index) in [("0", 0), ("1", 1)] {
        let world = jetsons::world(runtime, Builder::new(Profile::thor_pair()));
        let cells = pair_cells(world.driver, index);
        let place = format!("GPU {index} of a Jetson under {runtime}");
        check(runtime, world, &place, user, cells, (name, index));
    }
}

/// Checks all cells in a container with a device of the GPU with this index; then each cell without its protection.
fn check(
    runtime: &str,
    world: World,
    place: &str,
    user: User,
    mut cells: Vec<Cell>,
    (device, index): (&str, usize),
) {
    cells.retain(|cell| (cell.applies)(user));
    let variable = format!("NVIDIA_VISIBLE_DEVICES={device}");
    let bundle = Bundle::new(world, &[&variable], &script(&cells, index));
    // Only the device rules, or the user namespace, protect a device from a container that can create nodes.
    bundle.allow_mknod();
    if user == User::Rootless {
        make_rootless(&bundle);
    }
    let run = |program: &str| match user {
        User::Root => printed(&mut bundle.run_with(program)),
        User::Rootless => printed(&mut rootless(&bundle, runtime, program)),
    };

    let seen = run("nvidia-container-runtime");
    assert!(
        part(&seen, "granted").starts_with("No such device or address\nlibcuda.so.1\n"),
        "{place}: the GPU is missing\n{seen}"
    );
    for cell in &cells {
        let found = part(&seen, &cell.name);
        assert_eq!(found, cell.expected, "{place}: {}\n{seen}", cell.name);
    }

    let mut edited = bundle.spec();
    // The simulated kernel's own hook, which each run adds.
    drop_prestart(&mut edited, &format!("/sim-{runtime}"));
    for cell in &cells {
        let mut open = edited.clone();
        let seen = match &cell.guard {
            Guard::Config(change) => {
                change(&mut open, bundle.world.driver);
                bundle.write(&open);
                run(&format!("sim-{runtime}"))
            }
            Guard::UserNamespace => {
                bundle.write(&open);
                printed(&mut bundle.run_with(&format!("sim-{runtime}")))
            }
        };
        assert_ne!(
            part(&seen, &cell.name),
            cell.expected,
            "{place}: without its protection the check of the {} finds nothing\n{seen}",
            cell.name
        );
    }
}

/// The user that runs rootless containers.
pub(crate) const USER: &str = "1000:1000";

/// Runs a command as the user, who can become root in a user namespace. The kernel lets a user namespace mount a procfs
/// only if one without mounts on it is visible, so there is a second one. Arguments: its path, the command.
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
