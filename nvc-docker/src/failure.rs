//! Describes why a program ends: one sentence, and what to do about it where that is known.

use std::fmt;

/// A failure of one of the programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The sentence, as upstream words it where upstream has it.
    pub text: String,
    /// What to do about it.
    pub hint: Option<String>,
}

/// The result type of this crate.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// A failure in these words.
    pub fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            hint: None,
        }
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<libnvc::Error> for Failure {
    /// In nvidia-docker's words: `nvml: …`, `could not load NVML library`.
    fn from(error: libnvc::Error) -> Self {
        let message = error.message();
        let (text, cause) = match message.strip_prefix("load library failed: ") {
            Some(cause) => ("could not load NVML library".to_owned(), Some(cause)),
            None => match message.strip_prefix("nvml error: ") {
                Some(words) => (format!("nvml: {words}"), None),
                None => (message.clone(), None),
            },
        };
        let hint = error
            .advice()
            .map(str::to_owned)
            .or(cause.map(str::to_owned));
        Self { text, hint }
    }
}
