//! Writes messages where users read them; everything in them that is not our own text may come from an image.
//!
//! *Raw inside, escaped where it leaves*: a message is assembled from raw values, and the function that writes it
//! escapes the whole line with [`printable`]. So no caller can forget to, and nothing is escaped twice.

#![forbid(unsafe_code)]

mod printable;

pub use printable::{LONGEST, printable};
