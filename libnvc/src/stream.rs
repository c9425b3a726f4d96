//! Reads files whose size nobody knows beforehand: those of procfs say 0.
//!
//! The standard library asks for size and position first, and then begins with 32 bytes: a mount table of some kilobytes
//! takes it twelve calls, and the kernel looks for its place in the table at each.

#![forbid(unsafe_code)]

use std::fs::File;
use std::io::Read;
use std::path::Path;

use nix::errno::Errno;

use crate::error::errno_of;

/// What one read may bring: more than most such files have.
const AT_ONCE: usize = 8 << 10;

/// Reads a file to its end, or as many bytes as are wanted at the most.
pub(crate) fn read(file: impl Read, most: u64) -> Result<Vec<u8>, Errno> {
    let mut bytes = Vec::with_capacity(AT_ONCE);
    match file.take(most).read_to_end(&mut bytes) {
        Ok(_) => Ok(bytes),
        Err(error) => Err(errno_of(&error)),
    }
}

/// Opens a file of the kernel's by name, and reads it.
pub(crate) fn read_path(path: impl AsRef<Path>) -> Result<Vec<u8>, Errno> {
    let file = File::open(path).map_err(|error| errno_of(&error))?;
    read(file, u64::MAX)
}
