//! Undoes changes to configuration files, to the byte.
//!
//! Usually the text itself suffices: the original is the text without our keys. If it does not (a value was replaced, a
//! file was empty), the original text is stored in a [`record`](super::record). If the file is unchanged since, undo
//! restores the original text; if the user has changed it, only our keys are restored.

use std::path::Path;

use libnvc::Result;

use super::change::Change;
use super::record::{Record, mark};

/// Removes our keys from a text; given the original text, restores their values. None: the file is removed.
pub(crate) type Restore<'a> = dyn Fn(&str, Option<&str>) -> Result<Option<String>> + 'a;

/// Returns the change that undoes ours, and whether there was anything to undo.
pub(crate) fn undo(
    path: &Path,
    current: Option<&str>,
    record: Option<&Record>,
    restore: &Restore<'_>,
) -> Result<Change> {
    let after = match (current, record) {
        (None, _) => None,
        (Some(current), Some(record)) if record.after == mark(current) => record.before.clone(),
        (Some(current), record) => restore(current, record.and_then(|r| r.before.as_deref()))?,
    };
    Ok(Change {
        path: path.into(),
        before: current.map(Into::into),
        after,
    })
}

/// Returns the record that a change needs; None if the text suffices for undo.
///
/// The original text is that of an earlier record, if there is one, so that configuring twice is undone once. Without
/// one, `is_ours` returns whether a text is our version of another.
pub(crate) fn record_for(
    change: &Change,
    earlier: Option<&Record>,
    restore: &Restore<'_>,
    is_ours: &dyn Fn(&str, Option<&str>) -> bool,
) -> Result<Option<Record>> {
    let Some(after) = &change.after else {
        return Ok(None);
    };
    let before = match (&change.before, earlier) {
        (Some(current), Some(earlier)) => {
            undo(&change.path, Some(current), Some(earlier), restore)?.after
        }
        (Some(current), None) => {
            let bare = restore(current, None)?;
            let made_by_us = bare.as_ref() != Some(current) && is_ours(current, bare.as_deref());
            if made_by_us {
                bare
            } else {
                Some(current.clone())
            }
        }
        (None, _) => None,
    };
    if restore(after, None)? == before {
        return Ok(None);
    }
    Ok(Some(Record {
        before,
        after: mark(after),
    }))
}
