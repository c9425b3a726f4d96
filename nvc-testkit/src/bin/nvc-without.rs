//! Runs a command on a kernel without some system calls, as old kernels and sandboxes are: `nvc-without open_tree -- true`.
//!
//! A system-call filter answers `ENOSYS`, or with `EPERM` as the first argument `EPERM`, for the calls that are named. What
//! old kernels do differently rather than not at all stays as it is.

use std::collections::BTreeMap;
use std::env;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// Numbers of the calls added since Linux 5.1, the same on every architecture, and of older ones on this.
const CALLS: &[(&str, i64)] = &[
    ("open_tree", 428),
    ("move_mount", 429),
    ("fsopen", 430),
    ("fsconfig", 431),
    ("fsmount", 432),
    ("clone3", 435),
    ("close_range", 436),
    ("openat2", 437),
    ("mount_setattr", 442),
    #[cfg(target_arch = "x86_64")]
    ("memfd_create", 319),
    #[cfg(target_arch = "aarch64")]
    ("memfd_create", 279),
    #[cfg(target_arch = "x86_64")]
    ("statx", 332),
    #[cfg(target_arch = "aarch64")]
    ("statx", 291),
];

fn main() -> ExitCode {
    match run(env::args().skip(1).collect()) {
        Ok(never) => match never {},
        Err(error) => {
            eprintln!("nvc-without: {error}");
            ExitCode::from(127)
        }
    }
}

fn run(mut words: Vec<String>) -> Result<std::convert::Infallible, Box<dyn std::error::Error>> {
    let end = words
        .iter()
        .position(|word| word == "--")
        .ok_or("usage: nvc-without [EPERM] CALL... -- COMMAND...")?;
    let command = words.split_off(end + 1);
    words.pop();
    let errno = match words.first().map(String::as_str) {
        Some("EPERM") => {
            words.remove(0);
            nix::libc::EPERM
        }
        _ => nix::libc::ENOSYS,
    };
    let mut rules = BTreeMap::new();
    for word in &words {
        let found = CALLS.iter().find(|(name, _)| name == word);
        let (_, number) = found.ok_or_else(|| format!("{word}: unknown system call"))?;
        rules.insert(*number, Vec::new());
    }
    let answer = SeccompAction::Errno(u32::try_from(errno)?);
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        answer,
        env::consts::ARCH.try_into()?,
    )?;
    seccompiler::apply_filter(&BpfProgram::try_from(filter)?)?;
    let (program, arguments) = command.split_first().ok_or("no command")?;
    Err(Command::new(program).args(arguments).exec().into())
}
