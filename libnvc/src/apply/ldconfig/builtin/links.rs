//! Creates the links by which programs find libraries: from the SONAME to the newest file that has it.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;

use nix::errno::Errno;
use nix::fcntl::readlinkat;
use nix::sys::stat::SFlag;
use nix::unistd::symlinkat;

use super::Directory;
use super::search::{self, Library};
use crate::apply::journal::Journal;
use crate::apply::saved_file;
use crate::apply::volumes::authority::Authority;
use crate::apply::volumes::rights::Rights;
use crate::error::{Error, ErrorKind, Result};
use crate::inroot::{Identity, Image, identity_of};
use crate::ldcache::order;
use crate::path::ContainerPath;

/// What has become of a link.
#[derive(Default)]
pub(super) struct Made {
    /// It was created or changed.
    pub(super) is_new: bool,
    /// The newer library of the image to which it led.
    pub(super) hid: Option<ContainerPath>,
}

/// Creates or changes the link of a library if it was put into the image, or if ldconfig would.
///
/// A link that cannot be created does not stop ldconfig either.
///
/// # Errors
/// Nothing may be changed on the directory's volume, and the name does not lead to the library.
pub(super) fn make(
    image: Image<'_>,
    authority: &Authority,
    directory: &Directory<'_>,
    library: &Library,
    journal: &mut Journal<'_>,
) -> Result<Made> {
    if library.soname == library.name {
        return Ok(Made::default());
    }
    let link = OsStr::from_bytes(&library.soname);
    match link_to(image, directory, library, link, journal) {
        Ok(made) => Ok(made),
        Err(_) if directory.rights != Rights::Full => {
            let place = directory.path.join(link);
            if leads_to(image, &place) == Some(library.identity) {
                return Ok(Made::default());
            }
            let text = "the loader would not find the library by its name";
            let error = authority.refusal(text, place.as_path(), directory.fd.as_fd());
            Err(error.with_kind(ErrorKind::LdCache))
        }
        Err(errno) => {
            let link = directory.path.join(link);
            let name = OsStr::from_bytes(&library.name).display();
            log::warn!(
                "{link} cannot be linked to {name}: {}",
                crate::error::errno_text(errno)
            );
            Ok(Made::default())
        }
    }
}

/// Returns the file that a path leads to.
fn leads_to(image: Image<'_>, place: &ContainerPath) -> Option<Identity> {
    let found = image.root.resolve(place.as_path()).ok()?;
    identity_of(found).ok()
}

fn link_to(
    image: Image<'_>,
    directory: &Directory<'_>,
    library: &Library,
    link: &OsStr,
    journal: &mut Journal<'_>,
) -> std::result::Result<Made, Errno> {
    let target = OsStr::from_bytes(&library.name);
    let made = |hid| Made { is_new: true, hid };
    let rights = directory.rights;
    match rights.act(|| symlinkat(target, directory.fd.as_fd(), link)) {
        Ok(()) => {
            journal.created(&directory.fd, link, SFlag::S_IFLNK, rights);
            return Ok(made(None));
        }
        Err(Errno::EEXIST) => {}
        // It may already exist.
        Err(Errno::EPERM | Errno::EACCES) if rights != Rights::Full => {}
        Err(errno) => return Err(errno),
    }
    let old = match readlinkat(directory.fd.as_fd(), link) {
        Ok(old) => old,
        // Not a link: the library itself under this name, or a file that ldconfig does not replace.
        Err(Errno::EINVAL) => return Ok(Made::default()),
        Err(errno) => return Err(errno),
    };
    if old == target {
        return Ok(Made::default());
    }
    let place = directory.path.join(link);
    let leads_to = leads_to(image, &place);
    let is_right = leads_to == Some(library.identity);
    let is_newer = leads_to.is_some() && !is_right && is_newer(image, directory, &old, library);
    if is_right || is_newer && !library.is_placed {
        return Ok(Made::default());
    }
    let hid = is_newer.then(|| directory.path.join(&old));
    let undo_in = Rc::clone(&directory.fd);
    let (name, was, ours) = (link.to_owned(), old, target.to_owned());
    let undone = place.clone();
    journal.other(Box::new(move || {
        let now = readlinkat(undo_in.as_fd(), name.as_os_str());
        match now {
            // No longer a link, so not ours.
            Err(Errno::EINVAL) => return Ok(()),
            Ok(now) if now != *ours => return Ok(()),
            _ => {}
        }
        rights
            .act(|| saved_file::relink(undo_in.as_fd(), &name, &was))
            .map_err(|errno| Error::file("putting back failed", undone.as_path(), errno))
    }));
    rights.act(|| saved_file::relink(directory.fd.as_fd(), link, target))?;
    Ok(made(hid))
}

/// Returns true if a link points to a newer library of the same SONAME in the same directory, which the image contains.
fn is_newer(image: Image<'_>, directory: &Directory<'_>, old: &OsStr, library: &Library) -> bool {
    let is_name = Path::new(old).components().count() == 1;
    is_name
        && order::names(old.as_bytes(), &library.name).is_gt()
        && search::look_at(image, directory, old)
            .is_some_and(|old| !old.is_link && old.soname == library.soname)
}
