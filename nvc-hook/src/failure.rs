//! The reason why the hook fails, as runtimes show it to users.

use std::fmt;

use libnvc::debuglog::printable;

use crate::call::CLI;

/// A failure: one sentence, a hint if there is one, and failures of the undo.
#[derive(Debug, Default)]
pub(crate) struct HookError {
    text: String,
    hint: Option<String>,
    /// Each undo that failed too.
    cleanup: Vec<String>,
}

impl HookError {
    /// Adds a hint.
    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        let hint = Some(hint.into());
        Self { hint, ..self }
    }

    /// Describes a failure in nvidia-container-cli's words, which runtimes and users search for.
    pub(crate) fn of_cli(category: &str, error: &libnvc::Error) -> Self {
        let cleanup = error.cleanup().iter();
        Self {
            text: format!("{CLI}: {category}: {}", printable(&error.message())),
            hint: error.advice().map(|advice| printable(advice).into()),
            cleanup: cleanup
                .map(|error| printable(&error.message()).into())
                .collect(),
        }
    }
}

impl From<String> for HookError {
    fn from(text: String) -> Self {
        Self {
            text,
            ..Self::default()
        }
    }
}

impl fmt::Display for HookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for failed in &self.cleanup {
            writeln!(f, "{CLI}: while cleaning up: {failed}")?;
        }
        if let Some(hint) = &self.hint {
            writeln!(f, "hint: {hint}")?;
        }
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_comes_first() {
        let failure = HookError::from("it fails".to_owned());
        assert_eq!(failure.to_string(), "it fails");
        assert_eq!(failure.hint("try").to_string(), "hint: try\nit fails");
    }
}
