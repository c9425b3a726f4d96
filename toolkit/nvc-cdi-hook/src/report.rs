//! Reports messages on standard error, and, because engines drop that, to the system's log.
//!
//! Standard error can be a file of the host that the image has chosen; the container's state shows that. The state is
//! read before the first message, and then nothing is printed.

use std::io::{IsTerminal as _, Write};
use std::sync::atomic::{AtomicUsize, Ordering};

use libnvc::{Error, Result};
use nvc_program::hints::{Reader, one_line};
use nvc_program::messages::{self, Level, Severity, SystemLog, write_record_up_to};

use crate::state;

/// Length limit of the output: engines put it into one error message.
const MAX_LEN: usize = 4096;

/// Level of detail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    /// Errors only.
    Quiet,
    /// Warnings too.
    #[default]
    Normal,
    /// Every step.
    Debug,
}

/// Destination of messages.
#[derive(Debug)]
pub struct Report {
    verbosity: Verbosity,
    system: SystemLog,
    /// The text on standard input, once it was read.
    state: Option<Result<Vec<u8>>>,
}

impl Report {
    pub(crate) fn new(verbosity: Verbosity) -> Self {
        if verbosity == Verbosity::Debug {
            log_steps();
        }
        Self {
            verbosity,
            system: SystemLog::new(crate::PROGRAM),
            state: None,
        }
    }

    pub(crate) fn debug(&mut self) {
        if self.verbosity != Verbosity::Quiet {
            self.verbosity = Verbosity::Debug;
            log_steps();
        }
    }

    pub(crate) fn quiet(&mut self) {
        self.verbosity = Verbosity::Quiet;
    }

    /// Returns the text on standard input, and stays silent from now on if it names such a file.
    pub(crate) fn state(&mut self) -> &Result<Vec<u8>> {
        if self.state.is_none() {
            let text = state::read(std::io::stdin().lock());
            if let Ok(text) = &text {
                self.silence_if_redirected(text);
            }
            self.state = Some(text);
        }
        self.state.get_or_insert(Ok(Vec::new()))
    }

    /// Stays silent from now on if a state's text says that streams of hooks are files.
    pub(crate) fn silence_if_redirected(&mut self, state: &[u8]) {
        if messages::are_streams_redirected(state) {
            // On failure this process is silent, and it starts no others with its streams.
            let _ = messages::silence();
        }
    }

    /// Prints the answer to a query, a text of our own.
    pub(crate) fn print(&self, text: &str) {
        let _ = std::io::stdout().write_all(text.as_bytes());
    }

    pub(crate) fn warning(&mut self, text: &str) {
        if self.verbosity >= Verbosity::Normal {
            self.write(Level::Warning, text);
            self.log(Severity::Warning, text);
        }
    }

    pub(crate) fn error(&mut self, text: &str) {
        self.write(Level::Error, text);
        self.log(Severity::Error, text);
    }

    /// Reports why the hook failed, with the hint in the same line: engines show the last line, if any.
    pub(crate) fn failure(&mut self, error: &Error) {
        for error in error.cleanup() {
            self.error(&error.message());
        }
        self.error(&one_line(error, Reader::Engine));
    }

    fn log(&mut self, severity: Severity, text: &str) {
        if let Some(Ok(state)) = &self.state
            && let Some(id) = state::id(state)
        {
            self.system.of_container(&id);
        }
        self.system.write(severity, text);
    }

    fn write(&mut self, level: Level, text: &str) {
        // A person who tries the program out enters no state.
        if self.state.is_none() && !std::io::stdin().is_terminal() {
            self.state();
        }
        write(level, text);
    }
}

/// Prints the steps of libnvc from now on, unless the program has a logger already.
fn log_steps() {
    if log::set_logger(&Steps).is_ok() {
        log::set_max_level(log::LevelFilter::Debug);
    }
}

/// Prints the steps of libnvc.
struct Steps;

impl log::Log for Steps {
    fn enabled(&self, _metadata: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        write(Level::Debug, &record.args().to_string());
    }

    fn flush(&self) {}
}

/// The number of bytes printed.
static PRINTED: AtomicUsize = AtomicUsize::new(0);

fn write(level: Level, text: &str) {
    let left = MAX_LEN.saturating_sub(PRINTED.load(Ordering::Relaxed));
    PRINTED.fetch_add(write_record_up_to(left, level, text), Ordering::Relaxed);
}
