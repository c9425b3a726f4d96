//! Holds the command lines of the programs: one type for options, one scanner with a few grammars, and the tables of
//! nvidia-container-cli, nvidia-ctk and gpu-kubelet-plugin.
//!
//! nvc-help renders the tables; nothing here needs clap, so hooks can link it.

#![forbid(unsafe_code)]

pub mod given;
pub mod mistake;
pub mod scan;
pub mod table;

// nvidia-container-cli
pub mod args;
pub mod getopt;

// nvidia-ctk
pub mod ctk;

// gpu-kubelet-plugin
pub mod node;

pub use given::Given;
pub use table::{Command, Opt, Takes};
