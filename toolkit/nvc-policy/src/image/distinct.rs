//! Removes empty names and duplicates from lists.

use std::borrow::Cow;

use indexmap::IndexSet;
use nvc_cdi::names;

/// Names that are words, in any case.
const WORDS: [&str; 3] = ["all", "none", "void"];

/// Drops empty names and duplicates, and writes words in lower case.
pub(super) fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let names = names.filter(|name| !name.is_empty());
    let different: IndexSet<Cow<'_, str>> = names.map(in_lower_case).collect();
    different.into_iter().map(Cow::into_owned).collect()
}

/// Writes a name that is a word in lower case, also one with a kind of NVIDIA's.
fn in_lower_case(name: &str) -> Cow<'_, str> {
    let qualified = names::parse(name).filter(|name| names::is_nvidias(name.vendor));
    let device = qualified.map_or(name, |name| name.device);
    let word = WORDS.iter().find(|word| word.eq_ignore_ascii_case(device));
    match word {
        Some(word) if *word != device => {
            let kind = &name[..name.len() - device.len()];
            Cow::Owned(format!("{kind}{word}"))
        }
        _ => Cow::Borrowed(name),
    }
}
