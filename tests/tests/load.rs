//! Tests many containers: configured in parallel, one after the other, by one process, and one by two processes. All
//! are correct, and nothing is left over.
//!
//! Each container is in a cgroup of its own with a device program; a process there tries the devices. Afterwards the
//! test has the same descriptors, mounts and children as before, and the kernel none of the loaded programs. Times and
//! available memory are printed, not asserted.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nvc_testkit::cgroup::{Attach, DeviceCgroup, loaded_programs};
use nvc_testkit::cli::Run;
use nvc_testkit::container::Container;
use nvc_testkit::harness::Need::{self, CgroupV2, Root};
use nvc_testkit::harness::{self, cases};
use nvc_testkit::{machine, mounts};
use nvc_tests::capi::{Check, Program, library_dir};
use nvc_tests::{State, command_line, debian, host_ldconfig};

const DEVICES: [&str; 4] = ["1:3", "195:255", "195:0", "195:1"];

fn main() -> ExitCode {
    let mut tests = nvc_testkit::tests![&[Root, CgroupV2];
        many_at_the_same_time,
        many_one_after_the_other,
        two_at_once_on_one_container,
    ];
    tests.extend(nvc_testkit::tests![&[Root, CgroupV2, Need::Command("gcc")];
        many_by_one_process,
    ]);
    harness::main(tests)
}

/// Resources of this process, its mount namespace and the kernel.
#[derive(Debug, PartialEq, Eq)]
struct Census {
    descriptors: usize,
    mounts: usize,
    children: String,
    programs: usize,
}

impl Census {
    fn take() -> Self {
        let tasks = fs::read_dir("/proc/self/task").unwrap();
        let children = tasks.flatten().map(|task| task.path().join("children"));
        Self {
            descriptors: fs::read_dir("/proc/self/fd").unwrap().count(),
            mounts: mounts::of("self").unwrap().len(),
            // A thread may end concurrently.
            children: children
                .filter_map(|path| fs::read_to_string(path).ok())
                .collect(),
            programs: loaded_programs().unwrap(),
        }
    }
}

/// Runs a test alone, and fails unless the resources are the same afterwards.
fn alone(test: impl FnOnce()) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    // A failed test may leave resources behind.
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    // Created once, and kept.
    machine::driver();
    let (before, memory) = (Census::take(), available());
    test();
    let deadline = Instant::now() + Duration::from_secs(120);
    // The kernel frees programs and cgroups with a delay.
    while Census::take() != before && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(Census::take(), before);
    println!(
        "available memory: {memory} kB before, {} kB after",
        available()
    );
}

fn available() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    line.unwrap().trim_end_matches("kB").trim().parse().unwrap()
}

/// A container in a cgroup that allows only /dev/null, and its initial state.
struct Subject {
    container: Container,
    before: State,
}

impl Subject {
    fn new() -> Self {
        let cgroup = DeviceCgroup::v2().unwrap();
        let cgroup = cgroup.attach(Attach::Multi, &["1:3"]).unwrap();
        let mut container = debian();
        container.join(cgroup).unwrap();
        let before = State::of(&container);
        Self { container, before }
    }

    fn configure(&self, gpu: &str) -> Run {
        let (pid, device) = (
            format!("--pid={}", self.container.pid()),
            format!("--device={gpu}"),
        );
        let ldconfig = host_ldconfig();
        let words = [
            "configure",
            &ldconfig,
            &pid,
            "--utility",
            "--compute",
            &device,
        ];
        let mut line = command_line(machine::driver(), &words);
        line.push(self.container.root().into());
        Run::cli(line).env("NVC_DRIVER_TIMEOUT", "600")
    }

    /// Fails unless exactly these devices can be opened in it.
    #[track_caller]
    fn opens(&self, expected: &[&str]) {
        let cgroup = self.container.cgroup().unwrap();
        assert_eq!(cgroup.allowed(&DEVICES).unwrap(), expected);
        assert_eq!(cgroup.programs().unwrap(), 1);
    }

    /// Returns the new mounts, after checking the host.
    #[track_caller]
    fn mounted(&self) -> Vec<String> {
        self.before.assert_host_unchanged(&self.container);
        self.before.new_mounts(&self.container)
    }
}

