//! Holds what the programs around libnvc share: how they start, and write messages.
//!
//! It depends on little, because the programs that engines start with every container link it.

#![forbid(unsafe_code)]

// nvidia-cdi-hook and what calls it
pub mod hook_names;

// start
pub mod privileges;

// messages
pub mod debuglog;
pub mod hints;
pub mod messages;
pub mod utc;
pub mod warnings;

// input
pub mod json;
pub mod requirements;
