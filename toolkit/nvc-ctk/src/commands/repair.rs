//! Describes the repair of a problem: a shell command that can be run as it is, or a manual step.
//!
//! The two are kept apart so that the tests, and other programs, can run each command that is printed.

use std::fmt::Display;

use nvc_cdi::file::quoted_line;

/// The way out of a problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Repair {
    text: String,
    is_command: bool,
}

/// Returns a repair that a shell, as root, carries out.
pub(super) fn command(text: impl Into<String>) -> Repair {
    Repair {
        text: text.into(),
        is_command: true,
    }
}

/// Returns a manual step.
pub(super) fn step(text: impl Into<String>) -> Repair {
    Repair {
        text: text.into(),
        is_command: false,
    }
}

/// Returns one word of a command, quoted if necessary.
pub(super) fn word(text: &dyn Display) -> String {
    quoted_line([&text.to_string()])
}

impl Repair {
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the command, if it is one.
    pub(super) fn as_command(&self) -> Option<&str> {
        self.is_command.then_some(self.text.as_str())
    }

    /// Returns this repair with a further command after it.
    pub(super) fn and(self, next: &str) -> Self {
        let between = if self.is_command { " &&" } else { ", then" };
        Self {
            text: format!("{}{between} {next}", self.text),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_stays_one() {
        let repair = command(format!("rm {}", word(&"/a b"))).and("c");
        assert_eq!(repair.as_command(), Some("rm '/a b' && c"));
        let repair = step("install x").and("c");
        assert_eq!(
            (repair.text(), repair.as_command()),
            ("install x, then c", None)
        );
    }
}
