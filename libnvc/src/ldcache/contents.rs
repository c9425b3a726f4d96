//! Defines the contents of a cache: its entries, the rest of it, and the numbers that mark its parts.

/// Magic of the directory of extensions.
pub(super) const EXTENSION_MAGIC: u32 = 0xeaa4_2174;
/// Tag of the extension that names the program that wrote the cache.
pub(super) const GENERATOR: u32 = 0;
/// Tag of the extension that names the subdirectories of glibc-hwcaps.
pub(super) const SUBDIRECTORIES: u32 = 1;
/// Marks an entry of a subdirectory of glibc-hwcaps; the lower half is the subdirectory's number.
pub(crate) const SUBDIRECTORY: u64 = 1 << 62;

/// One entry: the library that a name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheLine<'a> {
    /// Kind and architecture.
    pub(crate) flags: i32,
    /// The oldest kernel it supports, before glibc 2.36.
    pub(crate) kernel: u32,
    /// CPU features that it requires.
    pub(crate) features: u64,
    /// The name that programs ask for.
    pub(crate) key: &'a [u8],
    /// The file's directory.
    pub(crate) directory: &'a [u8],
    /// The rest of its path: a slash and its name.
    pub(crate) rest: &'a [u8],
}

/// Everything in a cache except its entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Form<'a> {
    /// True if a table of the old layout comes first.
    pub(crate) combined: bool,
    /// The byte-order mark.
    pub(super) byte_order: u8,
    /// The program that wrote it; None in a cache without extensions.
    pub(super) generator: Option<&'a [u8]>,
    /// The subdirectories of glibc-hwcaps, which entries refer to by number.
    pub(super) subdirectories: Vec<&'a [u8]>,
}
