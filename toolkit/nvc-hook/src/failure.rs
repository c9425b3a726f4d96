//! Formats the reason why the hook fails, as runtimes show it to users.

use libnvc::Error;

use crate::call::CLI;

/// The end of a message that upstream prints on a line of its own.
pub(crate) const INVALID_VALUE: &str = "\ninvalid config value";

/// An option of nvidia-container-cli, and what users of an engine can do instead.
const NO_CGROUPS: &str = "--no-cgroups";
const NO_CGROUPS_OF_HOOK: &str =
    "`sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups=true --in-place`";

/// Describes a failure in nvidia-container-cli's words, which runtimes and users search for. Its hint names nothing that
/// users of an engine do not have.
pub(crate) fn of_cli(category: &str, error: Error) -> Error {
    let hint = error
        .advice()
        .map(|hint| hint.replace(NO_CGROUPS, NO_CGROUPS_OF_HOOK));
    let error = match hint {
        Some(hint) => error.hint(hint),
        None => error,
    };
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
    fn a_hint_names_no_option_of_another_program() {
        let error = Error::new(ErrorKind::System, "no");
        let hint = "leave them alone with --no-cgroups";
        let told = of_cli("mount error", error.hint(hint));
        let expected = "leave them alone with \
            `sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups=true --in-place`";
        assert_eq!(told.advice(), Some(expected));
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
