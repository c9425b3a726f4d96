//! Runs the hooks of CDI specifications: small changes in a container's root before its process starts.
//!
//! They run as createContainer hooks: in the container's namespaces, but with the host's root, /proc and /dev, and with
//! the container's root at a path from the state on standard input. Everything in that root is hostile, so [`root`]
//! opens it once, and every access goes through descriptors resolved in it. All policy is in the arguments: neither the
//! environment, which can be the container's own, nor a configuration file is read.
//!
//! Exit codes: 0 for success, and for hooks that this version does not know; 1 for failure. Engines tend to show only
//! the exit code, so errors go to standard error and to the system's log.

#![forbid(unsafe_code)]

// the command line
mod arguments;

// the container
mod root;
mod state;
mod volume;

// actions
mod hooks;

// messages
pub mod report;

use std::ffi::OsString;

use arguments::Words;
use report::Report;
pub use report::Verbosity;
use root::{Root, Writable};

/// The program's name in messages.
const PROGRAM: &str = "nvidia-cdi-hook";

/// Runs the hook that the words name; returns the exit code.
pub fn run(words: &[OsString], verbosity: Verbosity) -> u8 {
    let mut report = Report::new(verbosity);
    let done = dispatch(words, &mut report);
    if let Err(failure) = &done {
        report.error(&failure.to_string());
    }
    // crun treats a hook that leaves the state unread as failed.
    state::drain();
    u8::from(done.is_err())
}

/// A failure: operation, object, cause.
#[derive(Clone, Debug)]
pub struct Failure {
    text: String,
    /// A hook may not write to this place: the root is read-only, or it is on a volume.
    is_closed: bool,
}

impl Failure {
    fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            is_closed: false,
        }
    }

    fn of(operation: &str, object: impl std::fmt::Display, cause: impl std::fmt::Display) -> Self {
        Self::new(format!("{operation}: {object}: {cause}"))
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

type Result<T, E = Failure> = std::result::Result<T, E>;

fn dispatch(words: &[OsString], report: &mut Report) -> Result<()> {
    let mut words = Words::new(words)?;
    let Some(name) = program_options(&mut words, report)? else {
        return Ok(());
    };
    let Some(hook) = hooks::find(&name) else {
        // A specification of a later version must not prevent containers from starting.
        report.warning(&format!("Unsupported CDI hook: {name}"));
        return Ok(());
    };
    if words.asks_for_help() {
        report.print(&hook.help());
        return Ok(());
    }
    let given = match words.options(hook.options) {
        Ok(given) => given,
        Err(failure) => {
            report.state();
            report.print(&hook.help());
            return Err(failure);
        }
    };
    if given.flag("debug") {
        report.debug();
    }
    if given.flag("quiet") {
        report.quiet();
    }
    match hook.run {
        Some(run) => execute(run, &given, report),
        None => Ok(()),
    }
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

/// Runs a hook in the container's root.
fn execute(run: hooks::Run, given: &arguments::Given, report: &mut Report) -> Result<()> {
    let root = container(given, report)?;
    let writable = root.make_writable();
    let done = run(given, &root, report);
    // Without it, the container could write to a root that its specification makes read-only.
    let restored = writable.map_or(Ok(()), Writable::restore);
    match done {
        // The container starts without the file.
        Err(failure) if failure.is_closed => report.warning(&failure.to_string()),
        Err(failure) => {
            if let Err(second) = restored {
                report.error(&second.to_string());
            }
            return Err(failure);
        }
        Ok(()) => {}
    }
    restored
}

/// Opens the root of the container in the state on standard input.
fn container(given: &arguments::Given, report: &mut Report) -> Result<Root> {
    let state = match given.text("container-spec") {
        Some(path) => {
            let text = state::read_file(path)?;
            report.obey(&text);
            state::parse(&text)?
        }
        None => state::parse(report.state().as_ref().map_err(Clone::clone)?)?,
    };
    // Runtimes start hooks with any umask; with 0 libnvc would make directories that every user of the container can
    // write to.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let root = state.open_root()?;
    // From here on no path is relative to a directory that the image controls.
    rustix::process::chdir("/").map_err(|errno| Failure::of("chdir failed", "/", errno))?;
    Ok(root)
}
