//! Prints failures: the hint, then the program's name, the category, and the library's message.

use std::io::Write as _;

use libnvc::debuglog::printable;
use libnvc::{Error, ErrorKind, Phase};

/// Upstream's categories of failures; runtimes and users search logs for these words.
pub(crate) mod category {
    pub(crate) const INPUT: &str = "input error";
    pub(crate) const OUTPUT: &str = "output error";
    pub(crate) const PERMISSION: &str = "permission error";
    pub(crate) const IMEX: &str = "error parsing IMEX info";
    pub(crate) const INITIALIZATION: &str = "initialization error";
    pub(crate) const DETECTION: &str = "detection error";
    pub(crate) const MIG_CONFIG: &str = "mig-config error";
    pub(crate) const MIG_MONITOR: &str = "mig-monitor error";
}

/// The failure of a command.
#[derive(Debug)]
pub(crate) struct CommandError {
    category: &'static str,
    error: Error,
}

impl CommandError {
    /// Reports an invalid option value.
    pub(crate) fn input(text: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            category: category::INPUT,
            error: Error::new(ErrorKind::InvalidArgument, text).hint(hint),
        }
    }

    /// Prints the failure to standard error in one write, so that lines of several programs do not mix.
    pub(crate) fn report(&self, program: &str) {
        print(&self.text(program));
    }

    pub(crate) fn text(&self, program: &str) -> String {
        let Self { category, error } = self;
        let mut text = String::new();
        for error in error.cleanup() {
            let message = error.message();
            text += &format!("{program}: while cleaning up: {}\n", printable(&message));
        }
        if let Some(advice) = error.advice() {
            text += &format!("hint: {}\n", printable(advice));
        }
        // Last, because docker's report of a failed hook ends with this text and ": unknown.".
        let message = error.message();
        text += &format!("{program}: {category}: {}\n", printable(&message));
        text
    }
}

/// Adds a category to a failure.
pub(crate) trait Categorise<T> {
    fn category(self, category: &'static str) -> Result<T, CommandError>;
}

impl From<Error> for CommandError {
    /// Converts an error with a phase.
    fn from(error: Error) -> Self {
        let category = error.phase().unwrap_or(Phase::Mount).category();
        Self { category, error }
    }
}

impl<T> Categorise<T> for libnvc::Result<T> {
    fn category(self, category: &'static str) -> Result<T, CommandError> {
        self.map_err(|error| CommandError { category, error })
    }
}

/// Writes to standard error. A failure to do so cannot be reported.
pub(crate) fn print(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_hint_and_cleanup() {
        let cleanup = Error::new(ErrorKind::System, "unmount failed");
        let failure = CommandError {
            category: "mount error",
            error: Error::new(ErrorKind::System, "x")
                .hint("do y")
                .with_cleanup([cleanup]),
        };
        assert_eq!(
            failure.text("cli.real"),
            "cli.real: while cleaning up: unmount failed\nhint: do y\ncli.real: mount error: x\n"
        );
    }

    #[test]
    fn names_of_files_cannot_forge_lines() {
        let name = "lib\ncli: all is well\u{1b}[31m\u{9b}\r";
        let cleanup = Error::new(ErrorKind::System, name);
        let failure = CommandError {
            category: "mount error",
            error: Error::new(ErrorKind::System, name)
                .hint(name)
                .with_cleanup([cleanup]),
        };
        let shown = "lib?cli: all is well?[31m??";
        assert_eq!(
            failure.text("cli"),
            format!("cli: while cleaning up: {shown}\nhint: {shown}\ncli: mount error: {shown}\n")
        );
    }
}
