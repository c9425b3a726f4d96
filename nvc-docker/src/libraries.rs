//! Lists the libraries in the machine's loader cache.

use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;

use libnvc::library_file::{CacheEntry, entries};
use libnvc::{Error, ErrorKind, Result};

const CACHE: &str = "/etc/ld.so.cache";
/// Size limit of the cache; typical ones have 100 kB.
const MAX_SIZE: u64 = 64 << 20;
/// Flag of entries for the GNU C library.
const ELF: i32 = 1;

/// The ABI of a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    Wide,
    Narrow,
}

/// A library in the loader's cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Library {
    pub(crate) width: Width,
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

/// Returns the libraries of the loader's cache, in its order.
///
/// # Errors
/// If it cannot be read; `invalid ld.so.cache file`.
pub(crate) fn all() -> Result<Vec<Library>> {
    let failed =
        |error: std::io::Error| Error::new(ErrorKind::System, format!("open {CACHE}: {error}"));
    let mut bytes = Vec::new();
    let file = File::open(CACHE).map_err(failed)?;
    file.take(MAX_SIZE)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    let entries = entries(&bytes).ok_or_else(|| {
        Error::new(ErrorKind::Malformed, "invalid ld.so.cache file").hint("run ldconfig")
    })?;
    Ok(entries.into_iter().filter_map(of_entry).collect())
}

/// Returns true if the loader's cache lists a library.
pub(crate) fn are_there(name: &str) -> Result<bool> {
    Ok(all()?.iter().any(|library| library.name == name))
}

fn of_entry(entry: CacheEntry) -> Option<Library> {
    if entry.flags & ELF == 0 {
        return None;
    }
    let width = match entry.flags & 0xff00 {
        // x86-64, ppc64le; AArch64
        0x0300 | 0x0500 => Width::Wide,
        0x0a00 if cfg!(target_arch = "aarch64") => Width::Wide,
        // i386 and entries without an architecture, x32; ARM with and without hardware floating point
        0x0000 | 0x0800 => Width::Narrow,
        0x0900 | 0x0b00 if cfg!(target_arch = "aarch64") => Width::Narrow,
        _ => return None,
    };
    Some(Library {
        width,
        name: entry.name.into_string().ok()?,
        path: entry.path,
    })
}
