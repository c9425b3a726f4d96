//! Reports messages on standard error, and, because engines drop that, to the system's log.
//!
//! Standard error can be a file of the host that the image has chosen; the container's state shows that. The state is
//! read before the first message, and then nothing is printed.

use std::io::{IsTerminal as _, Write};
use std::sync::atomic::{AtomicUsize, Ordering};

use libnvc::{Error, Result};
use log::{LevelFilter, Log, Metadata, Record};
use nvc_program::hints::{Reader, one_line};
use nvc_program::messages::{self, Level, Severity, SystemLog, write_record_up_to};
use nvc_program::warnings;

use crate::state;

/// Length limit of the output: engines put it into one error message.
const MAX_LEN: usize = 4096;

/// The part of it that only the reason of a failure may use: neither steps nor warnings keep it out.
const FOR_REASON: usize = 1024;

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
        let _ = log::set_logger(&Library);
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
        log::set_max_level(LevelFilter::Off);
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

    /// Keeps libnvc's warnings from now on, until [`library_warnings`](Self::library_warnings).
    ///
    /// Earlier ones are about the driver, and the same for each container; `nvidia-ctk doctor` has them.
    pub(crate) fn keep_library_warnings(&self) {
        if log::max_level() < LevelFilter::Warn {
            log::set_max_level(LevelFilter::Warn);
        }
    }

    /// Reports the warnings of libnvc that were kept.
    pub(crate) fn library_warnings(&mut self) {
        for warning in warnings::take() {
            self.warning(&warning);
        }
    }

    /// Reports why the hook failed, with the hint in the same line.
    ///
    /// In the system's log the reason comes first, because the number of lines has a limit; on standard error it comes
    /// last, because engines show the last line, if any, and has room of its own.
    pub(crate) fn failure(&mut self, error: &Error) {
        let reason = one_line(error, Reader::Engine);
        self.log(Severity::Error, &reason);
        for failed in error.cleanup() {
            self.error(&format!("while cleaning up: {}", failed.message()));
        }
        self.read_state();
        write_up_to(MAX_LEN, Level::Error, &reason);
    }

    fn log(&mut self, severity: Severity, text: &str) {
        if let Some(Ok(state)) = &self.state
            && let Ok(state) = state::parse(state)
        {
            self.system.of_container(&state.id);
        }
        self.system.write(severity, text);
    }

    fn write(&mut self, level: Level, text: &str) {
        self.read_state();
        write(level, text);
    }

    /// Reads the state before anything is printed. A person who tries the program out enters none.
    fn read_state(&mut self) {
        if self.state.is_none() && !std::io::stdin().is_terminal() {
            self.state();
        }
    }
}

/// Prints the steps of libnvc from now on.
fn log_steps() {
    log::set_max_level(LevelFilter::Debug);
}

/// Keeps the warnings of libnvc, and prints its steps.
struct Library;

impl Log for Library {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if record.level() <= LevelFilter::Warn {
            warnings::add(record);
        } else {
            write(Level::Debug, &record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// The number of bytes printed.
static PRINTED: AtomicUsize = AtomicUsize::new(0);

/// Prints anything but the reason of a failure.
fn write(level: Level, text: &str) {
    write_up_to(MAX_LEN - FOR_REASON, level, text);
}

/// Prints a record, if less than `limit` bytes were printed.
fn write_up_to(limit: usize, level: Level, text: &str) {
    let left = limit.saturating_sub(PRINTED.load(Ordering::Relaxed));
    PRINTED.fetch_add(write_record_up_to(left, level, text), Ordering::Relaxed);
}
