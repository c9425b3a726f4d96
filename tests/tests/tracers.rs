//! Tries to trace our processes like a container in the host's pid namespace with docker's default capabilities.
//!
//! The tracer (tests/c/tracer.c) runs a command. From its first process to the end of its last, it tries
//! /proc/PID/root, cwd, mem, exe, fd and maps, process_vm_readv(2), pidfd_getfd(2) and ptrace(2) on each process and
//! thread.
//! `the_tracer_sees_what_is_open` proves that each of them works on a process that is not protected.
#![allow(clippy::unwrap_used)]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use nvc_testkit::cli::{self, Run};
use nvc_testkit::driver::{Builder, Driver};
use nvc_testkit::harness;
use nvc_testkit::harness::Need::{Command as Program, Root};
use nvc_testkit::machine::{self, Scratch};
use nvc_testkit::profile::{Fault, Profile};
use nvc_tests::capi::{library_dir, repository};
use nvc_tests::{command_line, debian, host_ldconfig};

fn main() -> ExitCode {
    harness::main(
        nvc_testkit::tests![&[Root, Program("cc"), Program("setpriv")];
            the_tracer_sees_what_is_open,
            the_driver_process_is_closed,
            the_driver_process_of_the_c_library_is_closed,
            ldconfig_is_closed,
            ldconfig_is_closed_without_a_shield,
            everything_that_configure_starts_is_closed,
        ],
    )
}

/// A tracer's findings about a command.
#[derive(Debug)]
struct Report {
    saw: Vec<String>,
    may: Vec<String>,
    status: i32,
}

impl Report {
    /// Checks that it saw a process of this name and could not access anything.
    #[track_caller]
    fn assert_closed(&self, name: &str) {
        let seen = self.saw.iter().any(|line| line.contains(name));
        assert!(seen, "{name}: {self:#?}");
        assert!(self.may.is_empty(), "{self:#?}");
    }
}

fn compile(scratch: &Scratch, source: &str, more: &[&str]) -> PathBuf {
    let program = scratch.join(source);
    let output = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"])
        .arg(&program)
        .arg(
            repository()
                .join("tests/c")
                .join(source)
                .with_extension("c"),
        )
        .args(more)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    program
}

/// Runs a command while a user traces it.
fn trace(user: u32, command: Vec<OsString>, environment: &[(&str, &Path)]) -> Report {
    let scratch = Scratch::new().unwrap();
    let mut run = Run::other(compile(&scratch, "tracer", &[]));
    for (name, value) in environment {
        run = run.env(name, *value);
    }
    let outcome = run
        .args([user.to_string()])
        .args(command)
        .outcome()
        .unwrap();
    assert_eq!(outcome.status, Some(0), "{outcome:#?}");
    let lines = |prefix: &str| {
        let found = outcome
            .stdout
            .lines()
            .filter_map(|l| l.strip_prefix(prefix));
        found.map(str::to_owned).collect::<Vec<_>>()
    };
    Report {
        saw: lines("saw "),
        may: lines("may "),
        status: lines("status ").concat().parse().unwrap(),
    }
}

/// Returns the arguments of the command line.
fn words(driver: &Driver, arguments: &[&str]) -> Vec<OsString> {
    let mut command = vec![cli::program().unwrap().into()];
    command.extend(command_line(driver, arguments));
    command
}

fn hanging(symbol: &str) -> (Driver, Scratch) {
    let scratch = Scratch::new().unwrap();
    let profile = Profile::default().fault(Fault::HangAt(symbol.into()));
    let driver = Builder::new(profile).build(scratch.join("driver")).unwrap();
    (driver, scratch)
}

/// Control: it can access everything of a process without capabilities, and nothing of one with a shield.
fn the_tracer_sees_what_is_open() {
    let sleep = |caps: &str| {
        let command = [
            "setpriv",
            "--inh-caps",
            caps,
            "--bounding-set",
            caps,
            "sleep",
            "0.2",
        ];
        trace(0, command.map(OsString::from).into(), &[])
    };
    let report = sleep("-all");
    for way in [
        "root",
        "cwd",
        "mem",
        "exe",
        "fd",
        "maps",
        "process_vm_readv",
        "pidfd_getfd",
        "ptrace",
    ] {
        let line = format!("{way} sleep sleep");
        assert!(report.may.contains(&line), "{line}: {report:#?}");
    }
    sleep("-all,+wake_alarm").assert_closed("sleep");
}

