//! Refuses values that a key of config.toml cannot have.

use libnvc::{Error, ErrorKind, Result};
use nvc_cdi::names;
use nvc_policy::config;
use nvc_policy::config::keys::{
    ACCEPT_CDI_KINDS, DEFAULT_KIND, Key, LOG_LEVEL, SUPPORTED_CAPABILITIES,
};
use nvc_policy::image::Policy;
use nvc_program::hints;

/// Refuses a value that a key cannot have.
pub(super) fn check_word(key: Key, text: &str) -> Result<()> {
    // As the programs read it.
    let lower = text.to_ascii_lowercase();
    let word = if key.name == LOG_LEVEL { &lower } else { text };
    if key.words.is_empty() || key.words.contains(&word) {
        return Ok(());
    }
    let known = key.words.iter().filter(|word| !word.is_empty());
    let known: Vec<&str> = known.copied().collect();
    let near = hints::nearest(word, &known).map(|near| format!("; did you mean {near}?"));
    let text = format!(
        "{} cannot be \"{text}\": it is one of {}{}",
        key.name,
        known.join(", "),
        near.unwrap_or_default()
    );
    Err(refused(text))
}

/// Refuses values that the programs would refuse, of the keys that are set.
pub(super) fn check(new: &str, settings: &[String]) -> Result<()> {
    let is_set = |name: &str| {
        settings
            .iter()
            .any(|setting| super::name_of(setting) == name)
    };
    let loaded = config::parse(new).map_err(|error| refused(error.to_string()))?;
    let config = loaded.config;
    if is_set(SUPPORTED_CAPABILITIES) {
        Policy::new(&config).map_err(|error| refused(error.to_string()))?;
    }
    let kinds = [
        (
            DEFAULT_KIND,
            std::slice::from_ref(&config.runtime.cdi_default_kind),
        ),
        (ACCEPT_CDI_KINDS, &config.accept_cdi_kinds[..]),
    ];
    for (name, kinds) in kinds {
        let is_kind = |kind: &&String| !names::is_qualified(&format!("{kind}=0"));
        if let (true, Some(kind)) = (is_set(name), kinds.iter().find(is_kind)) {
            let text =
                format!("{name} cannot be \"{kind}\": a kind is VENDOR/CLASS, as nvidia.com/gpu");
            return Err(refused(text));
        }
    }
    Ok(())
}

fn refused(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, text)
}
