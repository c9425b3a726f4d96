//! Examines libraries by their headers, and picks the newest of each name like ldconfig.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use nix::errno::Errno;
use nix::sys::stat::SFlag;

use super::Directory;
use crate::directory::open_child;
use crate::elf::{self, ElfError};
use crate::inroot::{self, Identity, Image, identity, kind};
use crate::ldcache::{library, order};

/// A library of a directory.
#[derive(Clone, Debug)]
pub(super) struct Library {
    /// Its name there.
    pub(super) name: Vec<u8>,
    /// The name that programs ask for, which is that of its link.
    pub(super) soname: Vec<u8>,
    /// Kind and architecture, as in the cache.
    pub(super) flags: i32,
    /// True if it is a link that counts as a library, and needs no other link.
    pub(super) is_link: bool,
    /// True if it is a link for compilers, with another name than the library's SONAME.
    pub(super) is_development: bool,
    /// True if it was put into the image.
    pub(super) is_placed: bool,
    pub(super) identity: Identity,
}

/// Returns the directory's libraries among the names to examine, one of each SONAME: what was put there before what the
/// image has, files before links, then the newest.
pub(super) fn libraries(image: Image<'_>, directory: &Directory<'_>) -> Vec<Library> {
    let mut best: BTreeMap<Vec<u8>, Library> = BTreeMap::new();
    for name in &directory.names {
        let Some(library) = look_at(image, directory, name) else {
            continue;
        };
        match best.get(&library.soname) {
            Some(known) if !is_better(&library, known) => {}
            _ => {
                best.insert(library.soname.clone(), library);
            }
        }
    }
    best.into_values().collect()
}

/// Returns true if one library is preferred to another of the same SONAME; among those of the image as by ldconfig.
fn is_better(one: &Library, other: &Library) -> bool {
    let kind = |library: &Library| (library.is_placed, !library.is_link);
    let by_kind = kind(one).cmp(&kind(other));
    by_kind
        .then_with(|| order::names(&one.name, &other.name))
        .is_gt()
}

/// Returns the library of a name; None if ldconfig would not treat it as one.
pub(super) fn look_at(
    image: Image<'_>,
    directory: &Directory<'_>,
    name: &OsStr,
) -> Option<Library> {
    if !library::is_name(name.as_bytes()) {
        return None;
    }
    let found = read(image, directory, name);
    let place = || directory.path.join(name);
    match found {
        Ok(found) => found,
        Err(ReadError::System(errno)) => {
            log::debug!("not a library: {}: {errno}", place());
            None
        }
        Err(ReadError::Elf(oddity)) => {
            log::debug!("not a library: {}: {oddity}", place());
            None
        }
    }
}

enum ReadError {
    System(Errno),
    Elf(ElfError),
}

impl From<Errno> for ReadError {
    fn from(errno: Errno) -> Self {
        Self::System(errno)
    }
}

impl From<ElfError> for ReadError {
    fn from(oddity: ElfError) -> Self {
        Self::Elf(oddity)
    }
}

fn read(
    image: Image<'_>,
    directory: &Directory<'_>,
    name: &OsStr,
) -> Result<Option<Library>, ReadError> {
    // By reference first and then reopened, because opening a device can have side effects.
    let mut found = open_child(directory.fd.as_fd(), name)?;
    let mut stat = inroot::stat(found.as_fd())?;
    let is_link = kind(&stat) == SFlag::S_IFLNK;
    if is_link {
        found = image.root.resolve(directory.path.join(name).as_path())?;
        stat = inroot::stat(found.as_fd())?;
    }
    let library = elf::Library::open(image.open_known(found.as_fd(), &stat)?)?;
    if !library.is_shared() {
        return Ok(None);
    }
    let needs_libc = || library.needs(&library::C_LIBRARY);
    let Some(flags) = library::flags(library.identity(), needs_libc)? else {
        return Ok(None);
    };
    let name = name.as_bytes();
    let soname = library.soname()?.unwrap_or_else(|| name.to_vec());
    let is_link = is_link && library::is_proper_link(name, &soname);
    let is_development = is_link && name != soname;
    let soname = if is_link { name.to_vec() } else { soname };
    // The SONAME becomes the name of a link.
    if soname.is_empty() || soname.contains(&b'/') || soname == b"." || soname == b".." {
        return Err(ElfError::Nonsense.into());
    }
    Ok(Some(Library {
        name: name.to_vec(),
        soname,
        flags,
        is_link,
        is_development,
        is_placed: directory.placed.contains(OsStr::from_bytes(name)),
        identity: identity(&stat),
    }))
}
