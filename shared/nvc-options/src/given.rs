//! Holds the options that a command line has.

use std::ffi::{OsStr, OsString};

use crate::table::{Opt, Takes};

/// The given options, in order.
#[derive(Clone, Debug, Default)]
pub struct Given(Vec<(&'static Opt, Option<OsString>)>);

impl Given {
    pub fn push(&mut self, opt: &'static Opt, value: Option<&OsStr>) {
        self.0.push((opt, value.map(OsStr::to_owned)));
    }

    pub fn iter(&self) -> impl Iterator<Item = (&'static Opt, Option<&OsStr>)> {
        let options = self.0.iter();
        options.map(|(opt, value)| (*opt, value.as_deref()))
    }

    /// Returns true if the option was given.
    pub fn has(&self, long: &str) -> bool {
        self.place(long).is_some()
    }

    /// Returns the index of the last occurrence of an option.
    pub fn place(&self, long: &str) -> Option<usize> {
        self.0.iter().rposition(|(opt, _)| opt.long == long)
    }

    /// Returns the value of the last occurrence, if it has one.
    pub fn last(&self, long: &str) -> Option<&OsStr> {
        let (_, value) = self.0.get(self.place(long)?)?;
        value.as_deref()
    }

    /// Returns the values of all occurrences.
    pub fn all(&self, long: &str) -> impl Iterator<Item = &OsStr> {
        let occurrences = self.0.iter().filter(move |(opt, _)| opt.long == long);
        occurrences.filter_map(|(_, value)| value.as_deref())
    }

    /// Returns true if a flag is on: the last one counts.
    pub fn flag(&self, long: &str) -> bool {
        self.has(long) && self.last(long).is_none_or(is_on)
    }

    /// Returns the last value if it is UTF-8.
    pub fn text(&self, long: &str) -> Option<&str> {
        self.last(long).and_then(OsStr::to_str)
    }

    /// Returns all values that are UTF-8, split at commas if the option takes several.
    pub fn list(&self, long: &str) -> impl Iterator<Item = &str> {
        let occurrences = self.0.iter().filter(move |(opt, _)| opt.long == long);
        let texts = occurrences.filter_map(|(opt, value)| Some((opt, value.as_deref()?.to_str()?)));
        texts.flat_map(|(opt, text)| items(opt, text))
    }
}

/// Parses a boolean like Go's `strconv.ParseBool`.
pub fn boolean(word: &str) -> Option<bool> {
    match word {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Returns true if the value of a flag means that it is on.
pub fn is_on(value: &OsStr) -> bool {
    value.is_empty() || value.to_str().and_then(boolean).unwrap_or(false)
}

/// Returns the items in one value of an option.
pub fn items<'t>(opt: &Opt, value: &'t str) -> impl Iterator<Item = &'t str> + use<'t> {
    let is_list = matches!(opt.takes, Takes::Values(_));
    let items = value.split(move |letter| is_list && letter == ',');
    items.map(move |item| if is_list { item.trim() } else { item })
}
