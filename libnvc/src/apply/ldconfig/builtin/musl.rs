//! Adds directories to musl's lists of library directories.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

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
    let libs = [&layout.libs_dir, &layout.libs32_dir];
    let first = directories
        .iter()
        .filter(|directory| !libs.contains(directory));
    let first: Vec<&[u8]> = first.map(bytes).collect();
    add(image, authority, &NATIVE, &first, &layout.libs_dir, journal)?;
    if image.root.exists(Path::new(COMPAT32.path)) == Ok(true) {
        add(
            image,
            authority,
            &COMPAT32,
            &[],
            &layout.libs32_dir,
            journal,
        )?;
    }
    Ok(())
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
