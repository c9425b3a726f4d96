//! What ends or stops in the middle of Prepare: the driver, which is killed at each step; the kubelet, which hangs up; NVML,
//! which hangs. The next call completes the work, and nothing is left over.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nvc_testkit::faults::{self, Effect, Fault, Report};
use nvc_testkit::profile;
use nvc_testkit::{harness, syscalls};
use serde_json::json;

use crate::node::{Daemon, Node, result, uid, wait};
use crate::plugins::with;

/// Calls that change something, or wait.
const STEPS: [&str; 12] = [
    "clone3", "close", "fchmod", "flock", "fsync", "mkdir", "openat", "renameat", "unlink",
    "unlinkat", "wait4", "write",
];

pub(crate) fn killed_at_each_step() {
    let mut node = Node::new();
    node.claim("a", &["gpu-0"]);
    let (_, report) = traced(&mut node, None);
    let expected = (node.files(), fs::read(node.specification("a")).unwrap());
    assert_eq!(expected.0.len(), 2, "{expected:?}");
    let mut daemon = node.started();
    let state = state(&node);
    node.unprepared("a");
    daemon.signal(Signal::SIGTERM);
    daemon.ended();
    let places = places(&report);
    println!("{} calls, {} places", report.len(), places.len());
    let (mut deaths, mut missed) = (BTreeMap::new(), 0);
    for fault in places {
        let (was_answered, report) = traced(&mut node, Some(&fault));
        let Some(call) = report.hit else {
            missed += 1;
            node_is_clean(&mut node, &fault.to_string());
            continue;
        };
        *deaths.entry(syscalls::name(call)).or_insert(0) += 1;
        let what = format!(
            "{fault}, {}, answered: {was_answered}",
            syscalls::name(call)
        );
        if was_answered {
            assert_eq!(node.files(), expected.0, "{what}");
        }
        let mut daemon = node.started();
        node.prepared("a");
        let found = (node.files(), fs::read(node.specification("a")).unwrap());
        assert!(found == expected, "{what}: {:?}", found.0);
        assert_eq!(self::state(&node), state, "{what}");
        node.unprepared("a");
        assert_eq!(node.files(), [] as [String; 0], "{what}");
        daemon.signal(Signal::SIGTERM);
        daemon.ended();
    }
    println!("killed: {deaths:?}; {missed} not met");
    assert!(missed <= deaths.values().sum::<usize>(), "{missed}");
}

/// What it had begun to write is not kept for ever.
pub(crate) fn killed_while_it_starts() {
    let mut node = Node::new();
    let state = node.scratch.join("plugins/gpu.nvidia.com");
    fs::create_dir(&state).unwrap();
    let draft = state.join(".nvidia-cdi-hook.0123456789abcdef");
    fs::write(&draft, "x").unwrap();
    let _daemon = node.started();
    assert!(!draft.exists());
}

fn node_is_clean(node: &mut Node, what: &str) {
    let mut daemon = node.started();
    node.prepared("a");
    node.unprepared("a");
    assert_eq!(node.files(), [] as [String; 0], "{what}");
    daemon.signal(Signal::SIGTERM);
    daemon.ended();
}

/// A kubelet that restarts, or has waited for 45 seconds. What has begun comes to its end without it.
pub(crate) fn a_kubelet_that_hangs_up() {
    let mut node = Node::new();
    // Each look takes a while.
    node.plugins(json!({"delay": 0.5}));
    let mut daemon = node.started();
    node.claim("a", &["gpu-0"]);
    node.prepared("a");
    let content = |node: &Node| {
        let files = [node.specification("a"), node.record("a")];
        (node.files(), files.map(|path| fs::read(path).unwrap()))
    };
    let (answer, whole) = (node.prepare("a"), content(&node));
    let quick = node.driver.profile().clone();
    let mut slow = quick.clone();
    slow.init_ms = 2000;
    let file = node.specification("a");
    let uuid = quick.gpus[0].uuid.clone();
    for was_given in [true, false] {
        // While the API server is asked, while NVML is, and when the claim has been given its devices.
        for (delay, profile, until) in [
            (2, &quick, None),
            (0, &slow, None),
            (0, &quick, Some(&*file)),
        ] {
            if !was_given {
                node.unprepared("a");
            } else if until.is_some() {
                continue;
            }
            node.api(json!({"delay": delay}));
            node.driver.answer(profile).unwrap();
            node.hang_up("a", until);
            node.api(json!({"delay": 0}));
            node.driver.answer(&quick).unwrap();
            assert_eq!(node.prepare("a"), answer);
            assert_eq!(content(&node), whole);
        }
        node.unprepared("a");
        assert_eq!(node.files(), [] as [String; 0]);
        node.prepared("a");
    }
    node.unprepared("a");
    // A device plugin has given the same one meanwhile, which only the second look sees.
    let mut plugin = with(&uuid);
    plugin["once"] = json!(file);
    plugin["delay"] = json!(0.5);
    node.plugins(plugin);
    node.hang_up("a", Some(&file));
    wait("what was given is taken back", || node.files().is_empty());
    node.plugins(json!({}));
    node.prepared("a");
    node.unprepared("a");
    assert!(daemon.is_alive());
}

