//! Finds `nvc-query`, the program that the library executes to ask NVML, without being told where it is.
//!
//! The shared object looks relative to its own file, so that an installation works under any prefix; where the library
//! is part of a program, only the directory that it was built for counts.

use std::ffi::{CStr, OsStr};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use libnvc::{Error, ErrorKind, Result};
use nix::unistd::{AccessFlags, access};

use crate::version::nvc_version;

const NAME: &str = "nvc-query";

/// Where it is installed if nothing else was said at build time.
const LIBEXEC: &str = match option_env!("NVC_LIBEXECDIR") {
    Some(directory) => directory,
    None => "/usr/libexec/libnvidia-container",
};

/// From the shared object's directory: a prefix with lib, a private directory, a prefix with multiarch directories, and
/// last the build tree.
const NEARBY: [&str; 4] = [
    "../libexec/libnvidia-container",
    "libnvidia-container",
    "../../libexec/libnvidia-container",
    "",
];

/// The program's path.
///
/// # Errors
/// `process creation failed: nvc-query is in none of <directories>`.
pub(crate) fn find() -> Result<PathBuf> {
    let directories = directories(own_file().as_deref());
    let mut paths = directories.iter().map(|directory| directory.join(NAME));
    let executable = |path: &PathBuf| path.is_file() && access(path, AccessFlags::X_OK).is_ok();
    paths.find(executable).ok_or_else(|| {
        let names: Vec<_> = directories
            .iter()
            .map(|dir| dir.display().to_string())
            .collect();
        let text = format!(
            "process creation failed: {NAME} is in none of {}",
            names.join(", ")
        );
        Error::new(ErrorKind::DriverUnavailable, text)
    })
}

fn directories(own_file: Option<&Path>) -> Vec<PathBuf> {
    let shared_object = own_file.filter(|file| {
        let name = file.file_name().unwrap_or_default().as_bytes();
        name.starts_with(b"libnvidia-container.so")
    });
    let own_directory = shared_object.and_then(Path::parent);
    let nearby = own_directory.into_iter().flat_map(|own| {
        NEARBY.iter().map(|tail| {
            // `lib` may be a link: up from there is where the loader went, so links count first.
            let path = own.join(tail);
            path.canonicalize().unwrap_or(path)
        })
    });
    nearby.chain([PathBuf::from(LIBEXEC)]).collect()
}

/// The file that this code was loaded from: the shared object, or the program that the library is part of.
fn own_file() -> Option<PathBuf> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    let address = nvc_version as *const libc::c_void;
    // SAFETY: dladdr(3) takes any address and fills the record.
    let found = unsafe { libc::dladdr(address, info.as_mut_ptr()) };
    // SAFETY: a record of pointers and addresses, for which zero is a value.
    let info = unsafe { info.assume_init() };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a name that ends with zero and lives as long as the object is loaded, which this code is part of.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Path::new(OsStr::from_bytes(name.to_bytes()))
        .canonicalize()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_shared_object_looks_around() {
        let own = Path::new("/no/such/lib/x86_64-linux-gnu/libnvidia-container.so.1.2.3");
        let found = directories(Some(own));
        assert_eq!(found.len(), NEARBY.len() + 1);
        assert!(
            found
                .iter()
                .any(|dir| dir.ends_with("lib/x86_64-linux-gnu/libnvidia-container"))
        );
        assert_eq!(found.last().map(PathBuf::as_path), Some(Path::new(LIBEXEC)));
        for program in [Some(Path::new("/home/x/program")), None] {
            assert_eq!(directories(program), [Path::new(LIBEXEC)]);
        }
    }
}
