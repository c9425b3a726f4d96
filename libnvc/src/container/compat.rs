//! Finds the CUDA compatibility libraries that an image brings along.
//!
//! They let an image use a newer CUDA than the host's driver offers. The image controls them, so what is found here is
//! only a list of names; apply opens each again inside the root and takes regular files only (CVE-2024-0132,
//! CVE-2025-23359).

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use nix::dir::Dir;
use nix::errno::Errno;

use crate::error::{Error, Result};
use crate::inroot::RootDir;
use crate::path::ContainerPath;

/// Real paths of `compat/lib*.so.*` below the image's CUDA directory, each once.
pub(super) fn libraries(root: &RootDir, cudart_dir: &ContainerPath) -> Result<Vec<ContainerPath>> {
    let directory = cudart_dir.join("compat");
    let failed = |errno| Error::file("glob search failed", directory.as_path(), errno);
    let names = match root.open_file(directory.as_path()) {
        Ok(file) => names(file).map_err(failed)?,
        Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(Vec::new()),
        Err(errno) => return Err(failed(errno)),
    };
    let mut found: Vec<ContainerPath> = Vec::new();
    for name in names {
        let path = directory.join(&name);
        match root.real_path(path.as_path()) {
            Ok((_, real)) => {
                let real = ContainerPath::new(real);
                if !found.contains(&real) {
                    found.push(real);
                }
            }
            Err(errno) => log::debug!("skipping {path}: {errno}"),
        }
    }
    Ok(found)
}

/// The sorted names of libraries in a directory.
fn names(directory: std::fs::File) -> Result<BTreeSet<OsString>, Errno> {
    let mut names = BTreeSet::new();
    let mut dir = match Dir::from_fd(directory.into()) {
        Ok(dir) => dir,
        Err(Errno::ENOTDIR) => return Ok(names),
        Err(errno) => return Err(errno),
    };
    for entry in dir.iter() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name.starts_with(b"lib") && name.windows(4).any(|part| part == b".so.") {
            names.insert(std::ffi::OsStr::from_bytes(name).to_owned());
        }
    }
    Ok(names)
}
