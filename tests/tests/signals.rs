//! Tests that the error names the signal if a process of the query's user kills a query.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nvc_testkit::cli::program;
use nvc_testkit::driver::{Builder, Driver};
use nvc_testkit::harness;
use nvc_testkit::harness::Need::{Command as Has, Root};
use nvc_testkit::machine::{self, Scratch};

/// The user and group of queries, on most machines `nobody`.
const NOBODY: &str = "65534";

fn main() -> ExitCode {
    harness::main(nvc_testkit::tests![&[Root, Has("setpriv")];
        the_error_names_the_signal,
    ])
}

/// Returns a driver whose NVML takes long enough to be found.
fn slow_driver() -> (Driver, Scratch) {
    let scratch = Scratch::new().unwrap();
    let driver = Builder::default().build(scratch.path()).unwrap();
    let profile = driver.path("/etc/nvidia-sim/profile");
    let text = fs::read_to_string(&profile).unwrap();
    fs::write(&profile, text + "slow-at=nvmlInit_v2:1000\n").unwrap();
    (driver, scratch)
}

/// The command that queries NVML as another user: by a fork, and, because of the variable, by executing a program.
fn commands(driver: &Driver) -> [Command; 2] {
    [false, true].map(|executes| {
        let mut command = Command::new(program().unwrap());
        command.arg(format!("--root={}", driver.root().display()));
        command.arg("info");
        if executes {
            command.env("LD_BIND_NOW", "1");
        }
        // Longer than the test waits.
        command.env("NVC_DRIVER_TIMEOUT", "600");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::piped());
        command
    })
}

/// Runs a command and sends a signal to its query.
fn attacked(mut command: Command, signal: &str) -> Output {
    let victim = command.spawn().unwrap();
    let patience = Instant::now() + Duration::from_secs(120);
    let query = loop {
        assert!(Instant::now() < patience, "{signal}: no query");
        match query_of(&victim) {
            Some(query) => break query,
            None => thread::sleep(Duration::from_millis(5)),
        }
    };
    let mut kill = Command::new("setpriv");
    kill.arg(format!("--reuid={NOBODY}"))
        .arg(format!("--regid={NOBODY}"));
    let kill = kill.args(["--clear-groups", "kill", signal, &query]);
    assert!(kill.status().unwrap().success());
    victim.wait_with_output().unwrap()
}

/// Returns the pid of a command's query that runs as its user.
fn query_of(victim: &Child) -> Option<String> {
    let parent = format!("PPid:\t{}", victim.id());
    let user = format!("Uid:\t{NOBODY}\t");
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        .find(|name| {
            let status = fs::read_to_string(Path::new("/proc").join(name).join("status"));
            let status = status.unwrap_or_default();
            let has = |start: &str| status.lines().any(|line| line.starts_with(start));
            status.lines().any(|line| line == parent) && has(&user)
        })
}

fn the_error_names_the_signal() {
    machine::driver();
    let (driver, _scratch) = slow_driver();
    for (signal, words) in [
        ("-KILL", "it was killed by SIGKILL"),
        ("-SEGV", "it was killed by SIGSEGV"),
    ] {
        for command in commands(&driver) {
            let text = format!("{signal} {command:?}");
            let output = attacked(command, signal);
            assert_eq!(output.status.code(), Some(1), "{text}: {output:?}");
            let message = String::from_utf8_lossy(&output.stderr);
            assert!(message.contains(words), "{text}: {message}");
        }
    }
}
