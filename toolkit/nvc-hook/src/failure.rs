//! Describes the reason why the hook fails in nvidia-container-cli's words.

use libnvc::Error;

use crate::CLI;

/// Describes a failure in nvidia-container-cli's words, which runtimes and users search for.
pub(crate) fn of_cli(category: &str, error: Error) -> Error {
    error.context(category).context(CLI)
}
