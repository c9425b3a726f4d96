//! The reason why the hook fails, as runtimes show it to users.

use crate::call::CLI;

/// A failure: one sentence, a hint if there is one, and failures of the undo.
#[derive(Debug, Default)]
pub(crate) struct HookError {
    text: String,
    hint: Option<String>,
    /// A second line of upstream's.
    second: Option<&'static str>,
    /// Each undo that failed too.
    cleanup: Vec<String>,
}

impl HookError {
    /// Adds a hint.
    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        let hint = Some(hint.into());
        Self { hint, ..self }
    }

    /// Adds a second line, one that upstream prints too.
    pub(crate) fn second_line(self, second: &'static str) -> Self {
        let second = Some(second);
        Self { second, ..self }
    }

    /// Describes a failure in nvidia-container-cli's words, which runtimes and users search for.
    pub(crate) fn of_cli(category: &str, error: &libnvc::Error) -> Self {
        let cleanup = error.cleanup().iter();
        Self {
            text: format!("{CLI}: {category}: {}", error.message()),
            hint: error.advice().map(str::to_owned),
            cleanup: cleanup.map(libnvc::Error::message).collect(),
            second: None,
        }
    }

    /// Returns the lines to print. The reason is the last one, since runtimes show the end of a hook's output.
    pub(crate) fn lines(&self) -> Vec<String> {
        let cleanup = self.cleanup.iter();
        let mut lines: Vec<String> = cleanup
            .map(|failed| format!("{CLI}: while cleaning up: {failed}"))
            .collect();
        lines.extend(self.hint.iter().map(|hint| format!("hint: {hint}")));
        lines.push(self.text.clone());
        lines.extend(self.second.map(str::to_owned));
        lines
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_comes_first() {
        let failure = HookError::from("it fails".to_owned());
        assert_eq!(failure.lines(), ["it fails"]);
        assert_eq!(failure.hint("try").lines(), ["hint: try", "it fails"]);
    }
}
