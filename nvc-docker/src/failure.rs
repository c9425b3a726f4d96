//! Converts failures of the driver to nvidia-docker's words: `nvml: …`, `could not load NVML library`.

use libnvc::Error;

/// Returns the error in nvidia-docker's words.
pub(crate) fn in_our_words(error: &Error) -> Error {
    let message = error.message();
    let (text, cause) = match message.strip_prefix("load library failed: ") {
        Some(cause) => ("could not load NVML library".to_owned(), Some(cause)),
        None => match message.strip_prefix("nvml error: ") {
            Some(words) => (format!("nvml: {words}"), None),
            None => (message.clone(), None),
        },
    };
    let said = Error::new(error.kind(), text);
    match error.advice().or(cause.map(str::to_owned)) {
        Some(hint) => said.hint(hint),
        None => said,
    }
}
