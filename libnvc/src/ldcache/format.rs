//! Parses the dynamic loader's cache, /etc/ld.so.cache, which maps library names to files.
//!
//! Two layouts are in use, the "new" one and one where an old table precedes it; both are glibc's (`cache.h`), in the
//! machine's byte order. The reader borrows from the bytes and checks every number in them.

use std::ffi::CStr;

/// Magic and version of the new layout.
pub(super) const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
/// Magic of the old table that may come first; one byte of padding follows.
pub(super) const OLD_MAGIC: &[u8] = b"ld.so-1.7.0";
pub(super) const OLD_HEADER: usize = 16;
pub(super) const OLD_ENTRY: usize = 12;
pub(super) const HEADER: usize = 48;
pub(super) const ENTRY: usize = 24;
/// Offset of the byte-order mark in the new layout's header; zero before glibc 2.33.
pub(super) const BYTE_ORDER: usize = 28;
/// Offset of the extensions' file offset in that header; zero before glibc 2.33.
pub(super) const EXTENSIONS: usize = 32;
/// Longest string, more than PATH_MAX. In a damaged cache a million strings may each extend to the end of the file.
const MAX_STRING_LEN: usize = 4096;

/// A loader cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cache<'a> {
    /// The whole file.
    pub(super) file: &'a [u8],
    /// The bytes from the new layout's magic on; string offsets count from here.
    pub(super) data: &'a [u8],
    table: &'a [u8],
}

/// One entry of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    /// Kind and architecture of the library.
    pub(crate) flags: i32,
    /// The name that programs ask for.
    pub(crate) key: &'a [u8],
    /// The file's path.
    pub(crate) value: &'a [u8],
    /// The oldest kernel it supports; unused since glibc 2.36.
    pub(crate) kernel: u32,
    /// CPU features that it requires.
    pub(crate) features: u64,
}

impl<'a> Cache<'a> {
    /// Parses a cache. Returns None if the format is unknown, the file truncated, or only an old table is present.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let data = match bytes.strip_prefix(OLD_MAGIC) {
            Some(_) => {
                let table = count(bytes, 12)?.checked_mul(OLD_ENTRY)?;
                let end = OLD_HEADER.checked_add(table)?;
                bytes.get(end.checked_next_multiple_of(8)?..)?
            }
            None => bytes,
        };
        if !data.starts_with(MAGIC) {
            return None;
        }
        let table = count(data, MAGIC.len())?.checked_mul(ENTRY)?;
        let table = data.get(HEADER..)?.get(..table)?;
        Some(Self {
            file: bytes,
            data,
            table,
        })
    }

    /// Iterates over the entries in file order. Entries whose strings lie outside the file or are too long are skipped.
    pub(crate) fn entries(self) -> impl Iterator<Item = Entry<'a>> {
        self.whole_entries().flatten()
    }

    /// Returns the number of entries, readable or not.
    pub(super) fn number_of_entries(self) -> usize {
        self.table.len() / ENTRY
    }

    /// Iterates over the entries in file order, with None for an invalid entry.
    pub(super) fn whole_entries(self) -> impl Iterator<Item = Option<Entry<'a>>> {
        self.table.chunks_exact(ENTRY).map(move |entry| {
            Some(Entry {
                flags: number(entry, 0)?.cast_signed(),
                key: self.string(count(entry, 4)?)?,
                value: self.string(count(entry, 8)?)?,
                kernel: number(entry, 12)?,
                features: u64::from_ne_bytes(*entry.get(16..)?.first_chunk()?),
            })
        })
    }

    /// Returns the string at an offset from the new layout's magic, unless it is too long.
    pub(super) fn string(self, offset: usize) -> Option<&'a [u8]> {
        let tail = self.data.get(offset..)?;
        let tail = tail.get(..MAX_STRING_LEN).unwrap_or(tail);
        Some(CStr::from_bytes_until_nul(tail).ok()?.to_bytes())
    }
}

pub(super) fn number(bytes: &[u8], offset: usize) -> Option<u32> {
    let bytes = bytes.get(offset..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*bytes))
}

pub(super) fn count(bytes: &[u8], offset: usize) -> Option<usize> {
    number(bytes, offset)?.try_into().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::cast_possible_truncation)]
pub(crate) mod tests {
    use super::*;

    /// Builds a cache of the new layout with these flags, names and paths.
    pub(crate) fn build(entries: &[(i32, &str, &str)]) -> Vec<u8> {
        let mut strings = Vec::new();
        let mut table = Vec::new();
        let base = HEADER + entries.len() * ENTRY;
        for (flags, key, value) in entries {
            table.extend(flags.to_ne_bytes());
            for text in [key, value] {
                table.extend(((base + strings.len()) as u32).to_ne_bytes());
                strings.extend(text.as_bytes());
                strings.push(0);
            }
            table.extend([0; 12]);
        }
        let mut bytes = MAGIC.to_vec();
        bytes.extend((entries.len() as u32).to_ne_bytes());
        bytes.extend((strings.len() as u32).to_ne_bytes());
        bytes.extend([0; 20]);
        [bytes, table, strings].concat()
    }

    fn with_old_table(new: &[u8], old_entries: u32) -> Vec<u8> {
        let mut bytes = OLD_MAGIC.to_vec();
        bytes.push(0);
        bytes.extend(old_entries.to_ne_bytes());
        bytes.resize(
            (OLD_HEADER + old_entries as usize * OLD_ENTRY).next_multiple_of(8),
            0,
        );
        [bytes, new.to_vec()].concat()
    }

    fn sample() -> Vec<u8> {
        build(&[
            (0x303, "libcuda.so.1", "/usr/lib/libcuda.so.1"),
            (3, "libcuda.so", "/l"),
        ])
    }

    fn keys(bytes: &[u8]) -> Option<Vec<&[u8]>> {
        Some(Cache::parse(bytes)?.entries().map(|e| e.key).collect())
    }

    #[test]
    fn reads_both_layouts() {
        let new = sample();
        let cache = Cache::parse(&new).unwrap();
        let first = cache.entries().next().unwrap();
        assert_eq!(first.flags, 0x303);
        assert_eq!(first.value, b"/usr/lib/libcuda.so.1");
        assert_eq!(cache.entries().count(), 2);
        for old_entries in [0, 1, 2, 3] {
            let old = with_old_table(&new, old_entries);
            assert_eq!(keys(&old), keys(&new));
        }
        assert_eq!(keys(&build(&[])).unwrap().len(), 0);
    }

    #[test]
    fn foreign_formats_are_none() {
        let old_only = &with_old_table(b"", 2);
        let too_many = &mut sample();
        too_many[20..24].copy_from_slice(&u32::MAX.to_ne_bytes());
        let old_too_many = &mut with_old_table(&sample(), 1);
        old_too_many[12..16].copy_from_slice(&u32::MAX.to_ne_bytes());
        for bytes in [
            b"".as_slice(),
            b"root:x:0:0:root:/root:/bin/sh\n",
            MAGIC,
            &sample()[..47],
            old_only,
            too_many,
            old_too_many,
        ] {
            assert!(Cache::parse(bytes).is_none());
        }
    }

    #[test]
    fn strings_outside_the_file_are_left_out() {
        let mut bytes = sample();
        bytes[HEADER + 4..HEADER + 8].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(keys(&bytes).unwrap(), [b"libcuda.so"]);
        bytes.pop(); // the last string has no end now
        assert_eq!(keys(&bytes).unwrap().len(), 0);
    }
}
