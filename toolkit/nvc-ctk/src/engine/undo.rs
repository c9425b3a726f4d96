//! Undoes changes to configuration files, to the byte.
//!
//! Usually the text itself suffices: the original is the text without our keys. If it does not (a value was replaced, a
//! file was empty), the original text is stored in a [`record`](super::record). If the file is unchanged since, undo
//! restores the original text; if the user has changed it, only our keys are restored.
//!
//! A file may have several runtimes of ours. A record says to which of them its text is the original, so that removing one
//! keeps the others.

use std::path::Path;

use libnvc::Result;

use super::change::Change;
use super::record::{Record, mark};

/// A runtime to remove from a text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Removal<'a> {
    pub(crate) name: &'a str,
    /// The original text, whose values are restored; None if it is not known.
    pub(crate) before: Option<&'a str>,
    /// Others that replaced values of the original text stay.
    pub(crate) others_stay: bool,
}

impl<'a> Removal<'a> {
    /// Removes a runtime whose original text is not known.
    pub(crate) fn of(name: &'a str) -> Self {
        Self {
            name,
            before: None,
            others_stay: false,
        }
    }
}

/// Removes our keys from a text. None: the file is removed.
pub(crate) type Restore<'a> = dyn Fn(&str, Removal<'_>) -> Result<Option<String>> + 'a;

/// Returns the change that removes a runtime, and the record that the remaining ones need.
pub(crate) fn undo(
    path: &Path,
    current: Option<&str>,
    record: Option<&Record>,
    name: &str,
    restore: &Restore<'_>,
) -> Result<(Change, Option<Record>)> {
    let (after, record) = match (current, record) {
        (None, _) => (None, None),
        (Some(current), None) => (restore(current, Removal::of(name))?, None),
        (Some(current), Some(record)) => without(current, record, name, restore)?,
    };
    let change = Change {
        path: path.into(),
        before: current.map(Into::into),
        after,
    };
    Ok((change, record))
}

/// Removes a runtime from a text, and from its record.
fn without(
    current: &str,
    record: &Record,
    name: &str,
    restore: &Restore<'_>,
) -> Result<(Option<String>, Option<Record>)> {
    let is_unchanged = record.after == mark(current);
    let mut rest = record.clone();
    rest.names.retain(|other| other != name);
    let after = if rest.names.is_empty() {
        if is_unchanged {
            return Ok((record.before.clone(), None));
        }
        let removal = Removal {
            before: record.before.as_deref(),
            ..Removal::of(name)
        };
        return Ok((restore(current, removal)?, None));
    } else if rest.names.len() < record.names.len() {
        let removal = Removal {
            name,
            before: record.before.as_deref(),
            others_stay: true,
        };
        restore(current, removal)?
    } else {
        // The record was made later, or by others: its text may have the runtime.
        if let Some(before) = &record.before {
            rest.before = restore(before, Removal::of(name))?;
        }
        restore(current, Removal::of(name))?
    };
    if let (true, Some(after)) = (is_unchanged, &after) {
        rest.after = mark(after);
    }
    let rest = after.is_some().then_some(rest);
    Ok((after, rest))
}

/// Returns the record that a change needs, which adds the runtime `name`; None if the text suffices for undo.
///
/// The original text is that of an earlier record, if there is one, so that configuring twice is undone once. Without
/// one, `is_ours` returns whether a text is our version of another.
pub(crate) fn record_for(
    change: &Change,
    earlier: Option<&Record>,
    name: &str,
    restore: &Restore<'_>,
    is_ours: &dyn Fn(&str, Option<&str>) -> bool,
) -> Result<Option<Record>> {
    let Some(after) = &change.after else {
        return Ok(None);
    };
    let bare = |text: &str| -> Result<Option<String>> {
        let bare = restore(text, Removal::of(name))?;
        let is_made_by_us = bare.as_deref() != Some(text) && is_ours(text, bare.as_deref());
        Ok(if is_made_by_us {
            bare
        } else {
            Some(text.into())
        })
    };
    let mut names = earlier.map_or(Vec::new(), |record| record.names.clone());
    let is_new = !names.iter().any(|known| known == name);
    let has_others = is_new && !names.is_empty();
    if is_new {
        names.push(name.into());
    }
    let before = match (&change.before, earlier) {
        (Some(current), Some(earlier)) if earlier.after == mark(current) => {
            match earlier.before.as_deref() {
                Some(before) if has_others => bare(before)?,
                before => before.map(Into::into),
            }
        }
        (Some(current), Some(earlier)) => {
            all_removed(current, &names, earlier.before.as_deref(), restore)?
        }
        (Some(current), None) => bare(current)?,
        (None, _) => None,
    };
    if all_removed(after, &names, None, restore)? == before {
        return Ok(None);
    }
    Ok(Some(Record {
        before,
        after: mark(after),
        names,
    }))
}

/// Removes several runtimes from a text, the last one with the original values.
fn all_removed(
    text: &str,
    names: &[String],
    before: Option<&str>,
    restore: &Restore<'_>,
) -> Result<Option<String>> {
    let mut text = Some(text.to_owned());
    for (index, name) in names.iter().enumerate() {
        let Some(current) = text else { break };
        let removal = Removal {
            name,
            before,
            others_stay: index + 1 < names.len(),
        };
        text = restore(&current, removal)?;
    }
    Ok(text)
}
