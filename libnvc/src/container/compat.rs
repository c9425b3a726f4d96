//! Finds the CUDA compatibility libraries of an image.
//!
//! They let an image use a newer CUDA version than the host's driver supports. The image controls them, so the result
//! is only a list of names; apply opens each again inside the root and accepts regular files only (CVE-2024-0132,
//! CVE-2025-23359).

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::directory;
use crate::error::{Error, ErrorKind, Result};
use crate::inroot::{self, RootDir};
use crate::path::ContainerPath;
use crate::sys::mount::{self, MountAttributes};

/// Limit of libraries, each of which becomes a mount; NVIDIA's packages have some twenty.
const MAX_LIBRARIES: usize = 512;
/// Limit of names in the directory, including other files.
const MAX_NAMES: usize = 1 << 16;
/// Time limit for resolving them.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the real paths of `compat/lib*.so.*` below the image's CUDA directory, without duplicates.
pub(super) fn libraries(root: &RootDir, cudart_dir: &ContainerPath) -> Result<Vec<ContainerPath>> {
    let directory = cudart_dir.join("compat");
    let failed = |errno| Error::file("glob search failed", directory.as_path(), errno);
    let too_many = |what| {
        let text = format!("too many {what} in {directory}");
        Error::new(ErrorKind::Malformed, text)
    };
    let names = match open(root, &directory) {
        Ok(directory) => names(&directory).map_err(|errno| match errno {
            Errno::ENOBUFS => too_many("files"),
            errno => failed(errno),
        })?,
        Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(Vec::new()),
        Err(errno) => return Err(failed(errno)),
    };
    if names.len() > MAX_LIBRARIES {
        return Err(too_many("libraries").because(format!("more than {MAX_LIBRARIES}")));
    }
    let until = Instant::now() + TIMEOUT;
    let mut found = Vec::new();
    let mut known = HashSet::new();
    for name in names {
        let path = directory.join(&name);
        if Instant::now() > until {
            return Err(failed(Errno::ETIMEDOUT));
        }
        match root.real_path(path.as_path()) {
            // The volume's owner forbids execution, so the loader could not use it.
            Ok((fd, real)) if is_noexec(&fd) => {
                log::warn!(
                    "skipping {}: its file system is mounted noexec",
                    real.display()
                );
            }
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

fn is_noexec(fd: &OwnedFd) -> bool {
    mount::attributes(fd.as_fd()).is_ok_and(|found| found.contains(MountAttributes::NOEXEC))
}

/// Opens a directory for listing and nothing else, because opening one of the image's device nodes can have side
/// effects.
fn open(root: &RootDir, directory: &ContainerPath) -> Result<OwnedFd, Errno> {
    let found = root.resolve_directory(directory.as_path())?;
    inroot::open_to_list(found)
}

/// Returns the sorted names of libraries in a directory, at most one more than [`MAX_LIBRARIES`].
fn names(directory: &OwnedFd) -> Result<BTreeSet<OsString>, Errno> {
    let mut names = BTreeSet::new();
    directory::list(directory.as_fd(), &mut { MAX_NAMES }, |entry| {
        let name = entry.name.as_bytes();
        let is_library = name.starts_with(b"lib") && name.windows(4).any(|part| part == b".so.");
        if is_library && names.len() <= MAX_LIBRARIES {
            names.insert(entry.name.to_owned());
        }
    })?;
    Ok(names)
}
