//! Reads and updates the dynamic loader's cache: its format, its order, ldconfig's configuration.
//!
//! Discovery reads the caches of the host and of the image; apply writes the image's. Everything is pure except
//! [`configured`], [`search_path`] and [`judge`], which read a root.

#![forbid(unsafe_code)]

pub(crate) mod conf;
pub(crate) mod configured;
pub(crate) mod contents;
pub(crate) mod format;
pub(crate) mod judge;
pub(crate) mod library;
pub(crate) mod listing;
pub(crate) mod merge;
pub(crate) mod musl;
pub(crate) mod order;
pub(crate) mod search_path;
pub(crate) mod write;

/// Directories that ldconfig may search by default; the distribution decides which.
pub(crate) const BUILT_IN: [&str; 4] = ["/lib", "/usr/lib", "/lib64", "/usr/lib64"];

/// The parent of the subdirectories for CPUs with additional features, since glibc 2.33.
pub(crate) const FOR_FEATURES: &str = "glibc-hwcaps";

/// Names of such subdirectories before glibc 2.37.
pub(crate) const FOR_FEATURES_BEFORE: [&str; 7] = [
    "avx512_1", "haswell", "sse2", "tls", "x86_64", "xeon_phi", "atomics",
];

/// Returns all directories that ldconfig searches by default: [`BUILT_IN`], and Debian's for this architecture.
pub(crate) fn built_in() -> impl Iterator<Item = std::path::PathBuf> {
    let debian = ["/lib", "/usr/lib"].map(|path| std::path::Path::new(path).join(triplet()));
    BUILT_IN
        .map(std::path::PathBuf::from)
        .into_iter()
        .chain(debian)
}

/// Returns the name of Debian's directories for this architecture.
pub(crate) fn triplet() -> String {
    format!("{}-linux-gnu", std::env::consts::ARCH)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
