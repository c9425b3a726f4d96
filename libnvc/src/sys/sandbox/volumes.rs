//! Makes every mount but the root read-only by name, on kernels that cannot do it for a tree (before Linux 5.12).
//!
//! The mount table lists the mounts and their state; it is read again until no mount is writable. If another mount
//! namespace renames directories meanwhile, a name may lead to a mount that is already read-only; the next reading
//! detects this. Nothing is allocated, because this runs in the child.

use std::ffi::CStr;
use std::os::fd::{BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::read;

use crate::sys::mount::{MountAttributes, remount};

/// Maximum number of readings. The second finds nothing left to do, unless another process interferes.
const MAX_READINGS: usize = 8;
/// The longest accepted line: two names of maximum length with every byte escaped fit.
const MAX_LINE_LEN: usize = 40 << 10;

/// Makes all mounts of this mount namespace read-only but the one at `/`. `descriptors` is a directory
/// `/proc/PID/task/TID/fd`, through which this process's own mount table is found.
///
/// Returns `EBUSY` if a mount stays writable, for instance one hidden under another at the same name.
pub(super) fn make_read_only(descriptors: BorrowedFd<'_>) -> Result<(), Errno> {
    for _ in 0..MAX_READINGS {
        if change_all(descriptors)? == 0 {
            return Ok(());
        }
    }
    Err(Errno::EBUSY)
}

/// Goes through the table once; returns the number of writable mounts.
fn change_all(descriptors: BorrowedFd<'_>) -> Result<usize, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    let table = openat(
        descriptors,
        c"../../../../self/mountinfo",
        flags,
        Mode::empty(),
    )?;
    let mut lines = Lines::new(table);
    let mut writable = 0;
    while let Some(line) = lines.next()? {
        let Some(Entry { point, attributes }) = Entry::parse(line) else {
            return Err(Errno::EINVAL);
        };
        if point == b"/" || attributes.contains(MountAttributes::RDONLY) {
            continue;
        }
        writable += 1;
        let mut name = [0; libc::PATH_MAX as usize];
        let name = unescape(point, &mut name).ok_or(Errno::ENAMETOOLONG)?;
        // The next reading finds mounts that could not be changed.
        let _ = remount(name, attributes | MountAttributes::RDONLY);
    }
    Ok(writable)
}

/// A mount, parsed from its line in the table.
struct Entry<'a> {
    point: &'a [u8],
    /// A remount must repeat them.
    attributes: MountAttributes,
}

impl<'a> Entry<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ').skip(4);
        let point = fields.next()?;
        let mut attributes = MountAttributes::empty();
        for option in fields.next()?.split(|byte| *byte == b',') {
            attributes |= match option {
                b"ro" => MountAttributes::RDONLY,
                b"nosuid" => MountAttributes::NOSUID,
                b"nodev" => MountAttributes::NODEV,
                b"noexec" => MountAttributes::NOEXEC,
                _ => MountAttributes::empty(),
            };
        }
        Some(Self { point, attributes })
    }
}

/// Decodes a name's octal escapes and NUL-terminates it.
fn unescape<'a>(name: &[u8], into: &'a mut [u8]) -> Option<&'a CStr> {
    let mut rest = name;
    let mut length = 0;
    while let Some((first, others)) = rest.split_first() {
        let mut byte = *first;
        rest = others;
        if byte == b'\\'
            && let [
                a @ b'0'..=b'3',
                b @ b'0'..=b'7',
                c @ b'0'..=b'7',
                others @ ..,
            ] = others
        {
            byte = (a - b'0') << 6 | (b - b'0') << 3 | (c - b'0');
            rest = others;
        }
        *into.get_mut(length)? = byte;
        length += 1;
    }
    *into.get_mut(length)? = 0;
    CStr::from_bytes_until_nul(into).ok()
}

/// Reads a file line by line into a fixed buffer.
struct Lines {
    file: OwnedFd,
    buffer: [u8; MAX_LINE_LEN],
    start: usize,
    end: usize,
}

impl Lines {
    fn new(file: OwnedFd) -> Self {
        Self {
            file,
            buffer: [0; MAX_LINE_LEN],
            start: 0,
            end: 0,
        }
    }

    /// Returns the next line without its newline; None after the last.
    fn next(&mut self) -> Result<Option<&[u8]>, Errno> {
        loop {
            let unread = self.buffer.get(self.start..self.end).unwrap_or(&[]);
            if let Some(length) = unread.iter().position(|byte| *byte == b'\n') {
                let start = self.start;
                self.start += length + 1;
                return Ok(self.buffer.get(start..start + length));
            }
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            let free = self.buffer.get_mut(self.end..).unwrap_or(&mut []);
            if free.is_empty() {
                return Err(Errno::E2BIG);
            }
            match read(&self.file, free) {
                Ok(0) if self.end == 0 => return Ok(None),
                Ok(0) => return Err(Errno::EINVAL),
                Ok(length) => self.end += length,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn entries_are_read() {
        let line = b"36 35 98:0 /mnt1 /a\\040b rw,noatime,nosuid master:1 - ext3 /dev/root rw";
        let entry = Entry::parse(line).unwrap();
        assert_eq!(entry.point, b"/a\\040b");
        assert_eq!(entry.attributes, MountAttributes::NOSUID);
        let mut name = [0; 16];
        assert_eq!(unescape(entry.point, &mut name), Some(c"/a b"));
        assert_eq!(unescape(b"\\12", &mut name), Some(c"\\12"));
        assert_eq!(unescape(b"0123456789abcdef", &mut name), None);
        assert!(Entry::parse(b"36 35 98:0 /").is_none());
    }

    #[test]
    fn lines_are_taken_from_a_stream() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"one\n\nthree\n").unwrap();
        drop(writer);
        let mut lines = Lines::new(reader.into());
        for wanted in [&b"one"[..], b"", b"three"] {
            assert_eq!(lines.next(), Ok(Some(wanted)));
        }
        assert_eq!(lines.next(), Ok(None));
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"cut").unwrap();
        drop(writer);
        assert_eq!(Lines::new(reader.into()).next(), Err(Errno::EINVAL));
    }
}