/// Returns the mounts of an undisturbed container.
fn expected(gpus: &str) -> Vec<String> {
    let subject = Subject::new();
    subject.configure(gpus).succeeds();
    let mounted = subject.mounted();
    assert!(mounted.len() > 20, "{mounted:#?}");
    mounted
}

/// Runs all in parallel.
fn all_succeed(runs: Vec<Run>) {
    thread::scope(|scope| {
        for run in runs {
            scope.spawn(|| run.succeeds());
        }
    });
}

fn many_at_the_same_time() {
    alone(|| {
        let expected = expected("0");
        let subjects: Vec<_> = (0..cases(20, 200)).map(|_| Subject::new()).collect();
        let begin = Instant::now();
        let runs = subjects.iter().map(|subject| subject.configure("0"));
        all_succeed(runs.collect());
        println!("{} at the same time: {:?}", subjects.len(), begin.elapsed());
        for subject in &subjects {
            assert_eq!(subject.mounted(), expected);
            subject.opens(&["1:3", "195:255", "195:0"]);
        }
    });
}

fn many_one_after_the_other() {
    alone(|| {
        let expected = expected("0");
        let count = cases(25, 2000);
        let mut taken = Duration::ZERO;
        for number in 0..count {
            let subject = Subject::new();
            let begin = Instant::now();
            subject.configure("0").succeeds();
            taken += begin.elapsed();
            assert_eq!(subject.mounted(), expected, "container {number}");
            subject.opens(&["1:3", "195:255", "195:0"]);
        }
        println!("{count} one after the other: {taken:?} of configuring");
    });
}

/// Two processes configure the same container with different GPUs: it gets both, everything once, and nothing else.
fn two_at_once_on_one_container() {
    alone(|| {
        let expected = expected("0,1");
        for number in 0..cases(10, 500) {
            let subject = Subject::new();
            all_succeed(["0", "1"].map(|gpu| subject.configure(gpu)).into());
            subject.opens(&DEVICES);
            assert_eq!(subject.mounted(), expected, "container {number}");
        }
    });
}

/// A long-running program with the C library.
struct Caller {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Caller {
    fn start(program: &Program, options: &str) -> Self {
        let mut process = Command::new(program.path())
            .arg(machine::driver().root())
            .arg(options)
            .env_clear()
            .env("PATH", nvc_testkit::cli::PATH)
            .env("LD_LIBRARY_PATH", library_dir())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let orders = process.stdin.take().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap());
        Self {
            process,
            orders,
            answers,
        }
    }

    /// Lets it configure a container; returns its descriptors, threads, and bytes of memory afterwards.
    fn configure(&mut self, container: &Container) -> [usize; 3] {
        let (pid, root) = (container.pid(), container.root().display());
        writeln!(self.orders, "{pid} {root} 0").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        let numbers = answer.split_whitespace().map(str::parse);
        let numbers: Result<Vec<usize>, _> = numbers.collect();
        let numbers = numbers.ok().and_then(|numbers| numbers.try_into().ok());
        numbers.unwrap_or_else(|| panic!("{answer}"))
    }

    fn end(mut self) {
        drop(self.orders);
        assert!(self.process.wait().unwrap().success());
    }
}

fn many_by_one_process() {
    /// Bytes that are not a leak: the allocator's memory for short-lived threads. It grows more and more slowly.
    const NOISE: usize = 64 << 10;
    alone(|| {
        let program = Program::compile("gcc", "tests/c/repeat.c", Check::Plain);
        let mut caller = Caller::start(&program, "supervised utility compute");
        let count = cases(20, 1000);
        let mut memory = Vec::new();
        let mut first = None;
        for number in 0..count {
            let subject = Subject::new();
            let [descriptors, threads, bytes] = caller.configure(&subject.container);
            subject.opens(&["1:3", "195:255", "195:0"]);
            let now = (descriptors, threads, subject.mounted());
            // Includes `.` and `..`.
            assert_eq!(threads, 3);
            assert_eq!(*first.get_or_insert(now.clone()), now, "container {number}");
            memory.push(bytes);
        }
        let half = memory.len() / 2;
        println!(
            "{count} by one process: {} bytes after the first, {} after half, {} at the end",
            memory[0],
            memory[half],
            memory[count - 1]
        );
        assert!(memory[count - 1] <= memory[half] + NOISE, "{memory:?}");
        caller.end();
    });
}
