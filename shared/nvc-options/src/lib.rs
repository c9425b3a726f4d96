//! Holds the command lines of nvidia-container-cli and nvidia-ctk, and getopt's grammar.
//!
//! The programs share the tables with the generator of manual pages and completions (`pkg/generate`) and with a fuzz
//! target.

#![forbid(unsafe_code)]

// nvidia-container-cli
pub mod args;
pub mod getopt;
pub mod help;

// nvidia-ctk
pub mod ctk;
