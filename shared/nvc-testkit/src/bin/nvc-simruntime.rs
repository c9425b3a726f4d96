//! `nvc-simruntime`: wraps a real OCI runtime, as if the simulated driver's modules were loaded.
//!
//! With real modules every procfs has /proc/driver/nvidia and their numbers in /proc/devices; here a prestart hook that
//! runs first mounts them. Called as `sim-NAME` it adds that hook to the bundle's config.json and executes NAME; called as
//! NAME it executes the NAME that was moved to /usr/lib/nvc-sim. `NVC_SIM_PROC` in the hook's arguments is the directory
//! to mount.

use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::statvfs::{FsFlags, statvfs};
use serde_json::{Value, json};

/// The option that selects the hook.
const HOOK: &str = "--hook";

/// Directory of the real runtimes whose names this program has taken.
const MOVED: &str = "/usr/lib/nvc-sim";

fn main() -> ExitCode {
    let words: Vec<String> = env::args().collect();
    let done = match words.get(1).map(String::as_str) {
        Some(HOOK) => hook(&words[2..]),
        _ => runtime(&words),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("nvc-simruntime: {text}");
            ExitCode::FAILURE
        }
    }
}

/// Mounts the simulated part of procfs in the container of the state on standard input.
fn hook(words: &[String]) -> Result<(), String> {
    let [shown, root] = words else {
        return Err("usage: nvc-simruntime --hook SHOWN ROOT".into());
    };
    let mut state = String::new();
    let read = std::io::stdin().read_to_string(&mut state);
    read.map_err(|error| error.to_string())?;
    let state: Value = serde_json::from_str(&state).map_err(|error| error.to_string())?;
    let pid = state["pid"].as_u64().ok_or("no pid in the state")?;
    let failed = |what: &'static str| move |error: nix::Error| format!("{what}: {error}");
    let mut namespaces = Vec::new();
    for (name, flag) in [
        ("user", CloneFlags::CLONE_NEWUSER),
        ("mnt", CloneFlags::CLONE_NEWNS),
    ] {
        let path = format!("/proc/{pid}/ns/{name}");
        let own = fs::read_link(format!("/proc/self/ns/{name}"));
        if fs::read_link(&path).ok() == own.ok() {
            continue;
        }
        let file = fs::File::open(path).map_err(|error| error.to_string())?;
        namespaces.push((file, flag));
    }
    // All are open: the container's user may not open another one of its process.
    for (file, flag) in namespaces {
        setns(file, flag).map_err(failed("setns"))?;
    }
    let shown = Path::new(shown);
    bind(shown, &Path::new(root).join("proc/driver"))?;
    // A driver's daemon reads the major numbers.
    let majors = shown.with_file_name("devices");
    if majors.exists() {
        bind(&majors, &Path::new(root).join("proc/devices"))?;
    }
    Ok(())
}

/// Mounts a file or directory, read-only.
fn bind(shown: &Path, target: &Path) -> Result<(), String> {
    let failed = |what: &'static str| move |error: nix::Error| format!("{what}: {error}");
    let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(shown), target, None::<&str>, bind, None::<&str>).map_err(failed("mount"))?;
    // A test that removes a bundle with its mounts must not remove the simulated driver. A user namespace may not clear the
    // other flags.
    let kept = statvfs(target).map_err(failed("statvfs"))?.flags();
    let mut flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    for (set, flag) in [
        (FsFlags::ST_NOSUID, MsFlags::MS_NOSUID),
        (FsFlags::ST_NODEV, MsFlags::MS_NODEV),
        (FsFlags::ST_NOEXEC, MsFlags::MS_NOEXEC),
        (FsFlags::ST_NOATIME, MsFlags::MS_NOATIME),
        (FsFlags::ST_NODIRATIME, MsFlags::MS_NODIRATIME),
        (FsFlags::ST_RELATIME, MsFlags::MS_RELATIME),
    ] {
        flags.set(flag, kept.contains(set));
    }
    mount(None::<&str>, target, None::<&str>, flags, None::<&str>)
        .map_err(failed("read-only mount"))
}

/// Adds the hook to config.json, if there is one, and executes the real runtime.
fn runtime(words: &[String]) -> Result<(), String> {
    let name = Path::new(&words[0])
        .file_name()
        .and_then(|name| name.to_str());
    let name = name.ok_or("no name")?;
    let moved = Path::new(MOVED).join(name);
    let real = match name.strip_prefix("sim-") {
        Some(real) => PathBuf::from(real),
        None if moved.exists() => moved,
        None => return Err(format!("call it sim-NAME, or move NAME to {MOVED}")),
    };
    let verbs = words.iter().any(|word| word == "create" || word == "run");
    let file = config(words);
    if verbs && file.exists() {
        edit(&file, &bundle(words))?;
    }
    if real.ends_with("crun") {
        // Debian 12's crun does not support machines with both cgroup versions.
        let unified = Path::new("/sys/fs/cgroup/unified");
        if unified.exists() && unshare(CloneFlags::CLONE_NEWNS).is_ok() {
            let private = MsFlags::MS_REC | MsFlags::MS_SLAVE;
            let _ = mount(None::<&str>, "/", None::<&str>, private, None::<&str>);
            let _ = umount2(unified, MntFlags::MNT_DETACH);
        }
    }
    Err(Command::new(real).args(&words[1..]).exec().to_string())
}

fn bundle(words: &[String]) -> PathBuf {
    value(words, "--bundle", "-b").unwrap_or_else(|| PathBuf::from("."))
}

/// Returns the file that the real runtime reads; only crun has an option for it.
fn config(words: &[String]) -> PathBuf {
    value(words, "--config", "-f").unwrap_or_else(|| bundle(words).join("config.json"))
}

fn value(words: &[String], long: &str, short: &str) -> Option<PathBuf> {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word == long || word == short {
            return words.next().map(PathBuf::from);
        }
        let value = word.strip_prefix(long);
        if let Some(value) = value.and_then(|value| value.strip_prefix('=')) {
            return Some(value.into());
        }
    }
    None
}

fn edit(file: &Path, bundle: &Path) -> Result<(), String> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut spec: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let own = env::current_exe().map_err(|error| error.to_string())?;
    let root = spec["root"]["path"].as_str().unwrap_or_default().to_owned();
    let root = bundle.join(root);
    let root = fs::canonicalize(root).map_err(|error| error.to_string())?;
    let shown = env::var("NVC_SIM_PROC").unwrap_or_else(|_| "/proc/driver".into());
    let hook = json!({
        "path": own, "args": ["nvc-simruntime", HOOK, shown, root],
    });
    leave_out_limits(&mut spec["linux"]["resources"]);
    let hooks = &mut spec["hooks"]["prestart"];
    match hooks {
        Value::Array(list) => list.insert(0, hook),
        other => *other = json!([hook]),
    }
    let mut out = fs::File::create(file).map_err(|error| error.to_string())?;
    write!(out, "{spec}").map_err(|error| error.to_string())
}

/// Drops limits of controllers that a hierarchy of version 2 lacks since this machine has them in version 1.
fn leave_out_limits(resources: &mut Value) {
    let Ok(controllers) = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers") else {
        return;
    };
    for (limit, controller) in [
        ("cpu", "cpu"),
        ("memory", "memory"),
        ("pids", "pids"),
        ("blockIO", "io"),
    ] {
        if let Some(resources) = resources.as_object_mut()
            && !controllers
                .split_whitespace()
                .any(|name| name == controller)
        {
            resources.remove(limit);
        }
    }
}
