//! Finds `nvc-query`, the program that the library executes to query NVML, without configuration.
//!
//! The shared object searches relative to its own file, so that an installation works under any prefix. If the library
//! is part of a program, only the directory set at build time counts.

use std::ffi::{CStr, OsStr};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use libnvc::host::query::QueryProgram;
use libnvc::{Error, ErrorKind, Result};

use crate::version::nvc_version;

const NAME: &str = "nvc-query";

/// Installation directory if none was set at build time.
const LIBEXEC: &str = match option_env!("NVC_LIBEXECDIR") {
    Some(directory) => directory,
    None => "/usr/local/libexec/libnvidia-container", // as scripts/build/place.sh has it
};

/// Relative to the shared object's directory: a prefix with lib, a private directory, a prefix with multiarch
/// directories, and last the build tree.
const NEARBY: [&str; 4] = [
    "../libexec/libnvidia-container",
    "libnvidia-container",
    "../../libexec/libnvidia-container",
    "",
];

/// Returns the program's path.
///
/// # Errors
/// `process creation failed: nvc-query: in none of <directories>`; the library's own path cannot be determined.
pub(crate) fn find() -> Result<PathBuf> {
    QueryProgram::find(NAME, &directories(&own_file()?), |_| Ok(()))
}

fn not_created(cause: impl Into<String>) -> Error {
    let error = Error::new(ErrorKind::DriverUnavailable, "process creation failed");
    error.of(NAME).with_cause(cause)
}

fn directories(own_file: &Path) -> Vec<PathBuf> {
    let name = own_file.file_name().unwrap_or_default().as_bytes();
    let is_shared_object = name.starts_with(b"libnvidia-container.so");
    let own_directory = own_file.parent().filter(|_| is_shared_object);
    let nearby = own_directory.into_iter().flat_map(|own| {
        NEARBY.iter().map(|tail| {
            // `lib` may be a link: `..` must start from the real directory, so links are resolved first.
            let path = own.join(tail);
            path.canonicalize().unwrap_or(path)
        })
    });
    nearby.chain([PathBuf::from(LIBEXEC)]).collect()
}

/// Returns the file that this code was loaded from: the shared object, or the program that the library is part of.
///
/// The path comes from the kernel. The loader's name may be relative to a directory that the process has left, and may
/// then refer to a file of a container's image, so it is not used.
///
/// # Errors
/// The file cannot be determined.
fn own_file() -> Result<PathBuf> {
    let address = nvc_version as *const libc::c_void;
    let maps = std::fs::read("/proc/self/maps").unwrap_or_default();
    let mapped = mapped_file(&maps, address.addr());
    let own = mapped.or_else(|| loaders_name(address).filter(|name| name.is_absolute()));
    own.ok_or_else(|| {
        not_created("cannot tell where the library was loaded from")
            .hint("mount /proc, or load the library by an absolute path")
    })
}

/// Returns the file at an address, from the kernel's list of mappings: `start-end permissions offset device inode
/// path`.
fn mapped_file(maps: &[u8], address: usize) -> Option<PathBuf> {
    let holds = |line: &[u8]| {
        let range = line.split(|byte| *byte == b' ').next()?;
        let (start, end) = str::from_utf8(range).ok()?.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        Some((number(start)?..number(end)?).contains(&address))
    };
    let mut lines = maps.split(|byte| *byte == b'\n');
    let line = lines.find(|line| holds(line) == Some(true))?;
    let start = line.iter().position(|byte| *byte == b'/')?;
    Some(PathBuf::from(OsStr::from_bytes(line.get(start..)?)))
}

/// Returns the loader's name for the file at an address.
fn loaders_name(address: *const libc::c_void) -> Option<PathBuf> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr(3) takes any address and fills the record.
    let found = unsafe { libc::dladdr(address, info.as_mut_ptr()) };
    // SAFETY: a record of pointers and addresses, for which zero is a valid value.
    let info = unsafe { info.assume_init() };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a NUL-terminated name that lives as long as the object is loaded, which this code is part of.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_the_shared_object_looks_around() {
        let own = Path::new("/no/such/lib/x86_64-linux-gnu/libnvidia-container.so.1.2.3");
        let found = directories(own);
        assert_eq!(found.len(), NEARBY.len() + 1);
        assert!(
            found
                .iter()
                .any(|dir| dir.ends_with("lib/x86_64-linux-gnu/libnvidia-container"))
        );
        assert_eq!(found.last().map(PathBuf::as_path), Some(Path::new(LIBEXEC)));
        let program = Path::new("/home/x/program");
        assert_eq!(directories(program), [Path::new(LIBEXEC)]);
    }

    /// A build without the scripts uses the same directory as the scripts.
    #[test]
    fn the_scripts_have_the_same_place() {
        let place = include_str!("../scripts/build/place.sh");
        assert!(place.contains("PREFIX=${PREFIX:-/usr/local}"));
        assert!(place.contains("LIBEXECDIR=${LIBEXECDIR:-$PREFIX/libexec}"));
        let built_for = option_env!("NVC_LIBEXECDIR");
        let usual = "/usr/local/libexec/libnvidia-container";
        assert_eq!(LIBEXEC, built_for.unwrap_or(usual));
    }

    #[test]
    fn the_kernel_knows_the_file() {
        let maps = b"1000-2000 r--p 00000000 fe:00 7                 /opt/a b/lib/x.so.1\n\
            2000-3000 r-xp 00001000 fe:00 7                          /opt/a b/lib/x.so.1 (deleted)\n\
            3000-4000 rw-p 00000000 00:00 0 \n\
            odd\n\
            7ffc0000-7ffd0000 rw-p 00000000 00:00 0                  [stack]\n";
        let file = |address| mapped_file(maps, address);
        assert_eq!(
            file(0x1fff).as_deref(),
            Some(Path::new("/opt/a b/lib/x.so.1"))
        );
        assert_eq!(
            file(0x2000).unwrap().parent(),
            Some(Path::new("/opt/a b/lib"))
        );
        for address in [0xfff, 0x3000, 0x4000, 0x7ffc_0000] {
            assert_eq!(file(address), None);
        }
        assert!(own_file().unwrap().is_file());
    }
}
