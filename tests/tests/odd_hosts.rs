//! Tests unexpected objects in place of a driver's files: they are omitted with a warning, and containers start.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::process::{Command, ExitCode};

use nvc_testkit::cli::Run;
use nvc_testkit::driver::{Builder, Driver};
use nvc_testkit::harness;
use nvc_testkit::harness::Need::Root;
use nvc_testkit::machine::Scratch;
use nvc_tests::{State, command_line, configure_on, debian};

fn main() -> ExitCode {
    // Each kind of a host's file: firmware, sockets, MPS, the modeset node.
    harness::on_debian();
    harness::main(nvc_testkit::tests![&[Root];
        odd_files_are_left_out,
        an_odd_program_has_a_substitute,
    ])
}

/// Every kind of host file: a path, and the text of the warning.
const ODD: &[(&str, &str)] = &[
    ("/usr/bin/nvidia-smi", "it is not a regular file"),
    ("/LIB/libnvidia-opencl.so.VER", "it is not a regular file"),
    (
        "/lib/firmware/nvidia/VER/gsp_ga10x.bin",
        "it is not a regular file",
    ),
    ("/var/run/nvidia-persistenced/socket", "it is not a socket"),
    ("/tmp/nvidia-mps", "it is not a directory"),
    ("/proc/driver/nvidia/registry", ""),
    ("/dev/nvidia-modeset", "no such device"),
];

const WORDS: &[&str] = &[
    "--utility",
    "--compute",
    "--graphics",
    "--display",
    "--device=all",
];

/// Replaces a file of the driver by another object.
fn spoil(driver: &Driver, path: &str, kind: &str) {
    let path = driver.path(driver.fill(path));
    if path.is_dir() {
        fs::remove_dir_all(&path).unwrap();
    } else {
        fs::remove_file(&path).unwrap();
    }
    match kind {
        "fifo" => {
            let status = Command::new("mkfifo").arg(&path).status();
            assert!(status.unwrap().success());
        }
        _ => fs::create_dir(&path).unwrap(),
    }
}

/// Runs a command that must succeed; returns its output and its warnings.
fn run(command: Run) -> (String, String) {
    let outcome = command.outcome().unwrap();
    assert_eq!(outcome.status, Some(0), "{}", outcome.stderr);
    (outcome.stdout, outcome.stderr)
}

fn odd_files_are_left_out() {
    for (path, words) in ODD {
        for kind in ["fifo", "directory"] {
            if (*path, kind) == ("/tmp/nvidia-mps", "directory") {
                continue; // as it should be
            }
            println!("{kind} {path}");
            let scratch = Scratch::new().unwrap();
            let driver = Builder::default().build(scratch.join("driver")).unwrap();
            spoil(&driver, path, kind);
            let container = debian();
            let before = State::of(&container);
            let warnings = run(configure_on(&driver, &container, WORDS)).1;
            let odd = driver.fill(path);
            let mounted = before.new_mounts(&container);
            assert!(mounted.len() > 20, "{mounted:#?}");
            let name = odd.rsplit('/').next().unwrap();
            let is_odd = |line: &&String| line.contains(&format!("/{name} "));
            // The directory over procfs, and the remaining daemon's socket, stay.
            if name != "socket" && name != "registry" {
                assert_eq!(mounted.iter().find(is_odd), None);
            }
            let warned = |line: &str| line.contains("skipping") && line.contains(words);
            assert!(
                words.is_empty() || warnings.lines().any(warned),
                "{warnings}"
            );
            // The list has what would be mounted.
            let listed = run(Run::cli(command_line(&driver, &["list"]))).0;
            let is_odd = |line: &&str| {
                line.strip_prefix(driver.root().to_str().unwrap()) == Some(&odd) || *line == odd
            };
            assert_eq!(listed.lines().find(is_odd), None);
        }
    }
}

/// As in a shell, the next directory of the search path is tried.
fn an_odd_program_has_a_substitute() {
    let scratch = Scratch::new().unwrap();
    let driver = Builder::default().build(scratch.join("driver")).unwrap();
    let program = driver.path("/usr/bin/nvidia-smi");
    let other = driver.path("/usr/local/bin/nvidia-smi");
    fs::create_dir_all(other.parent().unwrap()).unwrap();
    fs::rename(&program, &other).unwrap();
    fs::create_dir(&program).unwrap();
    let list = Run::cli(command_line(&driver, &["list", "--binaries"]));
    let (listed, _) = run(list.env("PATH", "/usr/bin:/usr/local/bin"));
    assert!(listed.contains("/usr/local/bin/nvidia-smi\n"), "{listed}");
}
