//! Injects a fault into every system call of a full `configure`: afterwards nothing has changed, or everything is done.
//! Kills it at every system call: nothing remains that must not, and the next `configure` completes the work.
//!
//! The plan has everything that a plan can have. A tracer, `nvc-fault`, makes one call of the command, its namespace
//! thread (cgroup version 1), the query process or ldconfig fail. The short form takes one call of each kind in each of
//! them and some more, the long form every call; `NVC_TEST_FAULT="main 17"` repeats one. Not tested: calls that cannot
//! fail (`syscalls::INFALLIBLE`), the loader before `main`, and what NVML and ldconfig make of their own failed calls.
#![allow(clippy::unwrap_used)]

#[path = "faults/deaths.rs"]
mod deaths;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::process::ExitCode;

use deaths::killed;
use nix::errno::Errno;
use nvc_testkit::cgroup::{Attach, DeviceCgroup};
use nvc_testkit::cli::{Outcome, Run};
use nvc_testkit::container::{Builder, Container};
use nvc_testkit::faults::{self, Effect, Fault, Report};
use nvc_testkit::harness::Need::{CgroupV1, CgroupV2, Tracing};
use nvc_testkit::harness::{self, test};
use nvc_testkit::machine::{self, Scratch};
use nvc_testkit::{syscalls, tree::Tree};
use nvc_tests::{
    State, command_line, debian_root, failing_ldconfig, host_ldconfig, mounts_inside, start,
};

/// All possible options.
const EVERYTHING: &[&str] = &[
    "--utility",
    "--compute",
    "--graphics",
    "--display",
    "--video",
    "--ngx",
    "--compat32",
    "--device=all",
    "--mig-config=all",
    "--mig-monitor=all",
    "--imex-channel=0",
];

/// Every device of the simulated driver.
const CHOSEN: &str =
    "195:255 195:0 195:1 195:254 UVM:0 UVM:1 CAPS:1 CAPS:2 CAPS:147 CAPS:148 CAPS:156 IMEX:0";
/// Devices that stay denied.
const FORBIDDEN: &str = "1:5 1:8 195:7 IMEX:1";

const ERRNOS: [Errno; 5] = [
    Errno::EIO,
    Errno::ENOMEM,
    Errno::ENOSPC,
    Errno::EMFILE,
    Errno::EPERM,
];

fn main() -> ExitCode {
    // All that `configure` can do: 32-bit libraries, sockets, MPS, IMEX channels.
    harness::on_debian();
    let mut tests = Vec::new();
    for (name, cgroup, need) in [
        ("v1", v1 as fn() -> DeviceCgroup, CgroupV1),
        ("v2", v2, CgroupV2),
    ] {
        let needs = [need, Tracing];
        tests.push(test(
            format!("all_or_nothing_cgroup_{name}"),
            &needs,
            move || {
                all_or_nothing(name, cgroup);
            },
        ));
        tests.push(test(format!("killed_cgroup_{name}"), &needs, move || {
            killed(name, cgroup);
        }));
    }
    tests.extend(nvc_testkit::tests![&[CgroupV2, Tracing];
        kernels_that_cannot_exchange_one_of_several_programs,
    ]);
    harness::main(tests)
}

fn v1() -> DeviceCgroup {
    DeviceCgroup::v1().unwrap()
}

fn v2() -> DeviceCgroup {
    let cgroup = DeviceCgroup::v2().unwrap();
    cgroup.attach(Attach::Multi, &["1:3"]).unwrap()
}

/// A container in a device cgroup, and its state before the test.
struct Subject {
    container: Container,
    before: State,
    rules: Rules,
    /// Version 1 only: without files of the image to mount, the command needs no thread.
    has_compat: bool,
}

/// A device cgroup's rules.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rules {
    allowed: Vec<String>,
    /// Version 1: its lines. Version 2: the number of its programs.
    text: Vec<String>,
}

impl Subject {
    fn new(cgroup: fn() -> DeviceCgroup) -> Self {
        let cgroup = cgroup();
        let mut root = debian_root().no_programs();
        let has_compat = cgroup.rules().is_ok();
        if has_compat {
            root = root.compat("575.57.08");
        }
        // A file to preserve beside ldconfig's files.
        let mut container = start(Builder::new(root.file("/etc/kept", "kept", 0o600)));
        container.join(cgroup).unwrap();
        Self {
            before: State::of(&container),
            rules: Rules::of(&container),
            container,
            has_compat,
        }
    }

    fn configure(&self, fault: Option<&Fault>) -> (Outcome, Report) {
        self.configure_with(&host_ldconfig(), fault)
    }

