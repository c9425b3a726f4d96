//! Describes failures: one sentence, and a hint if there is one.

use std::fmt;

/// A failure of one of the programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The sentence, in upstream's words if upstream has it.
    pub text: String,
    /// The hint.
    pub hint: Option<String>,
}

/// The result type of this crate.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// Creates a failure.
    pub fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            hint: None,
        }
    }

    /// Adds a hint.
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
    /// Converts to nvidia-docker's words: `nvml: …`, `could not load NVML library`.
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