/// A kubelet that gives a pod up cancels its call, and gives back what the pod would have got. The one never overtakes the
/// other.
pub(crate) fn a_call_that_is_cancelled() {
    let mut node = Node::new();
    let daemon = node.started();
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    for name in names {
        let mut shared = result("gpu-0");
        shared["adminAccess"] = json!(true);
        node.claim_of(name, json!({"results": [shared]}));
    }
    let answers = node.cancelled(&names);
    let answers = answers.as_array().unwrap();
    for (name, answer) in names.iter().zip(answers) {
        assert_eq!(answer["claims"][uid(name)]["error"], "", "{answer}");
    }
    assert_eq!(answers.len(), names.len());
    assert_eq!(node.files(), [] as [String; 0], "{}", daemon.log());
    node.claim("i", &["gpu-0"]);
    node.prepared("i");
}

/// The call ends with the reason before the kubelet gives up, and claims of other GPUs get theirs.
pub(crate) fn nvml_that_hangs() {
    let mut node = Node::new();
    let mut daemon = node.started();
    let names = node.published();
    let mig = names.iter().find(|name| name.contains("mig")).unwrap();
    node.claim("a", &["gpu-0"]);
    node.claim("b", &[mig]);
    let well = node.driver.profile().clone();
    let mut hung = well.clone();
    for how in ["ByIndex_v2", "ByPciBusId_v2", "ByUUID"] {
        let symbol = format!("nvmlDeviceGetHandle{how}:0");
        hung.faults.push(profile::Fault::HangAt(symbol));
    }
    node.driver.answer(&hung).unwrap();
    let [said, other] = node.prepare_both(["a", "b"]);
    let said = said["error"].as_str().unwrap_or_else(|| panic!("{said}"));
    assert!(
        said.contains("did not answer within 10 s") || said.contains("is not well"),
        "{said}"
    );
    assert_eq!(other["error"], "", "{other}");
    assert_eq!(node.files().len(), 2);
    // Now that it is known, nobody asks.
    wait("a verdict", || node.refused("a").contains("is not well"));
    node.prepared("b");
    node.unprepared("b");
    // Its files have no lock.
    let lock = fs::File::open(node.scratch.join("plugins/gpu.nvidia.com/pu.lock")).unwrap();
    drop(Flock::lock(lock, FlockArg::LockExclusiveNonblock).unwrap());
    node.driver.answer(&well).unwrap();
    wait("recovery", || node.prepare("a")["error"] == "");
    node.unprepared("a");
    assert_eq!(node.files(), [] as [String; 0]);
    assert!(daemon.is_alive());
}

/// Runs a driver that prepares the claim, and is ended if it is not killed. Returns true if it has answered.
fn traced(node: &mut Node, fault: Option<&Fault>) -> (bool, Report) {
    let path = node.scratch.join("report");
    let mut command = faults::command(fault, &path).unwrap();
    let inner = node.command(&[]);
    command.arg(inner.get_program()).args(inner.get_args());
    let mut daemon = node.spawn(command);
    // The kubelet's steps, of which the last ones may find nobody.
    wait("a registration socket, or the end", || {
        !daemon.is_alive() || !node.registrations().is_empty()
    });
    for socket in node.registrations() {
        node.registration(&socket, "GetInfo", json!({}));
        let registered = json!({"plugin_registered": true});
        node.registration(&socket, "NotifyRegistrationStatus", registered);
    }
    wait("a slice, or the end", || {
        !daemon.is_alive() || !node.slices().is_empty()
    });
    let method = "NodePrepareResources";
    let was_answered = node.services().pop().is_some_and(|service| {
        let answer = node.call_at(&service, method, "a", &uid("a"));
        answer["error"] == ""
    });
    if let Some(pid) = child(&mut daemon) {
        // It may be about to be killed.
        let _ = kill(pid, Signal::SIGTERM);
    }
    daemon.ended();
    node.remove_slices();
    (was_answered, Report::read(&path).unwrap())
}

/// Returns the driver's process, which the tracer has started.
fn child(daemon: &mut Daemon) -> Option<Pid> {
    let tracer = daemon.pid();
    let children = fs::read_to_string(format!("/proc/{tracer}/task/{tracer}/children")).ok()?;
    children
        .split_whitespace()
        .next()?
        .parse()
        .ok()
        .map(Pid::from_raw)
}

/// Returns places of all kinds of calls: of a thread that gives, the first and the last one, of others the last one. The
/// short form takes the steps that change something, or wait, of the threads that give.
fn places(report: &Report) -> Vec<Fault> {
    let mut faults = Vec::new();
    let rename = syscalls::number("renameat");
    let is_long = harness::cases(0, 1) == 1;
    for (task, calls) in &report.calls {
        let is_giving = calls.iter().any(|call| Some(*call) == rename);
        if !is_giving && !is_long {
            continue;
        }
        let mut counts: BTreeMap<i64, usize> = BTreeMap::new();
        for call in calls {
            *counts.entry(*call).or_default() += 1;
        }
        for (call, count) in counts {
            let name = syscalls::name(call);
            if syscalls::number(&name).is_none() || !STEPS.contains(&&*name) && !is_long {
                continue;
            }
            let name: &'static str = Box::leak(name.into_boxed_str());
            let first = if is_giving { 0 } else { count - 1 };
            for call in BTreeSet::from([first, count - 1]) {
                let task = task.clone();
                faults.push(Fault {
                    task,
                    of: Some(name),
                    call,
                    effect: Effect::Killed,
                });
            }
        }
    }
    faults
}

/// Returns the names of the driver's own files, without the sockets of this process.
fn state(node: &Node) -> Vec<String> {
    let entries = fs::read_dir(node.scratch.join("plugins/gpu.nvidia.com")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names
        .map(|name| {
            if name.ends_with(".sock") {
                "socket".to_owned()
            } else {
                name
            }
        })
        .collect();
    names.sort();
    names
}
