//! Runs the hooks of CDI specifications: small changes in a container's root before its process starts.
//!
//! They run as createContainer hooks: in the container's namespaces, but with the host's root, /proc and /dev, and with
//! the container's root at a path from the state on standard input. [`root`] opens it once. A hook turns its arguments
//! into intents ([`hooks`]), which libnvc applies in that root, whose content is hostile. All policy is in the arguments:
//! neither the environment, which can be the container's own, nor a configuration file is read.
//!
//! Exit codes: 0 for success, and for hooks that this version does not know; 1 for failure. Engines tend to show only
//! the exit code, so errors go to standard error and to the system's log.

#![forbid(unsafe_code)]

// the command line
mod arguments;

// what to do: pure, but for the search for the driver's files
mod hooks;

// the container
mod container;
mod memory_limits;
mod root;
mod state;

// messages
pub mod report;

use std::ffi::OsString;

use arguments::Words;
use libnvc::Result;
use nvc_program::hook_names;
use report::Report;
pub use report::Verbosity;

/// The program's name in messages.
const PROGRAM: &str = "nvidia-cdi-hook";

/// Runs the hook that the words name; returns the exit code.
pub fn run(words: &[OsString], verbosity: Verbosity) -> u8 {
    let mut report = Report::new(verbosity);
    let done = dispatch(words, &mut report);
    report.library_warnings();
    if let Err(error) = &done {
        report.failure(error);
    }
    // crun treats a hook that leaves the state unread as failed.
    state::drain();
    u8::from(done.is_err())
}

fn dispatch(words: &[OsString], report: &mut Report) -> Result<()> {
    let mut words = Words::new(words)?;
    let Some(name) = program_options(&mut words, report)? else {
        return Ok(());
    };
    let Some(hook) = hooks::find(&name) else {
        // A specification of a later version must not prevent containers from starting.
        let near = hooks::nearest(&name);
        let hint = near.map(|near| format!(" (hint: did you mean {near}?)"));
        let hint = hint.unwrap_or_default();
        report.warning(&format!("Unsupported CDI hook: {name}{hint}"));
        return Ok(());
    };
    if words.asks_for_help() {
        report.print(&hook.help());
        return Ok(());
    }
    let given = match words.options(hook.options) {
        Ok(given) => given,
        Err(error) => {
            report.state();
            report.print(&hook.help());
            return Err(error);
        }
    };
    if given.flag("debug") {
        report.debug();
    }
    if given.flag("quiet") {
        report.quiet();
    }
    if hook.name == hook_names::APPLY_MEMORY_LIMITS {
        return memory_limits::check(&container::state(&given, report)?, report);
    }
    let Some(intents) = hook.intents else {
        return Ok(());
    };
    let root = container::open(&given, report)?;
    let intents = intents(&given)?;
    report.keep_library_warnings();
    container::change(root, &intents, hook, &given, report)
}

/// Handles the options before the hook's name; returns the name, or None if there is nothing left to do.
fn program_options(words: &mut Words, report: &mut Report) -> Result<Option<String>> {
    loop {
        if let Some(is_on) = words.program_flag(&["debug", "d"]) {
            if is_on? {
                report.debug();
            }
            words.skip();
            continue;
        }
        if let Some(is_on) = words.program_flag(&["quiet"]) {
            if is_on? {
                report.quiet();
            }
            words.skip();
            continue;
        }
        match words.peek() {
            None => report.warning("No CDI hook specified"),
            Some("--help" | "-help" | "-h" | "help") => report.print(&hooks::help()),
            Some("--version" | "-version" | "-v") => {
                let version = env!("CARGO_PKG_VERSION");
                report.print(&format!("NVIDIA CDI Hook version {version}\n"));
            }
            Some(word) if word.starts_with('-') => {
                report.warning(&format!("Unsupported option: {word}"));
            }
            Some(word) => {
                let name = word.to_owned();
                words.skip();
                return Ok(Some(name));
            }
        }
        return Ok(None);
    }
}
