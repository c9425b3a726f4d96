//! Formats the reason why the hook fails, as runtimes show it to users.

use libnvc::Error;

use crate::call::CLI;

/// The end of a message that upstream prints on a line of its own.
pub(crate) const INVALID_VALUE: &str = "\ninvalid config value";

/// Describes a failure in nvidia-container-cli's words, which runtimes and users search for.
pub(crate) fn of_cli(category: &str, error: Error) -> Error {
    error.context(category).context(CLI)
}

/// Returns the lines to print. The reason is the last one, since runtimes show the end of a hook's output.
pub(crate) fn lines(error: &Error) -> Vec<String> {
    let cleanup = error.cleanup().iter();
    let mut lines: Vec<String> = cleanup
        .map(|failed| format!("{CLI}: while cleaning up: {}", failed.message()))
        .collect();
    lines.extend(error.advice().map(|hint| format!("hint: {hint}")));
    let message = error.message();
    match message.strip_suffix(INVALID_VALUE) {
        Some(message) => lines.extend([message, INVALID_VALUE.trim()].map(str::to_owned)),
        None => lines.push(message),
    }
    lines
}

#[cfg(test)]
mod tests {
    use libnvc::ErrorKind;

    use super::*;

    #[test]
    fn the_hint_comes_first() {
        let error = Error::new(ErrorKind::System, "it fails");
        assert_eq!(lines(&error), ["it fails"]);
        assert_eq!(lines(&error.hint("try")), ["hint: try", "it fails"]);
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
            lines(&of_cli("mount error", error)),
            [
                "nvidia-container-cli: while cleaning up: umount failed",
                "nvidia-container-cli: mount error: mount failed"
            ]
        );
    }
}
