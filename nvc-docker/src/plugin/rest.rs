//! Answers HTTP requests about GPUs: version 1.0 like upstream's plugin, version 2, health, metrics and a page.

mod answer;
mod cli;
mod containers;
mod info;
mod lines;
mod metrics;
mod query;
mod router;
mod status;
mod v2;

pub(super) use answer::{Answer, INTERNAL_ERROR, NOT_FOUND_TEXT, TEXT, json, of_type};
pub(super) use router::Rest;

/// Passes a foreign text to the parsers, for fuzzing.
pub(super) fn parse(text: &str) {
    let _ = query::unescaped(text, false);
    let _ = query::list(text, "dev");
}
