//! Stops a `configure` when its discovery is complete except for NVML's answers.
//!
//! The simulated NVML reads its answers from a file; here that file is a pipe without a writer. The program's main
//! thread then sleeps in poll(2), after it has found the container and read the linker cache.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use nvc_testkit::cli::Outcome;
use nvc_testkit::container::Container;
use nvc_testkit::driver::Driver;
use nvc_testkit::profile::Profile;
use nvc_tests::configure_on;

/// A `configure` that waits for NVML.
pub(crate) struct Paused<'a> {
    driver: &'a Driver,
    answers: File,
    outcome: Receiver<Outcome>,
}

const PROFILE: &str = "/etc/nvidia-sim/profile";

/// Starts a `configure` and returns when it waits.
pub(crate) fn configure<'a>(
    driver: &'a Driver,
    container: &Container,
    arguments: &[&str],
) -> Paused<'a> {
    let pipe = driver.path(PROFILE);
    fs::remove_file(&pipe).unwrap();
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::from_bits_truncate(0o644)).unwrap();
    let run = configure_on(driver, container, arguments);
    let (tell, outcome) = mpsc::channel();
    thread::spawn(move || tell.send(run.outcome().unwrap()));
    let answers = wait_for("NVML", || {
        let mut options = OpenOptions::new();
        let options = options
            .write(true)
            .custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits());
        options.open(&pipe).ok()
    });
    wait_for("poll(2)", || in_poll(container.root()).then_some(()));
    Paused {
        driver,
        answers,
        outcome,
    }
}

impl Paused<'_> {
    /// Provides NVML's answers, and lets the program run to its end.
    pub(crate) fn resume(mut self, profile: &Profile) -> Outcome {
        // NVML reads it twice.
        fs::remove_file(self.driver.path(PROFILE)).unwrap();
        self.driver.answer(profile).unwrap();
        self.answers
            .write_all(profile.to_string().as_bytes())
            .unwrap();
        drop(self.answers);
        self.outcome.recv().unwrap()
    }
}

/// Returns true if the command that configures this root sleeps in poll(2).
fn in_poll(root: &Path) -> bool {
    let calls: &[&str] = if cfg!(target_arch = "x86_64") {
        &["7", "271"]
    } else {
        &["73"]
    };
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter(|entry| {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let mut words = line.split(|&byte| byte == 0);
            let program = words.next().unwrap_or_default();
            program.ends_with(b"/nvidia-container-cli")
                && words.any(|word| word == root.as_os_str().as_bytes())
        })
        .any(|entry| {
            let call = fs::read_to_string(entry.path().join("syscall")).unwrap_or_default();
            let call = call.split(' ').next().unwrap_or_default();
            calls.contains(&call)
        })
}

fn wait_for<T>(what: &str, mut test: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = test() {
            return value;
        }
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "timed out waiting for {what}"
        );
        thread::sleep(Duration::from_millis(2));
    }
}
