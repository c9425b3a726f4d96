//! Finds the image's compatibility libcuda, and the directories of such libraries that hooks have configured.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use nix::errno::Errno;
use nix::sys::stat::SFlag;

use super::ContainerView;
use crate::directory;
use crate::directory::open_child;
use crate::elf::Library;
use crate::error::{Error, ErrorKind, Result};
use crate::inroot::{self, kind};
use crate::path::ContainerPath;
use crate::plan::compat::{CompatLibrary, CompatNote};
use crate::read_file;

/// Limit of names read in a directory of the image.
const MAX_NAMES: usize = 1 << 16;
/// Limits for the files of hooks: each has one line, but the image can contain any number.
const MAX_FILE_SIZE: u64 = 1 << 14;
const MAX_FILES: usize = 16;
const MAX_DIRECTORIES: usize = 64;

const CONFIGURATION: &str = "/etc/ld.so.conf.d";
/// Section and owner of the note in which a libcuda lists the drivers that it supports.
const SECTION: &str = ".note.cuda.fwd_compatibility";
const OWNER: &str = "NVIDIA Corporation";

/// Returns the only libcuda in a directory of the image. Several count as none, which is added to `warnings`.
pub(super) fn library(
    look: &ContainerView<'_>,
    path: &ContainerPath,
    warnings: &mut Vec<Error>,
) -> Result<Option<CompatLibrary>> {
    let Some(directory) = look.directory(path.as_path())? else {
        return Ok(None);
    };
    let failed = |errno| look.failed("reading failed", path.as_path(), errno);
    let names = libraries(&directory).map_err(failed)?;
    let name = match names.as_slice() {
        [name] => name,
        [] => return Ok(None),
        several => {
            let text = "Unexpected number of CUDA compat libraries";
            let error = Error::new(ErrorKind::Malformed, text).of(path);
            warnings.push(error.because(several.len()));
            return Ok(None);
        }
    };
    let found = open_child(directory.as_fd(), name).map_err(failed)?;
    let opened = look.with_image(|image| match image.open_file(found.as_fd()) {
        Ok((file, _)) => Ok(Some(file)),
        Err(Errno::EINVAL) => Ok(None),
        Err(errno) => Err(errno),
    });
    let Some(file) = opened.map_err(failed)? else {
        return Ok(None);
    };
    let real = look.root().real_path(path.as_path()).map_err(failed)?.1;
    let version = name.to_string_lossy().replacen("libcuda.so.", "", 1);
    if !is_version(&version) {
        log::info!("{path} has no compatibility library: {version} is no driver version");
        return Ok(None);
    }
    Ok(Some(CompatLibrary {
        directory: ContainerPath::new(real),
        version,
        note: note(file),
    }))
}

/// Returns true if a text is the version of a driver: two or three numbers.
fn is_version(text: &str) -> bool {
    let mut numbers = text.split('.');
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (2..=3).contains(&text.split('.').count()) && numbers.all(is_number)
}

/// Returns the note of a libcuda, if it has a valid one. A libcuda has 100 MB, of which only the headers are read.
fn note(file: File) -> Option<CompatNote> {
    let value = Library::open(file).and_then(|library| library.note(SECTION, OWNER));
    CompatNote::parse(&value.ok()??)
}

/// Returns the names of the regular files `libcuda.so.*.*`, sorted.
fn libraries(directory: &OwnedFd) -> Result<Vec<OsString>, Errno> {
    let mut names = names(directory, |name| {
        let version = name.as_bytes().strip_prefix(b"libcuda.so.");
        version.is_some_and(|version| version.contains(&b'.'))
    })?;
    names.retain(|name| {
        let found = open_child(directory.as_fd(), name);
        let stat = found.and_then(|found| inroot::stat(found.as_fd()));
        stat.is_ok_and(|stat| kind(&stat) == SFlag::S_IFREG)
    });
    Ok(names)
}

/// Returns some names of a directory, sorted.
fn names(directory: &OwnedFd, wanted: impl Fn(&OsStr) -> bool) -> Result<Vec<OsString>, Errno> {
    let wanted = |entry: directory::Entry<'_>| wanted(entry.name);
    let mut names = directory::names(directory.as_fd(), MAX_NAMES, wanted)?;
    names.sort();
    Ok(names)
}

/// Returns the directories in the files of hooks; none if they cannot be read.
pub(super) fn configured(look: &ContainerView<'_>) -> Vec<ContainerPath> {
    let Ok(Some(directory)) = look.directory(Path::new(CONFIGURATION)) else {
        return Vec::new();
    };
    let is_hooks = |name: &OsStr| {
        let name = name.as_bytes();
        name.starts_with(b"00-compat-") && name.ends_with(b".conf")
    };
    let mut names = names(&directory, is_hooks).unwrap_or_default();
    names.truncate(MAX_FILES);
    let read = |name: &OsString| {
        let path = Path::new(CONFIGURATION).join(name);
        look.with_image(|image| {
            let found = image.root.resolve(&path)?;
            read_file::read(image.open_file(found.as_fd())?.0, MAX_FILE_SIZE)
        })
    };
    let texts = names.iter().filter_map(|name| read(name).ok());
    let lines = texts.flat_map(|text| {
        let lines = text.split(|byte| *byte == b'\n');
        let named = lines.filter(|line| line.starts_with(b"/") && !line.contains(&0));
        named.map(<[u8]>::to_vec).collect::<Vec<_>>()
    });
    lines
        .take(MAX_DIRECTORIES)
        .map(|line| ContainerPath::new(OsString::from_vec(line)))
        .collect()
}
