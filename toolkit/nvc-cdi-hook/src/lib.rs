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

use arguments::invalid;
use libnvc::Result;
use nvc_options::Given;
use nvc_options::mistake::{Fault, Mistake};
use nvc_options::scan::scan;
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
    if words.iter().any(|word| word.to_str().is_none()) {
        return Err(invalid("an argument is not UTF-8"));
    }
    let before = scan(&arguments::BEFORE, &[&arguments::PROGRAM], words);
    set_verbosity(&before.given, report);
    if before.given.has("help") {
        report.print(&hooks::help());
        return Ok(());
    }
    if before.given.has("version") {
        let version = env!("CARGO_PKG_VERSION");
        report.print(&format!("NVIDIA CDI Hook version {version}\n"));
        return Ok(());
    }
    match before.mistake {
        None => {}
        Some(Mistake {
            fault: Fault::Unknown(_),
            word,
            ..
        }) => {
            report.warning(&format!("Unsupported option: {}", word.display()));
            return Ok(());
        }
        Some(mistake) => return Err(invalid(mistake.by_urfave())),
    }
    let Some((name, words)) = before.rest.split_first() else {
        report.warning("No CDI hook specified");
        return Ok(());
    };
    let name = name.to_str().unwrap_or_default();
    if name == "help" {
        report.print(&hooks::help());
        return Ok(());
    }
    let Some(hook) = hooks::find(name) else {
        if let Some(error) = hooks::outdated(name) {
            return Err(error);
        }
        // A specification of a later version must not prevent containers from starting.
        let near = hooks::nearest(name);
        let hint = near.map(|near| format!(" (hint: did you mean {near}?)"));
        let hint = hint.unwrap_or_default();
        report.warning(&format!("Unsupported CDI hook: {name}{hint}"));
        return Ok(());
    };
    let given = match arguments::options(hook.options, words) {
        Ok(given) => given,
        Err(error) => {
            report.state();
            report.print(&hook.help());
            return Err(error);
        }
    };
    if given.has("help") {
        report.print(&hook.help());
        return Ok(());
    }
    set_verbosity(&given, report);
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

fn set_verbosity(given: &Given, report: &mut Report) {
    if given.flag("debug") {
        report.debug();
    }
    if given.flag("quiet") {
        report.quiet();
    }
}
