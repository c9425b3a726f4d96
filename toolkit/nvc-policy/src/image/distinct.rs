//! Removes empty names and duplicates from lists.

use indexmap::IndexSet;

/// Trims names, and drops empty ones and duplicates.
pub(super) fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let names = names.map(str::trim).filter(|name| !name.is_empty());
    let different: IndexSet<&str> = names.collect();
    different.into_iter().map(str::to_owned).collect()
}
