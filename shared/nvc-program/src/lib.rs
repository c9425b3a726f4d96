//! Holds what the programs around libnvc share: how they start, parse options, and write messages.
//!
//! It depends on little, because the programs that engines start with every container link it.

#![forbid(unsafe_code)]

// the command line
pub mod goflag;
pub mod urfave;

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
