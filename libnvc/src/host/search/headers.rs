//! Reads what the search needs of a library's ELF headers, with one opening.

use std::fs::File;

use crate::elf::{ElfError, Library};
use crate::host::{Abi, DriverRoot, catalogue};
use crate::path::HostPath;

/// Facts from a library's headers.
#[derive(Clone, Debug, Default)]
pub(super) struct Headers {
    /// The set of libraries that it belongs to; None for one of another machine.
    pub(super) abi: Option<Abi>,
    /// Its own name, if it can be a link's.
    pub(super) soname: Option<String>,
    /// The names of the libraries that it needs.
    pub(super) needed: Vec<String>,
    /// Its ABI note, if the library has variants that differ in it.
    pub(super) note: Option<[u32; 4]>,
}

impl Headers {
    /// Reads a library.
    pub(super) fn read(root: &DriverRoot, path: &HostPath) -> Result<Self, ElfError> {
        let file = root.open_file(path).map_err(std::io::Error::from)?;
        let library: Library<File> = Library::open(file)?;
        let names = match library.names() {
            Err(ElfError::NoDynamicSection) => Default::default(),
            names => names?,
        };
        let text = |name: Vec<u8>| String::from_utf8(name).ok();
        let is_plain = |name: &String| {
            !matches!(name.as_str(), "" | "." | "..") && !name.contains('/') && !name.contains("::")
        };
        let is_tls = catalogue::is_tls(path.file_name());
        Ok(Self {
            abi: Abi::of_elf(library.identity()),
            soname: names.soname.and_then(text).filter(is_plain),
            needed: names.needed.into_iter().filter_map(text).collect(),
            note: is_tls.then(|| library.abi().ok()).flatten(),
        })
    }
}