    fn configure_with(&self, ldconfig: &str, fault: Option<&Fault>) -> (Outcome, Report) {
        let scratch = Scratch::new().unwrap();
        let report = scratch.join("report");
        let command = faults::command(fault, &report).unwrap();
        let outcome = Run::within(command, self.words(ldconfig))
            .outcome()
            .unwrap();
        let report =
            Report::read(&report).unwrap_or_else(|error| panic!("{fault:?}: {error}: {outcome:?}"));
        (outcome, report)
    }

    fn words(&self, ldconfig: &str) -> Vec<OsString> {
        let pid = format!("--pid={}", self.container.pid());
        let words = [&["configure", ldconfig, &pid], EVERYTHING].concat();
        let mut line = command_line(machine::driver(), &words);
        line.push(self.container.root().into());
        line
    }

    /// Returns the changes.
    fn changes(&self) -> Vec<String> {
        let mut changes = self.before.changes(&self.container);
        let rules = Rules::of(&self.container);
        if rules != self.rules {
            changes.push(format!("rules {rules:?}, were {:?}", self.rules));
        }
        changes
    }
}

impl Rules {
    fn of(container: &Container) -> Self {
        let cgroup = container.cgroup().unwrap();
        let devices = machine::driver().fill(&format!("1:3 {CHOSEN} {FORBIDDEN}"));
        let devices: Vec<_> = devices.split(' ').collect();
        let allowed = cgroup.allowed(&devices).unwrap();
        let text = match cgroup.rules() {
            Ok(lines) => lines,
            Err(_) => vec![cgroup.programs().unwrap().to_string()],
        };
        Self {
            allowed: allowed.into_iter().map(str::to_owned).collect(),
            text,
        }
    }
}

/// The effects of a complete success.
#[derive(Debug)]
struct Done {
    mounts: Vec<String>,
    files: Tree,
    inside: Tree,
    rules: Rules,
}

impl Done {
    fn of(subject: &Subject) -> Self {
        let container = &subject.container;
        Self {
            mounts: mounts_inside(container),
            files: container.files().unwrap(),
            inside: container.files_inside().unwrap(),
            rules: Rules::of(container),
        }
    }

    /// Returns the differences of another container.
    fn differences(&self, other: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        let missing = self.mounts.iter().filter(|m| !other.mounts.contains(m));
        lines.extend(missing.map(|mount| format!("mount - {mount}")));
        let surplus = other.mounts.iter().filter(|m| !self.mounts.contains(m));
        lines.extend(surplus.map(|mount| format!("mount + {mount}")));
        if lines.is_empty() && self.mounts.len() != other.mounts.len() {
            lines.push("a mount twice".into());
        }
        lines.extend(other.files.changes_since(&self.files));
        let inside = other.inside.changes_since(&self.inside);
        lines.extend(inside.iter().map(|line| format!("seen inside {line}")));
        if self.rules != other.rules {
            lines.push(format!("rules {:?}", other.rules));
        }
        lines
    }
}

/// Returns the effects of a `configure` on a container that was already configured: its cache lists the links that the
/// first run created.
fn second_time(cgroup: fn() -> DeviceCgroup) -> Done {
    let subject = Subject::new(cgroup);
    for _ in 0..2 {
        Run::cli(subject.words(&host_ldconfig())).succeeds();
    }
    Done::of(&subject)
}

/// Runs a full `configure`; returns its effects and its calls.
fn reference(cgroup: fn() -> DeviceCgroup) -> (Done, Report) {
    let subject = Subject::new(cgroup);
    let (outcome, report) = subject.configure(None);
    assert_eq!(
        (outcome.status, &*outcome.stderr),
        (Some(0), ""),
        "{outcome:?}"
    );
    let done = Done::of(&subject);
    let devices = machine::driver().fill(&format!("1:3 {CHOSEN}"));
    let devices: Vec<_> = devices.split(' ').collect();
    assert_eq!(
        done.rules.allowed, devices,
        "the plan does not have all devices"
    );
    for step in [
        "/libnvidia-ml.so",
        "lib/i386-linux-gnu/",
        "bin/nvidia-smi",
        ".bin ",
        "/socket ",
        "dev/nvidia0 ",
        "dev/nvidia-caps ",
        "/channel0 ",
        "nvidia/capabilities ",
        if subject.has_compat {
            "libcuda.so.575"
        } else {
            "libcuda.so.5"
        },
        "application-profiles-",
        "proc/driver/nvidia ",
    ] {
        let found = done.mounts.iter().any(|mount| mount.contains(step));
        assert!(found, "the plan has no {step}");
    }
    (done, report)
}

