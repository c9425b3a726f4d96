//! Removes empty names and duplicates from lists, and spells words in one way.

use indexmap::IndexSet;
use nvc_cdi::names;

/// Trims names, writes the words `all`, `none` and `void` in lower case, and drops empty names and duplicates.
pub(super) fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let names = names.map(str::trim).filter(|name| !name.is_empty());
    let different: IndexSet<&str> = names.collect();
    let different: IndexSet<String> = different.into_iter().map(spelt).collect();
    different.into_iter().collect()
}

/// Spells a word in lower case, also as the device of a CDI name of NVIDIA's; other vendors' names are their own.
fn spelt(name: &str) -> String {
    let word = match names::parse(name) {
        Some(qualified) if is_nvidia(qualified.kind) => qualified.device,
        Some(_) => "",
        None => name,
    };
    let mut words = ["all", "none", "void"].into_iter();
    match words.find(|known| known.eq_ignore_ascii_case(word)) {
        Some(known) => name.strip_suffix(word).unwrap_or_default().to_owned() + known,
        None => name.to_owned(),
    }
}

fn is_nvidia(kind: &str) -> bool {
    let vendor = kind.split('/').next().unwrap_or_default();
    vendor == "nvidia.com" || vendor.ends_with(".nvidia.com")
}
