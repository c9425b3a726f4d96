//! Finds all files of the driver, including those that only the host's programs use: the contents of a CDI
//! specification.
//!
//! `configure` gives containers the files that the catalogue names. A specification serves unknown images, so it lists
//! every library of the driver's version, with the host's links to it, and the files for graphics. That search takes
//! longer, so it runs only on request.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use log::{debug, warn};
use nix::dir::Dir;
use nix::errno::Errno;
use nix::sys::stat::SFlag;

use super::realpath::RealPaths;
use super::{Abi, DriverFile, DriverInfo, DriverRoot, FileClass, FileLink, Wants, catalogue};
use crate::capability::Capability;
use crate::elf::Library;
use crate::error::errno_text;
use crate::options::DriverOptions;
use crate::path::HostPath;

mod graphics;
mod others;

/// Directory name under which Debian installs several drivers in parallel.
const CURRENT: &str = "nvidia/current";

/// Returns all files of a driver version. The caller adds devices and versions.
pub(super) fn find(
    root: &DriverRoot,
    version: &str,
    wants: &Wants,
    path: Option<&OsStr>,
) -> DriverInfo {
    let mut all = Everything {
        root,
        version,
        paths: RealPaths::new(root),
        directories: Vec::new(),
    };
    all.find_directories(&wants.search.libraries);
    let graphics = all.graphics(&wants.search);
    let graphics_links = all.graphics_links();
    let mut files = all.libraries();
    files.extend(others::programs(root, path, wants.options));
    if !wants.options.contains(DriverOptions::NO_GSP_FIRMWARE) {
        files.extend(others::firmware(root, version));
    }
    files.extend(others::sockets(root, wants.options));
    DriverInfo {
        files,
        graphics,
        graphics_links,
        ..DriverInfo::default()
    }
}

struct Everything<'r> {
    root: &'r DriverRoot,
    version: &'r str,
    paths: RealPaths<'r>,
    /// The directories with libraries of the version.
    directories: Vec<HostPath>,
}

impl Everything<'_> {
    fn find_directories(&mut self, searched: &[HostPath]) {
        let given = searched.iter().cloned();
        let usual = usual_directories().filter(|_| searched.is_empty());
        for directory in given.chain(usual) {
            let Ok((_, real)) = self.paths.directory(directory) else {
                continue;
            };
            let real = real.clone();
            if self.directories.contains(&real) {
                continue;
            }
            let is_versioned = |name: &OsString| is_library_of(name, self.version);
            if self.names(&real).iter().any(is_versioned) {
                self.directories.push(real);
            }
        }
        if self.directories.is_empty() {
            warn!("no library of version {} was found", self.version);
        }
    }

    /// Returns every library of the version, with the links that lead to it.
    fn libraries(&mut self) -> Vec<DriverFile> {
        let mut found = Vec::new();
        for directory in self.directories.clone() {
            for directory in [directory.clone(), directory.join("vdpau")] {
                let names = self.names(&directory);
                for name in names.iter().filter(|name| ends_with(name, self.version)) {
                    found.extend(self.library(&directory, name));
                }
                let unversioned = |name: &&OsString| {
                    let mut stems = catalogue::UNVERSIONED.iter();
                    stems.any(|stem| has_version(name, stem))
                };
                for name in names.iter().filter(unversioned) {
                    found.extend(self.library(&directory, name));
                }
            }
        }
        found
    }

    /// Returns a library with the links beside it.
    fn library(&mut self, directory: &HostPath, name: &OsStr) -> Option<DriverFile> {
        let path = self.file(&directory.join(name))?;
        let mut file = match catalogue::library_of(name) {
            Some(pattern) => pattern.file(path.clone()),
            // Libraries that the catalogue does not name are for graphics.
            None => {
                DriverFile::new(path.clone(), FileClass::Library).of(Some(Capability::Graphics))
            }
        };
        file.abi = Abi::Native;
        for link in self.soname_links(directory, name, &path) {
            if !file.links.contains(&link) {
                file.links.push(link);
            }
        }
        file.links.sort_by(|one, other| one.name.cmp(&other.name));
        Some(file)
    }

    /// Returns the links for the SONAME and for the unversioned name, if the host has them.
    fn soname_links(&self, directory: &HostPath, name: &OsStr, path: &HostPath) -> Vec<FileLink> {
        let Some(soname) = self.soname(path) else {
            return Vec::new();
        };
        let is_link = |name: &OsStr| self.link_text(&directory.join(name)).is_some();
        let mut links = Vec::new();
        if soname != name && is_link(&soname) {
            links.push(link(&soname, name));
        }
        let bytes = name.as_bytes();
        let end = bytes.windows(4).position(|part| part == b".so.");
        if let Some(development) = end.and_then(|end| bytes.get(..end + 3)) {
            let development = OsStr::from_bytes(development);
            if development != soname && is_link(development) {
                links.push(link(development, &soname));
            }
        }
        links
    }

    fn soname(&self, path: &HostPath) -> Option<OsString> {
        let file = self.root.open_file(path).ok()?;
        let soname = Library::open(file).ok()?.soname().ok()??;
        // The SONAME becomes the name of a link.
        let is_plain = !matches!(soname.as_slice(), b"" | b"." | b"..") && !soname.contains(&b'/');
        is_plain.then(|| OsStr::from_bytes(&soname).to_owned())
    }

    /// Returns a symlink's target.
    fn link_text(&self, path: &HostPath) -> Option<PathBuf> {
        let directory = self.root.resolve_directory(&path.parent()).ok()?;
        let text = nix::fcntl::readlinkat(directory, path.file_name()).ok()?;
        Some(PathBuf::from(text))
    }

    /// Returns a regular file's real path, if it exists.
    fn file(&mut self, path: &HostPath) -> Option<HostPath> {
        match self.paths.resolve_with_kind(path) {
            Ok((real, SFlag::S_IFREG)) => {
                debug!("selecting {real}");
                Some(real)
            }
            Ok((real, _)) => {
                let path = self.root.join(&real);
                warn!("skipping {}: it is not a regular file", path.display());
                None
            }
            Err(Errno::ENOENT | Errno::ENOTDIR) => None,
            Err(errno) => {
                let path = self.root.join(path);
                warn!("skipping {}: {}", path.display(), errno_text(errno));
                None
            }
        }
    }

    /// Returns the sorted names in a directory; empty if it cannot be read.
    fn names(&self, directory: &HostPath) -> Vec<OsString> {
        names(self.root, directory).unwrap_or_else(|errno| {
            debug!("skipping {directory}: {errno}");
            Vec::new()
        })
    }
}

