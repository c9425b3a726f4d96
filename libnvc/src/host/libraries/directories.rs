//! Searches the usual library directories, for hosts whose loader cache does not list the driver.
//!
//! NixOS, Talos, buildroot and musl hosts have no cache; NixOS and WSL2 keep the driver in directories that no cache
//! lists. The names are the same; the ELF header gives the ABI.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;

use log::debug;
use nix::dir::Dir;
use nix::errno::Errno;

use super::Search;
use crate::host::arch::Abi;
use crate::host::catalogue;
use crate::path::HostPath;

/// Directories that no distribution's cache lists.
const UNCACHED: &[&str] = &[
    "/run/opengl-driver/lib",
    "/run/opengl-driver-32/lib",
    "/usr/lib/wsl/lib",
];

/// Returns all directories in which drivers are installed, best first.
pub(in crate::host) fn all() -> impl DoubleEndedIterator<Item = HostPath> {
    let multiarch = |abi: Abi| Some(HostPath::new("/usr/lib").join(abi.triplet()?));
    let usual = ["/usr/lib64", "/usr/lib", "/lib64", "/lib", "/usr/lib32"];
    // Debian's alternatives lead to the second; a tree that is only mounted may lack them.
    let multiarch = Abi::ALL.into_iter().filter_map(multiarch);
    let multiarch: Vec<_> = multiarch
        .flat_map(|directory| [directory.clone(), directory.join("nvidia/current")])
        .collect();
    let usual = usual.into_iter().map(HostPath::new);
    multiarch.into_iter().chain(usual).chain(uncached())
}

/// Returns the directories that no distribution's cache lists.
pub(super) fn uncached() -> impl DoubleEndedIterator<Item = HostPath> {
    UNCACHED.iter().map(HostPath::new)
}

impl Search<'_> {
    /// Adds the libraries of directories, best directory last, because later candidates win.
    pub(super) fn add_directories(
        &mut self,
        directories: impl DoubleEndedIterator<Item = HostPath>,
    ) {
        let mut seen = Vec::new();
        for directory in directories.rev() {
            let real = match self.paths.directory(directory.clone()) {
                Ok((_, real)) => real.clone(),
                Err(errno) => {
                    debug!("skipping {directory}: {errno}");
                    continue;
                }
            };
            // With a merged /usr, several names lead to one directory.
            if !seen.contains(&real) {
                self.add_directory(&real);
                seen.push(real);
            }
        }
    }

    fn add_directory(&mut self, directory: &HostPath) {
        debug!("searching {directory}");
        let mut found = match self.names_in(directory) {
            Ok(found) => found,
            Err(errno) => return debug!("skipping {directory}: {errno}"),
        };
        found.sort();
        for (file, name) in found {
            let path = directory.join(OsStr::from_bytes(&file));
            if let Some(abi) = self.abi_of(&path) {
                self.add(abi, name, path);
            }
        }
    }

    /// Returns the files whose names are in the catalogue, with their index there.
    fn names_in(&self, directory: &HostPath) -> Result<Vec<(Vec<u8>, usize)>, Errno> {
        let fd = OwnedFd::from(self.root.open_file(directory)?);
        let mut found = Vec::new();
        for entry in Dir::from_fd(fd)?.iter() {
            let entry = entry?;
            let file = entry.file_name().to_bytes();
            if let Some(name) = catalogue::position(&self.patterns, file) {
                found.push((file.to_vec(), name));
            }
        }
        Ok(found)
    }

    fn abi_of(&self, path: &HostPath) -> Option<Abi> {
        abi_of(&self.root.open_file(path).ok()?)
    }
}

/// Returns the ABI of a library, by its ELF header.
pub(in crate::host) fn abi_of(file: &File) -> Option<Abi> {
    let mut head = [0; 20];
    file.read_exact_at(&mut head, 0).ok()?;
    Abi::of_elf_header(&head)
}