/// Returns `wanted` places, or all, evenly spread over the calls of all tasks.
fn spread(report: &Report, wanted: usize) -> BTreeSet<(String, usize)> {
    let all = calls(report);
    let step = all.len().div_ceil(wanted).max(1);
    let chosen = all.iter().step_by(step);
    chosen
        .map(|(task, index, _)| ((*task).clone(), *index))
        .collect()
}

/// Does the same, and adds one of each kind of call for each task.
fn places(report: &Report, wanted: usize) -> BTreeSet<(String, usize)> {
    let mut seen = BTreeSet::new();
    let all = calls(report).into_iter();
    let firsts = all.filter(|(task, _, call)| seen.insert((*task, *call)));
    let mut chosen: BTreeSet<_> = firsts
        .map(|(task, index, _)| (task.clone(), index))
        .collect();
    chosen.extend(spread(report, wanted));
    chosen
}

/// Shuffles the places, so that an aborted run has covered something of every step.
fn mixed(places: BTreeSet<(String, usize)>) -> Vec<(String, usize)> {
    let mut places: Vec<_> = places.into_iter().collect();
    places.sort_by_cached_key(|(_, call)| call * 7919 % 4093);
    places
}

fn calls(report: &Report) -> Vec<(&String, usize, i64)> {
    let of_task = |(task, calls): (_, &Vec<i64>)| -> Vec<(&String, usize, i64)> {
        let calls = (0..).zip(calls);
        calls.map(|(index, call)| (task, index, *call)).collect()
    };
    report.calls.iter().flat_map(of_task).collect()
}

/// Returns the one place that `NVC_TEST_FAULT="main 17"` names, to reproduce a failure.
fn only() -> Option<(String, usize)> {
    let words = std::env::var("NVC_TEST_FAULT").ok()?;
    let (task, call) = words.split_once(' ').expect("a task and a number");
    Some((task.to_owned(), call.parse().expect("a number")))
}

/// The phase of the task in which a call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The loader, before `main`: it does not report errors in our format.
    Loading,
    Ours,
    /// NVML, which may report that there is no GPU, and ldconfig, which continues after many failures and exits with 0.
    Foreign,
}

fn phase(report: &Report, task: &str, call: usize) -> Phase {
    let calls = report.calls.get(task).map(Vec::as_slice);
    let place = |name: &str, nth: usize| {
        let number = syscalls::number(name);
        let places = (0..).zip(calls.unwrap_or_default());
        let mut places = places.filter(|(_, call)| Some(**call) == number);
        places.nth(nth).map(|(place, _)| place)
    };
    // The query process, a fork of the command, polls once whether its parent is alive before it loads NVML.
    let nvml = place("poll", 0).filter(|_| task == "main.process");
    // The loader's last call unmaps its cache.
    if task == "main" && Some(call) <= place("munmap", 0) {
        Phase::Loading
    } else if nvml.is_some_and(|looked| looked < call)
        || place("execveat", 0).is_some_and(|executed| executed < call)
    {
        Phase::Foreign
    } else {
        Phase::Ours
    }
}

/// Counts of the faults' results.
#[derive(Debug, Default)]
struct Tally {
    faults: usize,
    undone: usize,
    tolerated: usize,
    /// NVML or ldconfig continued without the failed operation.
    foreign: usize,
    /// An unreadable file of the driver was omitted, with a warning.
    warned: usize,
    missed: usize,
    wrong: Vec<String>,
    /// Number of these that were printed.
    shown: Cell<usize>,
}

impl Tally {
    /// Prints the progress from time to time: the long form takes an hour.
    fn progress(&self, what: &str) {
        if self.faults % 500 == 499 {
            println!("{what} so far: {}", self.figures());
        }
        if let Some(last) = self.wrong.get(self.shown.replace(self.wrong.len())..) {
            last.iter().for_each(|wrong| println!("wrong: {wrong}"));
        }
    }

    fn figures(&self) -> String {
        let Self {
            faults,
            undone,
            tolerated,
            foreign,
            warned,
            missed,
            wrong,
            ..
        } = self;
        format!(
            "{faults} faults: {undone} undone, {tolerated} tolerated, {foreign} ignored by ldconfig or NVML, \
             {warned} tolerated with a warning, {} wrong; {missed} not met",
            wrong.len()
        )
    }

