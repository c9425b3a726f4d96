//! Holds the environment of a container's process, with one value per name.

use indexmap::IndexMap;
use libnvc::request::unquoted;

use super::Error;

/// The variables of a process, in the order of first appearance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    variables: IndexMap<String, String>,
}

impl Environment {
    /// Parses entries `NAME=VALUE`, without quotes; the last one for a name counts, as in the process itself.
    ///
    /// # Errors
    /// An entry without `=`.
    pub fn new<T: AsRef<str>>(entries: impl IntoIterator<Item = T>) -> Result<Self, Error> {
        let mut all = Self::default();
        for entry in entries {
            let entry = entry.as_ref();
            let (name, value) = entry
                .split_once('=')
                .ok_or_else(|| Error::NotAVariable(shortened(entry)))?;
            all.variables
                .insert(name.to_owned(), unquoted(value).to_owned());
        }
        Ok(all)
    }

    /// Returns the value of a variable; None if it is unset.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// Returns true if a variable is set and not empty.
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| !value.is_empty())
    }

    /// Iterates over names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> + Clone {
        self.variables
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

/// Shortens an entry for a message: images choose its length.
fn shortened(entry: &str) -> String {
    const MAX_LEN: usize = 200;
    match entry.char_indices().nth(MAX_LEN) {
        Some((end, _)) => format!("{}...", &entry[..end]),
        None => entry.to_owned(),
    }
}
