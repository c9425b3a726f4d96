//! Prints failures: the hint, then the program's name, the category, and the library's message.

use std::borrow::Cow;

use libnvc::{Error, ErrorKind, Phase};
use nvc_program::hints::{Reader, advice, one_line};
use nvc_program::messages::{self, Severity};

use crate::logging;

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

/// Upstream's words for a root directory that cannot be one.
pub(crate) const INVALID_ROOTFS: &str = "invalid rootfs directory";

/// The failure of a command.
#[derive(Debug)]
pub struct CommandError {
    category: Cow<'static, str>,
    error: Error,
}

impl CommandError {
    /// Reports an invalid option value.
    pub(crate) fn input(text: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            category: category::INPUT.into(),
            error: Error::new(ErrorKind::InvalidArgument, text).hint(hint),
        }
    }

    /// Returns the library's error, with the category in front.
    pub fn into_error(self) -> Error {
        self.error.context(self.category)
    }

    /// Prints the failure to standard error, and writes it to the system's log if the hook asks for it.
    pub fn report(&self, program: &str) {
        for line in self.lines_for_hook(program) {
            logging::write_to_system(Severity::Error, &line);
        }
        messages::write_lines(self.lines(program));
    }

    /// Returns the lines for the system's log: the reason first, which the limit of lines must not leave out.
    fn lines_for_hook(&self, program: &str) -> Vec<String> {
        let Self { category, error } = self;
        let reason = one_line(error, Reader::Engine);
        let mut lines = vec![format!("{program}: {category}: {reason}")];
        lines.extend(cleanup(program, error));
        lines
    }

    pub(crate) fn lines(&self, program: &str) -> Vec<String> {
        let Self { category, error } = self;
        let mut lines: Vec<String> = cleanup(program, error).collect();
        lines.push(format!("{program}: {category}: {}", error.message()));
        lines.extend(advice(error, Reader::Cli).map(|advice| format!("hint: {advice}")));
        lines
    }
}

/// Returns the lines about errors while cleaning up.
fn cleanup(program: &str, error: &Error) -> impl Iterator<Item = String> {
    let cleanup = error.cleanup().iter();
    cleanup.map(move |error| format!("{program}: while cleaning up: {}", error.message()))
}

/// Adds a category to a failure.
pub(crate) trait Categorise<T> {
    fn category(self, category: &'static str) -> Result<T, CommandError>;
}

impl From<Error> for CommandError {
    /// Converts an error with a phase.
    fn from(error: Error) -> Self {
        // A wrong argument, as when it can be told without looking at the container.
        let category = if error.message() == INVALID_ROOTFS {
            category::INPUT.into()
        } else {
            error.phase().unwrap_or(Phase::Mount).to_string().into()
        };
        Self { category, error }
    }
}

impl<T> Categorise<T> for libnvc::Result<T> {
    fn category(self, category: &'static str) -> Result<T, CommandError> {
        self.map_err(|error| CommandError {
            category: category.into(),
            error,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_hint_and_cleanup() {
        let cleanup = Error::new(ErrorKind::System, "unmount failed");
        let failure = CommandError {
            category: "mount error".into(),
            error: Error::new(ErrorKind::System, "x")
                .hint("do y")
                .with_cleanup([cleanup]),
        };
        assert_eq!(
            failure.lines("cli.real"),
            [
                "cli.real: while cleaning up: unmount failed",
                "cli.real: mount error: x",
                "hint: do y"
            ]
        );
        assert_eq!(
            failure.lines_for_hook("cli"),
            [
                "cli: mount error: x (hint: do y)",
                "cli: while cleaning up: unmount failed",
            ]
        );
    }
}
