//! Finds the CUDA compatibility libraries that an image brings along.
//!
//! They let an image use a newer CUDA than the host's driver offers. The image controls them, so what is found here is
//! only a list of names; apply opens each again inside the root and takes regular files only (CVE-2024-0132,
//! CVE-2025-23359).

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use nix::dir::Dir;
use nix::errno::Errno;

use crate::error::{Error, ErrorKind, Result};
use crate::inroot::{self, RootDir};
use crate::path::ContainerPath;

/// Each becomes a mount; NVIDIA's packages have some twenty.
const MOST: usize = 512;

/// Real paths of `compat/lib*.so.*` below the image's CUDA directory, each once.
pub(super) fn libraries(root: &RootDir, cudart_dir: &ContainerPath) -> Result<Vec<ContainerPath>> {
    let directory = cudart_dir.join("compat");
    let failed = |errno| Error::file("glob search failed", directory.as_path(), errno);
    let names = match open(root, &directory) {
        Ok(directory) => names(directory).map_err(failed)?,
        Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(Vec::new()),
        Err(errno) => return Err(failed(errno)),
    };
    if names.len() > MOST {
        let text = format!("too many libraries in {directory}: {}", names.len());
        return Err(Error::new(ErrorKind::Malformed, text));
    }
    let mut found = Vec::new();
    let mut known = HashSet::new();
    for name in names {
        let path = directory.join(&name);
        match root.real_path(path.as_path()) {
            Ok((_, real)) => {
                let real = ContainerPath::new(real);
                if known.insert(real.clone()) {
                    found.push(real);
                }
            }
            Err(errno) => log::debug!("skipping {path}: {errno}"),
        }
    }
    Ok(found)
}

/// Opens a directory to be listed, and nothing else: opening a device of the image can be enough to do harm.
fn open(root: &RootDir, directory: &ContainerPath) -> Result<OwnedFd, Errno> {
    let found = root.resolve_directory(directory.as_path())?;
    inroot::open_to_list(found)
}

/// The sorted names of libraries in a directory.
fn names(directory: OwnedFd) -> Result<BTreeSet<OsString>, Errno> {
    let mut names = BTreeSet::new();
    let mut dir = Dir::from_fd(directory)?;
    for entry in dir.iter() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name.starts_with(b"lib") && name.windows(4).any(|part| part == b".so.") {
            names.insert(std::ffi::OsStr::from_bytes(name).to_owned());
        }
    }
    Ok(names)
}
