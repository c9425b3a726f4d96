//! Reads loader caches, library files and build ids, for programs beside libnvc.

#![forbid(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use crate::elf;
use crate::ldcache::format::Cache;

/// An entry of the loader's cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheEntry {
    /// Kind and architecture of the library, as glibc numbers them.
    pub flags: i32,
    /// The name that programs ask for.
    pub name: OsString,
    /// The file's path.
    pub path: PathBuf,
}

/// Returns the entries of a loader cache in its order; None if the bytes are not one.
pub fn entries(cache: &[u8]) -> Option<Vec<CacheEntry>> {
    let entries = Cache::parse(cache)?.entries();
    Some(
        entries
            .map(|entry| CacheEntry {
                flags: entry.flags,
                name: OsStr::from_bytes(entry.key).to_owned(),
                path: OsStr::from_bytes(entry.value).into(),
            })
            .collect(),
    )
}

/// The relevant headers of a library file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryFile {
    /// Its SONAME.
    pub soname: Option<OsString>,
    /// True if it needs one of the libraries asked for.
    pub needs: bool,
    /// The oldest kernel that it supports, if a section says so.
    pub kernel: Option<[u32; 3]>,
}

impl LibraryFile {
    /// Reads the headers of a file, by its sections if it has any; `needed` are name prefixes. Returns None if it is not
    /// a library.
    pub fn read(file: File, needed: &[&str]) -> Option<Self> {
        let library = elf::Library::open(file).ok()?.by_sections();
        let soname = library.soname().ok()?;
        Some(Self {
            soname: soname.map(|name| OsStr::from_bytes(&name).to_owned()),
            needs: library.needs(needed).ok()?,
            kernel: library.abi_of_section().map(|[_, version @ ..]| version),
        })
    }
}

/// Returns the GNU build id of a program or library, in hexadecimal.
pub fn build_id(file: File) -> Option<String> {
    let id = elf::Library::open(file).ok()?.build_id().ok()??;
    let digits = id.iter().map(|byte| format!("{byte:02x}"));
    (!id.is_empty()).then(|| digits.collect())
}
