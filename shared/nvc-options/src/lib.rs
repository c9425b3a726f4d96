//! Holds the command lines of nvidia-container-cli and nvidia-ctk: option tables, help, and getopt's rules.
//!
//! The programs share them with the generator of manual pages and completions (`pkg/generate`) and with a fuzz target.

#![forbid(unsafe_code)]

// nvidia-container-cli
pub mod args;
pub mod getopt;
pub mod help;

// nvidia-ctk
pub mod ctk;
