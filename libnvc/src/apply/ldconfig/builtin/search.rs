//! Examines libraries by their headers, and picks the newest of each name like ldconfig.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use super::Directory;
use crate::elf::ElfError;
use crate::inroot::{Identity, Image};
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
    match read(image, directory, name) {
        Ok(found) => found,
        Err(oddity) => {
            log::debug!("not a library: {}: {oddity}", directory.path.join(name));
            None
        }
    }
}

fn read(
    image: Image<'_>,
    directory: &Directory<'_>,
    name: &OsStr,
) -> Result<Option<Library>, ElfError> {
    let path = directory.path.as_path();
    let Some(found) = library::read(image, path, directory.fd.as_fd(), name)? else {
        return Ok(None);
    };
    let name = name.as_bytes();
    let library::Facts {
        flags,
        soname,
        identity,
        ..
    } = found;
    let is_link = found.is_link && library::is_proper_link(name, &soname);
    let is_development = is_link && name != soname;
    let soname = if is_link { name.to_vec() } else { soname };
    // The SONAME becomes the name of a link.
    if soname.is_empty() || soname.contains(&b'/') || soname == b"." || soname == b".." {
        return Err(ElfError::Nonsense);
    }
    Ok(Some(Library {
        name: name.to_vec(),
        soname,
        flags,
        is_link,
        is_development,
        is_placed: directory.placed.contains(OsStr::from_bytes(name)),
        identity,
    }))
}
