//! Reads files of procfs, whose size is reported as 0, with few system calls.
//!
//! The standard library queries size and position first and then starts with 32 bytes. It needs twelve calls for a
//! mount table of some kilobytes, and the kernel seeks in the table at each.

#![forbid(unsafe_code)]

use std::fs::File;
use std::io::Read;
use std::path::Path;

use nix::errno::Errno;

use crate::error::errno_of;

/// Size of one read: larger than most such files.
const READ_SIZE: usize = 8 << 10;

/// Size limit: a table of ten thousand mounts has 2 MiB.
const MAX_SIZE: u64 = 64 << 20;

/// Reads a file to its end, or up to a limit.
pub(crate) fn read(file: impl Read, most: u64) -> Result<Vec<u8>, Errno> {
    let mut bytes = Vec::with_capacity(READ_SIZE);
    match file.take(most).read_to_end(&mut bytes) {
        Ok(_) => Ok(bytes),
        Err(error) => Err(errno_of(&error)),
    }
}

/// Reads a kernel file to its end. Whoever may mount can make a table of gigabytes, of long names.
///
/// # Errors
/// `EFBIG` if it is longer than [`MAX_SIZE`]; the system's.
pub(crate) fn read_all(file: impl Read) -> Result<Vec<u8>, Errno> {
    let bytes = read(file, MAX_SIZE + 1)?;
    if bytes.len() as u64 > MAX_SIZE {
        return Err(Errno::EFBIG);
    }
    Ok(bytes)
}

/// Opens a kernel file by name and reads it, as [`read_all`] does.
pub(crate) fn read_path(path: impl AsRef<Path>) -> Result<Vec<u8>, Errno> {
    read_all(File::open(path).map_err(|error| errno_of(&error))?)
}

/// Returns what follows a name at the start of a line, as `Uid:` in a process's status.
pub(crate) fn line_of<'a>(text: &'a [u8], name: &[u8]) -> Option<&'a str> {
    let mut lines = text.split(|byte| *byte == b'\n');
    let value = lines.find_map(|line| line.strip_prefix(name))?;
    Some(std::str::from_utf8(value).ok()?.trim())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_file_has_a_limit() {
        let file = |size| std::io::repeat(b'x').take(size);
        assert_eq!(read_all(file(MAX_SIZE)).unwrap().len() as u64, MAX_SIZE);
        assert_eq!(read_all(file(MAX_SIZE + 1)), Err(Errno::EFBIG));
    }
}
