//! Describes the reason why the hook fails in nvidia-container-cli's words.

use libnvc::Error;

use crate::CLI;

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

#[cfg(test)]
mod tests {
    use libnvc::ErrorKind;

    use super::*;

    #[test]
    fn a_hint_names_no_option_of_another_program() {
        let error = Error::new(ErrorKind::System, "no");
        let hint = "leave them alone with --no-cgroups";
        let told = of_cli("mount error", error.hint(hint));
        let expected = "leave them alone with \
            `sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups=true --in-place`";
        assert_eq!(told.advice(), Some(expected));
    }
}
