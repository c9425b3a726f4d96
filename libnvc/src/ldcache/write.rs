//! Serialises a loader cache in the layout of the one that was read.

use super::contents::{CacheLine, EXTENSION_MAGIC, Form, GENERATOR, SUBDIRECTORIES};
use super::format::{
    BYTE_ORDER, ENTRY, EXTENSIONS, HEADER, MAGIC, OLD_ENTRY, OLD_HEADER, OLD_MAGIC,
};

/// Largest cache that is written; the sandbox of ldconfig has the same limit.
const MAX_BYTES: usize = 64 << 20;

impl Form<'_> {
    /// Serialises a cache with these entries, which must be sorted. Returns None if it would be too large.
    pub(crate) fn write(&self, lines: &[CacheLine<'_>]) -> Option<Vec<u8>> {
        let lengths = lines
            .iter()
            .map(|line| line.key.len() + line.directory.len() + line.rest.len() + 2);
        let names: usize = self
            .subdirectories
            .iter()
            .map(|name| name.len() + 1 + 4)
            .sum();
        let tail = 64 + names + self.generator.map_or(0, <[u8]>::len);
        let entries = lines.len().checked_mul(ENTRY + OLD_ENTRY)?;
        let most = lengths.sum::<usize>() + entries + tail + HEADER + OLD_HEADER + 2 * OLD_ENTRY;
        if most > MAX_BYTES {
            return None;
        }
        let old = if self.combined { old_size(lines) } else { 0 };
        let table = HEADER + lines.len() * ENTRY;
        let strings = Strings::of(lines, &self.subdirectories, table);

        let mut file = Vec::with_capacity(most);
        if self.combined {
            old_table(lines, &strings, &mut file)?;
        }
        debug_assert_eq!(file.len(), old);
        file.extend(MAGIC);
        push(&mut file, lines.len())?;
        push(&mut file, strings.bytes.len())?;
        file.resize(old + HEADER, 0);
        *file.get_mut(old + BYTE_ORDER)? = self.byte_order;
        for (line, place) in lines.iter().zip(&strings.places) {
            file.extend(line.flags.to_ne_bytes());
            push(&mut file, place.key)?;
            push(&mut file, place.value)?;
            file.extend(line.kernel.to_ne_bytes());
            file.extend(line.features.to_ne_bytes());
        }
        file.extend(&strings.bytes);
        if let Some(generator) = self.generator {
            let start = file.len().next_multiple_of(4);
            file.resize(start, 0);
            let field = file.get_mut(old + EXTENSIONS..)?.first_chunk_mut()?;
            *field = u32::try_from(start).ok()?.to_ne_bytes();
            extensions(generator, &strings.subdirectories, &mut file)?;
        }
        Some(file)
    }
}

/// String offsets of an entry, from the new layout's magic.
struct Place {
    key: usize,
    value: usize,
}

/// All strings; a name that is the tail of its path shares its bytes.
struct Strings {
    bytes: Vec<u8>,
    places: Vec<Place>,
    subdirectories: Vec<usize>,
}

impl Strings {
    fn of(lines: &[CacheLine<'_>], subdirectories: &[&[u8]], start: usize) -> Self {
        let mut bytes = Vec::new();
        let mut add = |parts: [&[u8]; 2]| {
            let at = start + bytes.len();
            parts.into_iter().for_each(|part| bytes.extend(part));
            bytes.push(0);
            at
        };
        let places = lines.iter().map(|line| {
            let value = add([line.directory, line.rest]);
            let key = match line.rest.strip_suffix(line.key) {
                Some(before) => value + line.directory.len() + before.len(),
                None => add([line.key, b""]),
            };
            Place { key, value }
        });
        let places = places.collect();
        let subdirectories = subdirectories.iter().map(|name| add([name, b""])).collect();
        Self {
            bytes,
            places,
            subdirectories,
        }
    }
}

/// Counts the entries of the old table: those for any CPU, rounded to an even number for alignment.
fn old_count(lines: &[CacheLine<'_>]) -> usize {
    let general = lines.iter().filter(|line| line.features == 0);
    general.count().next_multiple_of(2)
}

fn old_size(lines: &[CacheLine<'_>]) -> usize {
    OLD_HEADER + old_count(lines) * OLD_ENTRY
}

/// Serialises the table of the old layout, in which string offsets count from its end.
fn old_table(lines: &[CacheLine<'_>], strings: &Strings, file: &mut Vec<u8>) -> Option<()> {
    file.extend(OLD_MAGIC);
    file.push(0);
    push(file, old_count(lines))?;
    let entries = lines.iter().zip(&strings.places);
    for (line, place) in entries.filter(|(line, _)| line.features == 0) {
        file.extend(line.flags.to_ne_bytes());
        push(file, place.key)?;
        push(file, place.value)?;
    }
    let end = old_size(lines);
    if file.len() < end {
        file.extend_from_within(file.len() - OLD_ENTRY..);
    }
    Some(())
}

/// Serialises the extension directory and the extensions.
fn extensions(generator: &[u8], subdirectories: &[usize], file: &mut Vec<u8>) -> Option<()> {
    let sections: usize = if subdirectories.is_empty() { 1 } else { 2 };
    file.extend(EXTENSION_MAGIC.to_ne_bytes());
    push(file, sections)?;
    let names = file.len() + sections * 16;
    let mut section = |tag: u32, start: usize, size: usize| {
        file.extend(tag.to_ne_bytes());
        file.extend([0; 4]);
        push(file, start)?;
        push(file, size)
    };
    section(GENERATOR, names + subdirectories.len() * 4, generator.len())?;
    if !subdirectories.is_empty() {
        section(SUBDIRECTORIES, names, subdirectories.len() * 4)?;
    }
    for &name in subdirectories {
        push(file, name)?;
    }
    file.extend(generator);
    Some(())
}

/// Appends a number in the format's byte order.
fn push(file: &mut Vec<u8>, number: usize) -> Option<()> {
    file.extend(u32::try_from(number).ok()?.to_ne_bytes());
    Some(())
}
