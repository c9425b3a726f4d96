//! Finds the NVIDIA driver on a Linux host and puts it, with chosen GPUs, into a container.
//!
//! The data's way through the crate: [`options`] say what is wanted; [`host`] and [`container`] discover, reading
//! only; [`plan`] decides, a pure function to a flat list of steps; [`apply`] carries the list out, all or nothing.

#![deny(unsafe_code)]

// what is wanted
pub mod options;
pub mod require;
pub mod select;

// discover
pub mod container;
pub mod host;

// decide
pub mod plan;

// carry out
pub mod apply;

// for programs
pub mod debuglog;
pub mod library_file;

// for tests outside of the crate
#[doc(hidden)]
pub mod testing;

// used everywhere
mod elf;
mod error;
mod inroot;
mod ldcache;
mod path;
mod stream;
mod sys;

pub use error::{Error, ErrorKind, Result};
pub use path::{ContainerPath, HostPath};
#[doc(hidden)]
pub use sys::start::start;

/// Lets this process wait for the children that the library starts, even if it was started with SIGCHLD ignored.
///
/// For programs, at their start; a library has no business with its host's signals.
pub fn await_children() {
    // Fails for signals that do not exist only.
    let _ = sys::process::await_children();
}

/// The library's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The README's example, compiled as a test.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
