//! Reads and edits an OCI runtime's inputs: the state of a container and its config.json.
//!
//! config.json belongs to other programs, so it is never converted to our own types and back: it stays a tree of JSON
//! values in which single members are changed, and all unknown members are kept.
#![forbid(unsafe_code)]

pub mod bundle;
pub mod lenient;
pub mod own_environment;
pub mod paths;
pub mod spec;
pub mod state;
pub mod unique;
