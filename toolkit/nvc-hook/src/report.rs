//! Reports warnings, and the reason why the hook fails: on standard error, and, because engines drop that, to the
//! system's log.

use libnvc::Error;
use nvc_program::hints::{Reader, one_line};
use nvc_program::messages::{self, Level, Severity, SystemLog};

use crate::CLI;

/// The end of a message that upstream prints on a line of its own.
pub(crate) const INVALID_VALUE: &str = "\ninvalid config value";

/// Destination of messages.
#[derive(Debug)]
pub(crate) struct Report {
    system: SystemLog,
    container: String,
}

impl Report {
    pub(crate) fn new() -> Self {
        let system = SystemLog::new(crate::NAME);
        Self {
            system,
            container: String::new(),
        }
    }

    /// Names the container in the system's log from now on.
    pub(crate) fn of_container(&mut self, id: &str) {
        self.system.of_container(id);
        // A variable cannot contain a zero byte, JSON can.
        self.container = id.replace('\0', "");
    }

    /// Returns the variable by which our nvidia-container-cli, executed in this process, writes to the system's log for it.
    pub(crate) fn system_log_for_program(&self) -> String {
        let value = messages::asks_for_log(&self.container);
        format!("{}={value}", messages::SYSTEM_LOG)
    }

    pub(crate) fn warn(&mut self, text: &str) {
        messages::write_record(Level::Warning, text);
        self.system.write(Severity::Warning, text);
    }

    /// Connects to the system's log before this process enters the container and stays there.
    pub(crate) fn enter_container(&self) {
        self.system.connect();
    }

    /// Reports a warning of nvidia-container-cli's library in its words.
    pub(crate) fn warning_of_cli(&mut self, text: &str) {
        messages::write_line(&format!("warning: {text}"));
        self.system.write(Severity::Warning, text);
    }

    /// Reports that the command line is wrong.
    pub(crate) fn mistake(&mut self, text: &str) {
        messages::write_line(text);
        self.system.write(Severity::Error, text);
    }

    pub(crate) fn failure(&mut self, error: &Error) {
        let lines = lines(error);
        // The reason first, which the limit of lines must not leave out.
        let (cleanup, reason) = lines.split_at(error.cleanup().len());
        for line in reason.iter().chain(cleanup) {
            self.system.write(Severity::Error, line);
        }
        messages::write_lines(lines);
    }
}

/// Returns the lines to print. The reason is in the last one, with the hint, since engines show the end of a hook's
/// output: podman only the last line of it.
fn lines(error: &Error) -> Vec<String> {
    let cleanup = error.cleanup().iter();
    let mut lines: Vec<String> = cleanup
        .map(|failed| format!("{CLI}: while cleaning up: {}", failed.message()))
        .collect();
    let message = error.message();
    match message.strip_suffix(INVALID_VALUE) {
        Some(message) => lines.extend([message, INVALID_VALUE.trim()].map(str::to_owned)),
        None => lines.push(one_line(error, Reader::Engine)),
    }
    lines
}

#[cfg(test)]
mod tests {
    use libnvc::{ErrorKind, Setting};

    use super::*;

    #[test]
    fn the_hint_is_in_the_line_of_the_reason() {
        let error = Error::new(ErrorKind::System, "it fails");
        assert_eq!(lines(&error), ["it fails"]);
        assert_eq!(lines(&error.hint("try")), ["it fails (hint: try)"]);
    }

    #[test]
    fn a_hint_names_no_option_of_another_program() {
        let hint = Setting::NoCgroups.between("leave them alone with ", "");
        let error = Error::new(ErrorKind::System, "no").hint(hint);
        let expected = "no (hint: leave them alone with \
            `sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups=true --in-place`)";
        assert_eq!(lines(&error), [expected]);
    }

    #[test]
    fn an_invalid_value_has_two_lines() {
        let error = Error::new(ErrorKind::Malformed, format!("a\nb{INVALID_VALUE}"));
        assert_eq!(lines(&error), ["a\nb", "invalid config value"]);
    }

    #[test]
    fn failures_of_the_undo_come_before_the_reason() {
        let undone = Error::new(ErrorKind::System, "umount failed");
        let error = Error::new(ErrorKind::System, "mount failed").with_cleanup([undone]);
        assert_eq!(
            lines(&error.context("mount error").context(CLI)),
            [
                "nvidia-container-cli: while cleaning up: umount failed",
                "nvidia-container-cli: mount error: mount failed"
            ]
        );
    }
}