    /// # Panics
    /// A check failed.
    #[track_caller]
    fn finish(self, what: &str) {
        println!("{what}: {}", self.figures());
        let wrong = self.wrong;
        let shown: Vec<_> = wrong.iter().take(30).collect();
        assert!(wrong.is_empty(), "{} wrong: {shown:#?}", wrong.len());
    }
}

fn all_or_nothing(name: &str, cgroup: fn() -> DeviceCgroup) {
    let (done, report) = reference(cgroup);
    let mut subject = Subject::new(cgroup);
    let mut tally = Tally::default();
    let errnos = harness::cases(1, 2);
    let places = match only() {
        Some(place) => BTreeSet::from([place]),
        None => places(&report, harness::cases(60, usize::MAX)),
    };
    let places = mixed(places);
    for (number, (task, call)) in places.into_iter().enumerate() {
        for errno in ERRNOS.iter().cycle().skip(number).take(errnos) {
            let fault = Fault {
                task: task.clone(),
                of: None,
                call,
                effect: Effect::Fails(*errno),
            };
            let phase = phase(&report, &task, call);
            if !one_fault(&fault, phase, &subject, &done, &mut tally) {
                subject = Subject::new(cgroup);
            }
            tally.progress(name);
        }
    }
    tally.finish(&format!("cgroup {name}, {} calls", report.len()));
}

/// A kernel before 5.6 does not know `BPF_F_REPLACE`, and one before 5.11 counts programs as locked memory: flags and
/// errors that a system-call filter cannot see. Nothing is lost, whichever call fails this way.
fn kernels_that_cannot_exchange_one_of_several_programs() {
    let (done, report) = reference(v2);
    let mut subject = Subject::new(v2);
    let bpf = syscalls::number("bpf").unwrap();
    let of_bpf = calls(&report).into_iter().filter(|call| call.2 == bpf);
    let tasks: Vec<&String> = of_bpf.map(|(task, ..)| task).collect();
    for errno in [Errno::EINVAL, Errno::EPERM] {
        let mut tally = Tally::default();
        for (number, task) in tasks.iter().enumerate() {
            let earlier = tasks[..number].iter().filter(|other| *other == task);
            let fault = Fault {
                task: (*task).clone(),
                of: Some("bpf"),
                call: earlier.count(),
                effect: Effect::Fails(errno),
            };
            if !one_fault(&fault, Phase::Ours, &subject, &done, &mut tally) {
                subject = Subject::new(v2);
            }
        }
        // EINVAL: programs are exchanged one after the other instead. EPERM: only the query of the ancestors' programs may
        // fail, and that is not always among these calls, since a load that a signal interrupts is repeated.
        let expected = if errno == Errno::EINVAL {
            tally.tolerated
        } else {
            tally.undone
        };
        assert!(expected > 0, "{errno}: {tally:?}");
        tally.finish(&format!("bpf, {errno}"));
    }
}

/// Returns true if the container is unchanged.
fn one_fault(
    fault: &Fault,
    phase: Phase,
    subject: &Subject,
    done: &Done,
    tally: &mut Tally,
) -> bool {
    let (outcome, report) = subject.configure(Some(fault));
    let Some(call) = report.hit else {
        // A call that is made only occasionally.
        tally.missed += 1;
        return outcome.status != Some(0) && subject.changes().is_empty();
    };
    tally.faults += 1;
    let wrong = |what: String| {
        format!(
            "{fault}, {}: {what} [{:?} {}]",
            syscalls::name(call),
            outcome.status,
            outcome.stderr.trim_end()
        )
    };
    if !outcome.orphans.is_empty() {
        tally
            .wrong
            .push(wrong(format!("{:?} survived", outcome.orphans)));
    }
    if outcome.status == Some(0) {
        let differences = done.differences(&Done::of(subject));
        match (differences.is_empty(), outcome.stderr.is_empty()) {
            (true, true) => tally.tolerated += 1,
            (_, false) => tally.warned += 1,
            _ if phase == Phase::Foreign => tally.foreign += 1,
            (false, true) => tally.wrong.push(wrong(format!(
                "silently other than a success: {differences:#?}"
            ))),
        }
        return false;
    }
    let changes = subject.changes();
    let clean = changes.is_empty();
    if !clean {
        tally.wrong.push(wrong(format!("not undone: {changes:#?}")));
    } else if phase != Phase::Loading && !is_clear(&outcome) {
        tally.wrong.push(wrong("no clear error".into()));
    } else {
        tally.undone += 1;
    }
    clean
}

fn is_clear(outcome: &Outcome) -> bool {
    let mut lines = outcome.stderr.lines();
    outcome.status == Some(1) && lines.any(|line| line.starts_with("nvidia-container-cli: "))
}
