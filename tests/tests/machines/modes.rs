//! The modes of our programs, each with what it gives on a machine.

use serde_json::Value;

use super::printed;
use super::table::{self, Section};
use super::world::{BIN, Done, World};

/// Returns what all modes give.
pub(crate) fn all(world: &World) -> Vec<Section> {
    world.configure("auto", "nvidia-container-cli");
    let mut sections = vec![list(world), configure(world)];
    for mode in ["auto", "nvml", "csv", "management", "mig-caps", "wsl"] {
        sections.push(generate(world, mode));
    }
    // The specification of mode auto is what mode cdi reads.
    world.run(&generating(
        world,
        "auto",
        &["--output=/etc/cdi/nvidia.json"],
    ));
    for mode in ["auto", "legacy", "jit-cdi", "csv", "cdi"] {
        for devices in ["all", "0"] {
            sections.push(runtime(world, mode, devices));
        }
    }
    sections.push(runtime(world, "jit-cdi", "none"));
    for mode in ["auto", "legacy"] {
        sections.push(hook(world, mode));
    }
    sections.push(legacy(world));
    table::shorten(&mut sections);
    sections
}

/// Makes a section of what a program printed, or of its error.
fn section(world: &World, name: &str, done: &Done, lines: impl FnOnce() -> Vec<String>) -> Section {
    let mut lines = if done.succeeded {
        lines()
    } else {
        vec![printed::error(&done.err)]
    };
    if lines.is_empty() {
        lines.push("nothing".into());
    }
    let lines = lines.iter().map(|line| printed::plain(&world.driver, line));
    Section::new(name, lines.collect())
}

fn list(world: &World) -> Section {
    let root = format!("--root={}", world.told());
    let done = world.run(&["nvidia-container-cli", &root, "list"]);
    section(world, "list", &done, || {
        done.out.lines().map(String::from).collect()
    })
}

fn configure(world: &World) -> Section {
    let script = "nvidia-container-cli --root=\"$0\" configure --dry-run --no-cgroups --compute --utility \
                  --graphics --device=all --pid=$$ /bundle/rootfs; exit $?";
    let done = world.run(&["sh", "-c", script, world.told()]);
    section(world, "configure --device=all", &done, || {
        done.out.lines().map(String::from).collect()
    })
}

fn generating<'a>(world: &'a World, mode: &str, more: &[&'a str]) -> Vec<&'a str> {
    let mode = match mode {
        "auto" => "--mode=auto",
        "nvml" => "--mode=nvml",
        "csv" => "--mode=csv",
        "management" => "--mode=management",
        "mig-caps" => "--mode=mig-caps",
        _ => "--mode=wsl",
    };
    let mut words = vec!["nvidia-ctk", "cdi", "generate", mode, "--format=json"];
    words.push("--device-name-strategy=index");
    words.push("--nvidia-cdi-hook-path=/opt/nvc/bin/nvidia-cdi-hook");
    if world.told() != "/" {
        words.extend(["--dev-root=/", "--driver-root", world.told()]);
    }
    words.extend(more);
    words
}

fn generate(world: &World, mode: &str) -> Section {
    let done = world.run(&generating(world, mode, &[]));
    section(world, &format!("generate {mode}"), &done, || {
        let specification: Value = serde_json::from_str(&done.out).unwrap();
        printed::specification(&specification)
    })
}

fn runtime(world: &World, mode: &str, devices: &str) -> Section {
    world.configure(mode, "nvidia-container-cli");
    let before = world.request(devices);
    let runtime = format!("{BIN}/nvidia-container-runtime");
    let done = world.run(&[&runtime, "create", "--bundle", "/bundle", "c"]);
    section(world, &format!("runtime {mode} {devices}"), &done, || {
        printed::container(&before, &world.config())
    })
}

/// Prints a container's state for a hook; this shell is its process.
const STATE: &str = "echo \"{\\\"ociVersion\\\":\\\"1.0.2\\\",\\\"id\\\":\\\"c\\\",\\\"status\\\":\\\"creating\\\",\
                     \\\"pid\\\":$$,\\\"bundle\\\":\\\"/bundle\\\"}\"";

/// The prestart hook, with a program in nvidia-container-cli's place that prints its arguments.
fn hook(world: &World, mode: &str) -> Section {
    world.configure(mode, "arguments");
    world.request("all");
    let script = format!("{STATE} | nvidia-container-runtime-hook prestart");
    let done = world.run(&["sh", "-c", &script]);
    section(world, &format!("hook {mode} all"), &done, || {
        let without_pid = |word: &&str| !word.starts_with("--pid=");
        let words = done.out.split_whitespace().filter(without_pid);
        vec![words.collect::<Vec<_>>().join(" ")]
    })
}

/// What the prestart hook puts into a container: its mounts, and the links in its root.
fn legacy(world: &World) -> Section {
    world.configure("legacy", "nvidia-container-cli");
    world.request("all");
    world.renew_container();
    // Runtimes run hooks in the bundle.
    let script = format!(
        "cd /bundle; {STATE} | nvidia-container-runtime-hook prestart || exit; \
         while read -r line; do echo \"$line\"; done < /proc/self/mountinfo"
    );
    let done = world.run(&["sh", "-c", &script]);
    section(world, "container legacy all", &done, || {
        let mut lines = printed::mounts(&done.out);
        lines.extend(printed::links(&world.container(), ""));
        lines
    })
}
