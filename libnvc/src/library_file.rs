//! Reads loader caches and library files, for programs beside libnvc that lay out the driver's files in their own way.

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
}

impl LibraryFile {
    /// Reads the headers of a file; `needed` are name prefixes. Returns None if it is not a library.
    pub fn read(file: File, needed: &[&str]) -> Option<Self> {
        let library = elf::Library::open(file).ok()?;
        let soname = library.soname().ok()?;
        Some(Self {
            soname: soname.map(|name| OsStr::from_bytes(&name).to_owned()),
            needs: library.needs(needed).ok()?,
        })
    }
}
