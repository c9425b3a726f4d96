//! Reads and edits what an OCI runtime is given: the state of a container and its config.json.
//!
//! config.json belongs to somebody else, so it is never turned into types of our own and back: it stays a tree of JSON
//! values in which single members are changed, and everything that we do not know survives.

pub mod bundle;
pub mod container;
pub mod edits;
pub mod lenient;
pub mod paths;
pub mod spec;
pub mod state;