fn the_driver_process_is_closed() {
    // While NVML is loaded (in a constructor), initialised, and queried.
    for symbol in ["nvmlInit_v2", "nvmlDeviceGetName"] {
        let (driver, _scratch) = hanging(symbol);
        for (user, option) in [
            (0, "--user=0:0"),
            (0, "--user"),
            (65534, "--user=65534:65534"),
        ] {
            let mut command = words(&driver, &[option, "info"]);
            command.splice(0..0, ["env", "NVC_DRIVER_TIMEOUT=1"].map(OsString::from));
            let report = trace(user, command, &[]);
            report.assert_closed("nvc:[driver]");
            assert_eq!(report.status, 1, "{report:#?}");
        }
    }
}

fn the_driver_process_of_the_c_library_is_closed() {
    let scratch = Scratch::new().unwrap();
    let library = library_dir();
    let include = repository().join("include");
    let program = compile(
        &scratch,
        "narrowed",
        &[
            "-pthread",
            "-I",
            include.to_str().unwrap(),
            "-L",
            library.to_str().unwrap(),
            "-lnvidia-container",
        ],
    );
    let (driver, _scratch) = hanging("nvmlInit_v2");
    // Executed, and forked: because the program would lack capabilities, or because it would be traceable at its start.
    for mode in ["wide", "narrow", "docker"] {
        for user in ["0", "65534"] {
            let mut command = ["env", "NVC_DRIVER_TIMEOUT=1"].map(OsString::from).to_vec();
            command.extend([
                program.clone().into(),
                driver.root().into(),
                mode.into(),
                "1".into(),
                user.into(),
            ]);
            let environment = [("LD_LIBRARY_PATH", library.as_path())];
            let report = trace(user.parse().unwrap(), command, &environment);
            report.assert_closed("nvc:[driver]");
        }
    }
}

fn configure(ldconfig: &str, user: &str) -> Report {
    let container = debian();
    let pid = format!("--pid={}", container.pid());
    let line = ["configure", ldconfig, "--no-cgroups", "--compute", &pid];
    let mut command = words(machine::driver(), &[&[user], &line[..]].concat());
    command.push(container.root().into());
    trace(0, command, &[])
}

fn ldconfig_is_closed() {
    let scratch = Scratch::new().unwrap();
    let program = compile(&scratch, "busy", &["-static"]);
    let report = configure(
        &format!("--ldconfig=@{}", program.display()),
        "--user=65534",
    );
    report.assert_closed(program.to_str().unwrap());
    assert_eq!(report.status, 0, "{report:#?}");
}

/// A host whose root lacks the shield capabilities: then the program is not readable, and therefore not dumpable.
fn ldconfig_is_closed_without_a_shield() {
    let scratch = Scratch::new().unwrap();
    let program = compile(&scratch, "busy", &["-static"]);
    let container = debian();
    let caps = "-wake_alarm,-block_suspend";
    let mut command = ["setpriv", "--inh-caps", caps, "--bounding-set", caps]
        .map(OsString::from)
        .to_vec();
    let ldconfig = format!("--ldconfig=@{}", program.display());
    let pid = format!("--pid={}", container.pid());
    let line = ["configure", &ldconfig, "--no-cgroups", "--compute", &pid];
    command.extend(words(machine::driver(), &line));
    command.push(container.root().into());
    let report = trace(0, command, &[]);
    report.assert_closed(program.to_str().unwrap());
    assert_eq!(report.status, 0, "{report:#?}");
}

/// Whole runs, from the first process to the last.
fn everything_that_configure_starts_is_closed() {
    for _ in 0..5 {
        for user in ["--user", "--load-kmods"] {
            let report = configure(&host_ldconfig(), user);
            report.assert_closed("nvidia-containe");
            assert_eq!(report.status, 0, "{report:#?}");
        }
    }
}
