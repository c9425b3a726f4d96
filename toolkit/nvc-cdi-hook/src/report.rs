//! Reports messages on standard error, and, because engines drop that, to the system's log.
//!
//! Standard error can be a file of the host that the image has chosen; the container's state says so. It is read before
//! the first message, and then nothing is printed.

use std::io::{IsTerminal as _, Write};

use libnvc::messages::{self, Level, Severity, to_system_log, write_record_up_to};

use crate::{Result, state};

/// Length limit of the output: engines put it into one error message.
const LONGEST: usize = 4096;

/// Limit of lines for the system's log: an image must not fill it.
const MOST_LOGGED: u32 = 32;

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
    said: usize,
    logged: u32,
    /// The text on standard input, once it was read.
    state: Option<Result<Vec<u8>>>,
}

impl Report {
    pub(crate) fn new(verbosity: Verbosity) -> Self {
        Self {
            verbosity,
            said: 0,
            logged: 0,
            state: None,
        }
    }

    pub(crate) fn debug(&mut self) {
        if self.verbosity != Verbosity::Quiet {
            self.verbosity = Verbosity::Debug;
        }
    }

    pub(crate) fn quiet(&mut self) {
        self.verbosity = Verbosity::Quiet;
    }

    /// Returns the text on standard input, and stays silent from now on if it says so.
    pub(crate) fn state(&mut self) -> &Result<Vec<u8>> {
        if self.state.is_none() {
            let text = state::read(std::io::stdin().lock());
            if let Ok(text) = &text {
                self.obey(text);
            }
            self.state = Some(text);
        }
        self.state.get_or_insert(Ok(Vec::new()))
    }

    /// Stays silent from now on if a state's text says that streams of hooks are files.
    pub(crate) fn obey(&mut self, state: &[u8]) {
        if messages::are_streams_redirected(state) {
            // On failure this process is silent, and it starts no others with its streams.
            let _ = messages::silence();
        }
    }

    /// Prints the answer to a query, a text of our own.
    pub(crate) fn print(&self, text: &str) {
        let _ = std::io::stdout().write_all(text.as_bytes());
    }

    pub(crate) fn step(&mut self, text: &str) {
        if self.verbosity >= Verbosity::Debug {
            self.say(Level::Debug, text);
        }
    }

    pub(crate) fn warning(&mut self, text: &str) {
        if self.verbosity >= Verbosity::Normal {
            self.say(Level::Warning, text);
            self.log(Severity::Warning, text);
        }
    }

    pub(crate) fn error(&mut self, text: &str) {
        self.say(Level::Error, text);
        self.log(Severity::Error, text);
    }

    fn log(&mut self, severity: Severity, text: &str) {
        if self.logged < MOST_LOGGED {
            self.logged += 1;
            to_system_log(crate::PROGRAM, severity, text);
        }
    }

    fn say(&mut self, level: Level, text: &str) {
        // A person who tries the program out enters no state.
        if self.state.is_none() && !std::io::stdin().is_terminal() {
            self.state();
        }
        let left = LONGEST.saturating_sub(self.said);
        self.said += write_record_up_to(left, level, text);
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST_LOGGED, Report, Severity, Verbosity};

    #[test]
    fn the_log_has_a_limit() {
        let mut report = Report::new(Verbosity::Normal);
        for _ in 0..100 {
            report.log(Severity::Warning, "x");
        }
        assert_eq!(report.logged, MOST_LOGGED);
    }
}
