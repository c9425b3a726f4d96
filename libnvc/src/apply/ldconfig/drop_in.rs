//! Adds directories to the configuration of a container's ldconfig: one file in ld.so.conf.d, which sorts first.
//!
//! The file has a name that depends on its content, so that the same directories are added once. It is written together
//! with the line of ld.so.conf that includes it, or not at all; never on a volume, which other containers share.

use std::hash::Hasher as _;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use fnv::FnvHasher;
use nix::errno::Errno;

use crate::apply::journal::Journal;
use crate::apply::mount::target::Tree;
use crate::apply::replace::NewFile;
use crate::apply::volumes::rights::Rights;
use crate::error::{Error, Result};
use crate::inroot::Image;
use crate::ldcache::conf;
use crate::ldcache::configured::Configuration;
use crate::ldcache::search_path::SearchPath;
use crate::path::ContainerPath;
use crate::read_file;

const MAIN: &str = "/etc/ld.so.conf";
const DIRECTORY: &str = "/etc/ld.so.conf.d";
/// The line of ld.so.conf for that directory.
const INCLUDE: &[u8] = b"include /etc/ld.so.conf.d/*.conf\n";
/// Limit for ld.so.conf, as that for reading it.
const MAX_SIZE: u64 = 64 << 10;

/// What to write.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The content of the new file; empty if there is none.
    content: Vec<u8>,
    /// True if ld.so.conf must include it.
    includes: bool,
}

impl Lines {
    /// Decides what the configuration lacks. Directories that no line can name are left out.
    pub(super) fn new<'d>(
        directories: impl Iterator<Item = &'d Path>,
        has_compat: bool,
        path: &SearchPath,
    ) -> Self {
        let configuration = &path.configuration;
        if configuration.too_large {
            return Self::default();
        }
        let content: Vec<u8> = directories.filter_map(conf::line_for).flatten().collect();
        let is_included = configuration.includes(Path::new(DIRECTORY), b"00-nvcr-0.conf");
        Self {
            includes: !is_included && (has_compat || !content.is_empty()),
            content,
        }
    }

    /// Returns true if ld.so.conf must include the directory and its files are too large: ldconfig, which does not read
    /// them today, would then fail.
    pub(super) fn would_include_too_much(&self, image: Image<'_>) -> bool {
        self.includes
            && Configuration::read_included(image, Path::new(DIRECTORY))
                .map_or(true, |included| included.too_large)
    }

    /// Writes the file, and makes ld.so.conf include it. Returns false if nothing has changed: there is nothing to
    /// write, the image has no /etc, or the files would be on a volume.
    pub(super) fn write(
        &self,
        tree: &mut Tree<'_>,
        descriptors: &OwnedFd,
        journal: &mut Journal<'_>,
    ) -> Result<bool> {
        let is_empty = self.content.is_empty() && !self.includes;
        if is_empty || !is_roots_own(tree, "/etc")? {
            return Ok(false);
        }
        if !self.content.is_empty() {
            let is_missing =
                || tree.root.resolve_nofollow(Path::new(DIRECTORY)).err() == Some(Errno::ENOENT);
            if !is_roots_own(tree, DIRECTORY)? && !is_missing() {
                return Ok(false);
            }
            let file = NewFile {
                name: name(&self.content),
                content: self.content.clone(),
                mode: 0o644,
                above: 0o755,
            };
            tree.write(&ContainerPath::new(DIRECTORY), &file, descriptors, journal)?;
        }
        if self.includes {
            include(tree, descriptors, journal)?;
        }
        Ok(true)
    }
}

/// Returns true if a directory exists, and is not on a volume.
fn is_roots_own(tree: &Tree<'_>, directory: &str) -> Result<bool> {
    let failed = |errno| Error::file("open failed", directory, errno);
    match tree.root.resolve_directory(Path::new(directory)) {
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Ok(false),
        found => {
            let found = found.map_err(failed)?;
            Ok(tree.authority.rights(found.as_fd()).map_err(failed)? == Rights::Full)
        }
    }
}

/// Adds the line to ld.so.conf, before all others, or creates the file.
fn include(tree: &mut Tree<'_>, descriptors: &OwnedFd, journal: &mut Journal<'_>) -> Result<()> {
    let failed = |errno| Error::file("reading failed", MAIN, errno);
    let mut content = INCLUDE.to_vec();
    let mut mode = 0o644;
    // The image's file can be a link.
    let place = match tree.root.real_path(Path::new(MAIN)) {
        Err(Errno::ENOENT) => ContainerPath::new(MAIN),
        found => {
            let (found, path) = found.map_err(failed)?;
            let image = tree.image(descriptors);
            let opened = Rights::Full.open_old(|| image.open_file(found.as_fd()));
            let (file, stat) = opened.map_err(failed)?;
            mode = stat.st_mode & 0o777;
            content.extend(read_file::read(file, MAX_SIZE).map_err(failed)?);
            ContainerPath::new(path)
        }
    };
    let directory = place.parent();
    let opened = tree.root.resolve_directory(directory.as_path());
    let opened = opened.map_err(failed)?;
    let rights = tree.authority.rights(opened.as_fd()).map_err(failed)?;
    if rights != Rights::Full {
        let refused =
            tree.authority
                .refusal("file creation failed", place.as_path(), opened.as_fd());
        return Err(refused);
    }
    let file = NewFile {
        name: place.file_name().to_string_lossy().into_owned(),
        content,
        mode,
        above: 0o755,
    };
    tree.write(&directory, &file, descriptors, journal)
}

/// Returns the name for a content: by FNV-1a, because the standard library's hash may change with its version.
fn name(content: &[u8]) -> String {
    let mut hasher = FnvHasher::default();
    hasher.write(content);
    format!("00-nvcr-{:016x}.conf", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_depend_on_the_content() {
        assert_eq!(name(b""), "00-nvcr-cbf29ce484222325.conf");
        assert_eq!(name(b"a"), "00-nvcr-af63dc4c8601ec8c.conf");
        assert!("00-compat-nvidia.conf" < name(b"/usr/lib64\n").as_str());
    }
}