/// Returns the sorted names in a directory.
fn names(root: &DriverRoot, directory: &HostPath) -> Result<Vec<OsString>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::from_fd(OwnedFd::from(root.open_file(directory)?))?.iter() {
        names.push(OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned());
    }
    names.sort();
    Ok(names)
}

/// Returns the usual library directories, in upstream's order.
fn usual_directories() -> impl Iterator<Item = HostPath> {
    let multiarch = || {
        Abi::Native
            .triplet()
            .map(|triplet| Path::new("lib").join(triplet))
    };
    let below = |top: &'static str| {
        let multiarch = multiarch().map(|path| HostPath::new(top).join(path));
        let current = multiarch.clone().map(|path| path.join(CURRENT));
        [Some(HostPath::new(top).join("lib64")), multiarch, current]
    };
    let mut all: Vec<_> = below("/usr")
        .into_iter()
        .chain(below("/"))
        .flatten()
        .collect();
    all.extend(["/usr/lib", "/run/opengl-driver/lib"].map(HostPath::new));
    all.into_iter()
}

fn link(name: &OsStr, target: &OsStr) -> FileLink {
    FileLink {
        name: name.into(),
        target: target.into(),
    }
}

/// Returns true if a name is `lib*.so.<version>`.
fn is_library_of(name: &OsStr, version: &str) -> bool {
    name.as_bytes().starts_with(b"lib") && ends_with(name, version)
}

/// Returns true if a name is `*.so.<version>`.
fn ends_with(name: &OsStr, version: &str) -> bool {
    let stem = name.as_bytes().strip_suffix(version.as_bytes());
    stem.is_some_and(|stem| stem.ends_with(b".so."))
}

/// Returns true if a name is this library's followed by any version.
fn has_version(name: &OsStr, stem: &str) -> bool {
    let version = name.as_bytes().strip_prefix(stem.as_bytes());
    version.is_some_and(|version| version.len() > 1 && version.starts_with(b"."))
}

#[cfg(test)]
mod tests;
