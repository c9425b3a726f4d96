//! Reads a loader cache completely, so that it can be written again with changes.
//!
//! Stricter than [`Cache::parse`](super::format::Cache::parse): anything that cannot be preserved or is invalid is a
//! reason not to touch the cache, not something to leave out.

use std::collections::HashSet;

use super::contents::{CacheLine, EXTENSION_MAGIC, Form, GENERATOR, SUBDIRECTORIES, SUBDIRECTORY};
use super::format::{BYTE_ORDER, Cache, EXTENSIONS, count, number};
use super::{FOR_FEATURES, FOR_FEATURES_BEFORE};

/// Limit of sections; glibc writes two.
const MAX_EXTENSIONS: usize = 16;
/// Limit of distinct directories; real caches have a dozen.
const MAX_DIRECTORIES: usize = 256;
/// Limit of entries; real caches have a few thousand.
const MAX_LINES: usize = 1 << 16;

/// The byte order marks of this machine: of glibc since 2.33, and before.
const BYTE_ORDERS: [u8; 2] = [if cfg!(target_endian = "little") { 2 } else { 3 }, 0];

/// The content of a cache.
#[derive(Clone, Debug)]
pub(crate) struct Listing<'a> {
    pub(crate) form: Form<'a>,
    pub(crate) lines: Vec<CacheLine<'a>>,
}

/// A directory that libraries of a cache are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Directory<'a> {
    /// As the cache names it.
    pub(crate) path: &'a [u8],
    /// The directory passed to ldconfig: this one, or a parent if this one is for some CPUs only.
    pub(crate) base: &'a [u8],
}

impl Directory<'_> {
    /// Returns true if it was itself passed to ldconfig.
    pub(crate) fn is_base(&self) -> bool {
        self.path == self.base
    }
}

impl<'a> Listing<'a> {
    /// Parses the bytes of a cache.
    ///
    /// # Errors
    /// The reason why they cannot be used.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, &'static str> {
        let cache = Cache::parse(bytes).ok_or("it has another format")?;
        let combined = cache.data.len() != bytes.len();
        let byte_order = *cache.data.get(BYTE_ORDER).unwrap_or(&0);
        if !BYTE_ORDERS.contains(&byte_order) {
            return Err("it is for another byte order");
        }
        let (generator, subdirectories) = extensions(cache).ok_or("its extensions are invalid")?;
        if combined && !subdirectories.is_empty() {
            // glibc's writer and reader disagree on the string offsets here.
            return Err("its old layout cannot represent its entries for certain CPUs");
        }
        if cache.number_of_entries() > MAX_LINES {
            return Err("it has too many entries");
        }
        let nonsense = "its entries are invalid";
        let lines = cache.whole_entries().map(|entry| {
            let entry = entry?;
            let slash = entry.value.iter().rposition(|&byte| byte == b'/')?;
            let (directory, rest) = entry.value.split_at(slash);
            let sound = entry.value.starts_with(b"/") && rest.len() > 1 && !entry.key.is_empty();
            let subdirectory = usize::try_from(entry.features & 0xffff_ffff).ok()?;
            let known = entry.features & SUBDIRECTORY == 0 || subdirectory < subdirectories.len();
            (sound && known).then_some(CacheLine {
                flags: entry.flags,
                kernel: entry.kernel,
                features: entry.features,
                key: entry.key,
                directory,
                rest,
            })
        });
        let lines = lines.collect::<Option<_>>().ok_or(nonsense)?;
        let form = Form {
            combined,
            byte_order,
            generator,
            subdirectories,
        };
        Ok(Self { form, lines })
    }

    /// Lists the distinct directories, in the order of their first library.
    ///
    /// # Errors
    /// More directories than any real cache has.
    pub(crate) fn directories(&self) -> Result<Vec<Directory<'a>>, &'static str> {
        let mut found: Vec<(&'a [u8], u64)> = Vec::new();
        let mut known = HashSet::new();
        let mut last: &[u8] = b"\0";
        for line in &self.lines {
            if line.directory == last {
                continue;
            }
            last = line.directory;
            if !known.insert(last) {
                continue;
            }
            if found.len() >= MAX_DIRECTORIES {
                return Err("it has too many directories");
            }
            found.push((line.directory, line.features));
        }
        let directory = |&(path, features): &(&'a [u8], u64)| {
            let base = if features & SUBDIRECTORY != 0 {
                base_of_subdirectory(path)
            } else if features != 0 {
                base_of_old_subdirectory(path)
            } else {
                path
            };
            Directory { path, base }
        };
        Ok(found.iter().map(directory).collect())
    }
}

/// Returns `/lib` for `/lib/glibc-hwcaps/x86-64-v3`.
fn base_of_subdirectory(path: &[u8]) -> &[u8] {
    match parent(path).map(|(base, _)| base).and_then(parent) {
        Some((base, name)) if name == FOR_FEATURES.as_bytes() => base,
        _ => path,
    }
}

/// Returns `/lib` for `/lib/tls/haswell`.
fn base_of_old_subdirectory(mut path: &[u8]) -> &[u8] {
    while let Some((base, name)) = parent(path) {
        if !FOR_FEATURES_BEFORE
            .iter()
            .any(|known| known.as_bytes() == name)
        {
            break;
        }
        path = base;
    }
    path
}

/// Splits a directory into its parent and its name.
fn parent(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let slash = path.iter().rposition(|&byte| byte == b'/')?;
    Some((path.get(..slash)?, path.get(slash + 1..)?))
}

type Extensions<'a> = (Option<&'a [u8]>, Vec<&'a [u8]>);

/// Reads the generator and the names of the hwcaps subdirectories; both are absent before glibc 2.33.
fn extensions(cache: Cache<'_>) -> Option<Extensions<'_>> {
    let at = count(cache.data, EXTENSIONS)?;
    if at == 0 {
        return Some((None, Vec::new()));
    }
    // All offsets here, except those of strings, count from the start of the file.
    let table = cache.file.get(at..)?;
    let sections = count(table, 4)?;
    if number(table, 0)? != EXTENSION_MAGIC || sections > MAX_EXTENSIONS {
        return None;
    }
    let (mut generator, mut subdirectories): Extensions<'_> = (Some(b""), Vec::new());
    for section in table.get(8..)?.get(..sections * 16)?.chunks_exact(16) {
        let (start, size) = (count(section, 8)?, count(section, 12)?);
        let content = cache.file.get(start..)?.get(..size)?;
        match number(section, 0)? {
            GENERATOR => generator = Some(content),
            SUBDIRECTORIES => {
                let names = content.chunks_exact(4);
                let names = names.map(|name| cache.string(count(name, 0)?));
                subdirectories = names.collect::<Option<_>>()?;
            }
            _ => {}
        }
    }
    Some((generator, subdirectories))
}
