//! Opens devices from inside a cgroup: this program again, as a process that executes commands.

use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;

use libnvc::container::CgroupVersion;
use libnvc::host::DeviceNumber;
use libnvc::testing::{WantedDevice, allow_devices};
use nix::errno::Errno;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

const WANTED: &str = "NVC_TEST_CGROUP_PROBE";

/// Returns true if this process is a probe.
pub(crate) fn is_wanted() -> bool {
    std::env::var_os(WANTED).is_some()
}

/// A probe process.
pub(crate) struct Probe {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Probe {
    /// Starts one with all privileges.
    pub(crate) fn start() -> Self {
        Self::spawn(&mut Command::new("/proc/self/exe"))
    }

    /// Starts one as an unprivileged user.
    pub(crate) fn start_as_nobody() -> Self {
        Self::spawn(Command::new("/proc/self/exe").uid(65534).gid(65534))
    }

    /// Starts one that is root only in a user namespace.
    pub(crate) fn start_in_user_namespace() -> Self {
        let exe = std::env::current_exe().unwrap();
        Self::spawn(
            Command::new("unshare")
                .args(["--user", "--map-root-user"])
                .arg(exe),
        )
    }

    fn spawn(command: &mut Command) -> Self {
        let mut child = command
            .env(WANTED, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let orders = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            orders,
            answers,
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a command and waits for the answer.
    pub(crate) fn ask(&mut self, order: &str) -> String {
        writeln!(self.orders, "{order}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    }

    /// Ends it.
    pub(crate) fn stop(mut self) {
        drop(self.orders);
        let ended = self.child.wait().unwrap();
        // In a failing test, the panic is more informative than the probe's exit code.
        assert!(ended.success() || std::thread::panicking());
    }
}

/// Executes commands until the input ends.
pub(crate) fn run() -> ExitCode {
    let mut racer = None;
    for line in io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<_> = line.split(' ').collect();
        let answer = match words.as_slice() {
            ["open", path] => open(path),
            ["create", path, major, minor] => create(path, major, minor),
            ["race", path] => {
                racer = Some(Racer::start(path));
                "running".to_owned()
            }
            ["halt"] => racer.take().expect("a race").halt(),
            ["allow", "1", directory] => allow(CgroupVersion::V1, directory),
            ["allow", "2", directory] => allow(CgroupVersion::V2, directory),
            _ => panic!("what is {line:?}?"),
        };
        println!("{answer}");
    }
    ExitCode::SUCCESS
}

/// Returns `yes` if a node can be opened in every mode, `no` if in none.
///
/// Only EPERM comes from the cgroup: a missing driver is detected after the cgroup's check.
fn open(path: &str) -> String {
    let answers = [(true, false), (false, true), (true, true)].map(|(read, write)| {
        let opened = std::fs::File::options()
            .read(read)
            .write(write)
            .custom_flags(nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY)
            .open(path);
        match opened.map_err(|e| e.raw_os_error()) {
            Ok(_) | Err(Some(nix::libc::ENXIO | nix::libc::ENODEV)) => "yes".to_owned(),
            Err(Some(nix::libc::EPERM)) => "no".to_owned(),
            other => format!("{other:?}"),
        }
    });
    if answers.iter().all(|answer| *answer == answers[0]) {
        answers[0].clone()
    } else {
        answers.join("/")
    }
}

fn create(path: &str, major: &str, minor: &str) -> String {
    let number = makedev(major.parse().unwrap(), minor.parse().unwrap());
    match mknod(path, SFlag::S_IFCHR, Mode::S_IRUSR, number) {
        Ok(()) => "yes".to_owned(),
        Err(Errno::EPERM) => "no".to_owned(),
        Err(errno) => errno.to_string(),
    }
}

/// Opens one device again and again.
struct Racer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Racer {
    /// Returns after the first denial.
    fn start(path: &str) -> Self {
        let denied = Arc::new(Barrier::new(2));
        let stop = Arc::new(AtomicBool::new(false));
        let (path, first, halt) = (path.to_owned(), Arc::clone(&denied), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut others = 0;
            let mut first = Some(first);
            while !halt.load(Ordering::Relaxed) {
                match std::fs::File::open(&path) {
                    Err(e) if e.kind() == ErrorKind::PermissionDenied => {
                        if let Some(first) = first.take() {
                            first.wait();
                        }
                    }
                    _ => others += 1,
                }
            }
            others
        });
        denied.wait();
        Self { stop, thread }
    }

    fn halt(self) -> String {
        self.stop.store(true, Ordering::Relaxed);
        let others = self.thread.join().unwrap();
        format!("slipped through {others} times")
    }
}

/// Returns the result of this process changing a cgroup.
fn allow(version: CgroupVersion, directory: &str) -> String {
    let file = std::fs::File::open(directory).unwrap();
    let device = WantedDevice {
        number: DeviceNumber {
            major: 195,
            minor: 0,
        },
        is_vital: true,
    };
    match allow_devices(file.as_fd(), version, &[device], Path::new(directory)) {
        Ok(rules) => format!("changed: {}", !rules.is_empty()),
        Err(e) => format!(
            "{} (hint: {})",
            e.message(),
            e.advice().unwrap_or_else(|| "none".into())
        ),
    }
}
