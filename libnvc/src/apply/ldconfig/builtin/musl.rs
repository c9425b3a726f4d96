//! Adds directories to musl's lists of library directories.

use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::stat::{Mode, fstat};

use super::{failure, replace, save};
use crate::apply::journal::Journal;
use crate::apply::volumes::authority::Authority;
use crate::container::Layout;
use crate::error::Result;
use crate::inroot::Image;
use crate::ldcache::musl::{COMPAT32, MuslLoader, NATIVE, extended};
use crate::path::ContainerPath;
use crate::read_file;

/// Size limit, far above any real list; musl reads it to its end.
const MAX_SIZE: u64 = 64 << 10;

/// Appends the library directories, and prepends the other directories of ldconfig's command line.
pub(super) fn update(
    image: Image<'_>,
    authority: &Authority,
    layout: &Layout,
    directories: &[ContainerPath],
    journal: &mut Journal<'_>,
) -> Result<()> {
    let mut lists = lists(image, layout, directories);
    lists.try_for_each(|(loader, first, last)| add(image, authority, loader, &first, last, journal))
}

/// Returns musl's lists, each with the directories that go before all others, and the one that goes after them.
fn lists<'a>(
    image: Image<'a>,
    layout: &'a Layout,
    directories: &'a [ContainerPath],
) -> impl Iterator<Item = (&'static MuslLoader, Vec<&'a [u8]>, &'a ContainerPath)> {
    let libs = [&layout.libs_dir, &layout.libs32_dir];
    let first = directories
        .iter()
        .filter(move |directory| !libs.contains(directory));
    let native = (&NATIVE, first.map(bytes).collect(), &layout.libs_dir);
    let other = (&COMPAT32, Vec::new(), &layout.libs32_dir);
    let has_other = image.root.exists(Path::new(COMPAT32.path)) == Ok(true);
    std::iter::once(native).chain(has_other.then_some(other))
}

/// Returns the first list that lacks a directory, or cannot be read.
pub(super) fn lacking(
    image: Image<'_>,
    layout: &Layout,
    directories: &[ContainerPath],
) -> Option<PathBuf> {
    let mut lists = lists(image, layout, directories);
    lists.find_map(|(loader, first, last)| {
        let place = Path::new("/etc").join(loader.list);
        let list = image.root.resolve_nofollow(&place).and_then(|found| {
            let (file, _) = image.open_file(found.as_fd())?;
            read_file::read(file, MAX_SIZE)
        });
        let is_complete = match list {
            Ok(list) => extended(Some(&list), &first, &[bytes(last)]).is_none(),
            Err(Errno::ENOENT) => extended(None, &first, &[bytes(last)]).is_none(),
            Err(_) => false,
        };
        (!is_complete).then_some(place)
    })
}

fn add(
    image: Image<'_>,
    authority: &Authority,
    loader: &MuslLoader,
    first: &[&[u8]],
    last: &ContainerPath,
    journal: &mut Journal<'_>,
) -> Result<()> {
    let place = Path::new("/etc").join(loader.list);
    let failed = |operation| {
        let place = &place;
        move |errno| failure(operation, place, errno)
    };
    let kept = save(image, authority, loader.list)?;
    let mut mode = Mode::from_bits_truncate(0o644);
    let mut list = None;
    if let Some(file) = kept.file() {
        mode =
            Mode::from_bits_truncate(fstat(file).map_err(failed("stat failed"))?.st_mode & 0o777);
        list = Some(read_file::read(file, MAX_SIZE + 1).map_err(failed("reading failed"))?);
    }
    let too_long = list
        .as_ref()
        .is_some_and(|list| list.len() as u64 > MAX_SIZE);
    if too_long || list.is_none() && !kept.is_missing() {
        log::warn!(
            "leaving {} alone: it is not a list of directories",
            place.display()
        );
        return Ok(());
    }
    match extended(list.as_deref(), first, &[bytes(last)]) {
        Some(extended) => {
            log::info!("adding library directories to {}", place.display());
            replace(kept, authority, &extended, mode, &place, journal)
        }
        None => Ok(()),
    }
}

fn bytes(path: &ContainerPath) -> &[u8] {
    path.as_path().as_os_str().as_bytes()
}
