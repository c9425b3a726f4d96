//! Tells cargo, for the package whose build script calls it, what its programs say about their build and how they are
//! linked.

#![forbid(unsafe_code)]

mod facts;
mod link;

pub use facts::{Fact, set};
pub use link::{link_compiler_runtime, link_statically};

use std::env;

/// Returns a variable, unless it is empty.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}
