//! Updates the image's loader cache like ldconfig, in this process and without running a program.
//!
//! Examines only files that were put into the container, and directories that the image's cache does not list; the
//! cache already lists the rest. [`Loader`] was examined before anything was mounted. The result is what ldconfig would
//! leave, except that the files that were put into the image come first: links by SONAME lead to them, and so does the
//! cache. After a program has run, its cache gets the same order.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;

use nix::errno::Errno;
use nix::sys::stat::{FileStat, Mode, fstat};

use super::folders::Folders;
use crate::apply::journal::Journal;
use crate::apply::replace;
use crate::apply::saved_file::SavedFile;
use crate::apply::volumes::authority::Authority;
use crate::apply::volumes::opened::OpenDirectory;
use crate::apply::volumes::rights::Rights;
use crate::container::Layout;
use crate::directory;
use crate::error::{Error, ErrorKind, Result};
use crate::inroot::{self, Image, RootDir, identity};
use crate::ldcache::configured::Time;
use crate::ldcache::judge::{self, Loader, SoundCache, Version};
use crate::ldcache::library;
use crate::ldcache::listing::Listing;
use crate::ldcache::merge::{self, FoundLibrary, SearchedDirectory};
use crate::path::ContainerPath;

mod links;
mod musl;
mod places;
mod search;
pub(in crate::apply) mod unchanged;

use places::Places;
use search::Library;

/// Limit of libraries in a directory that is searched completely; discovery rejects an eighth of this.
const MAX_LIBRARIES: usize = 1 << 12;
/// Limit of names in such a directory, including other files.
const MAX_NAMES: usize = 1 << 17;

/// Input of the update.
#[derive(Clone, Debug)]
pub(in crate::apply) struct UpdateInput<'a> {
    /// Directories of ldconfig's command line.
    pub(in crate::apply) directories: &'a [ContainerPath],
    /// The number of them, from the start, all of whose libraries come first: those of compatibility libraries.
    pub(in crate::apply) first: usize,
    /// Folders of a hook.
    pub(in crate::apply) folders: &'a [ContainerPath],
    /// Files and links put into the container.
    pub(in crate::apply) placed: Vec<ContainerPath>,
}

/// A directory that is searched.
pub(in crate::apply) struct Directory<'a> {
    path: &'a ContainerPath,
    fd: Rc<OpenDirectory>,
    /// The rights for creating links in it.
    rights: Rights,
    stat: FileStat,
    /// Names to examine.
    names: Vec<OsString>,
    /// Names of files and links that were put into it.
    placed: HashSet<OsString>,
    /// Its position among the directories of the command line.
    rank: usize,
}

/// Creates the links and updates the image's cache, or musl's list. `folders` has the place of each folder. Returns
/// warnings.
///
/// # Errors
/// Kind [`ErrorKind::LdCache`]: a file cannot be read or written; the effects so far are in the journal.
pub(in crate::apply) fn update(
    image: Image<'_>,
    authority: &Authority,
    loader: &Loader,
    layout: &Layout,
    news: &UpdateInput<'_>,
    folders: &Folders,
    journal: &mut Journal<'_>,
) -> Result<Vec<Error>> {
    let known = loader.directories().iter().map(|known| known.identity);
    let known: HashSet<_> = known.collect();
    let is_whole =
        |stat: &FileStat| matches!(loader, Loader::Glibc(_)) && !known.contains(&identity(stat));
    let all = news.directories.iter();
    let all = all.chain(&folders.first).chain(&folders.known);
    let given = all.clone().count();
    let directories = directories(image.root, authority, all, &news.placed, is_whole)?;
    let places = Places {
        image,
        layout,
        cache: loader.directories(),
        folders,
        first: news.first,
        given,
    };
    let mut searched = Vec::with_capacity(directories.len());
    let mut others = Vec::new();
    let mut linked = false;
    let mut undone = None;
    for directory in &directories {
        let libraries = search::libraries(image, directory);
        for library in libraries.iter().filter(|library| !library.is_link) {
            let link = links::make(image, authority, directory, library, journal)?;
            linked |= link.is_new;
            undone = undone.or(link.hid);
        }
        let is_first = directory.rank < news.first;
        let (ours, its) = libraries
            .into_iter()
            .partition::<Vec<_>, _>(|library| is_first || library.is_placed);
        let found = |libraries: Vec<Library>| {
            let libraries = libraries.iter();
            libraries
                .map(|library| FoundLibrary::new(&library.soname, library.flags))
                .collect()
        };
        searched.push(SearchedDirectory {
            path: directory.path.as_path().as_os_str().as_bytes().to_vec(),
            found: found(ours),
            rank: directory.rank,
        });
        if !its.is_empty() {
            let (rank, path) = places.of_others(directory);
            others.push(SearchedDirectory {
                path,
                found: found(its),
                rank,
            });
        }
    }
    searched.append(&mut others);
    let earlier = match loader {
        Loader::Glibc(cache) => {
            let newest = directories
                .iter()
                .map(|directory| Time::modified(&directory.stat))
                .max();
            update_cache(
                &places,
                authority,
                cache,
                &directories,
                searched,
                newest.filter(|_| !linked),
                journal,
            )?
        }
        Loader::Musl => {
            let all = [news.directories, news.folders].concat();
            musl::update(image, authority, layout, &all, journal)?;
            None
        }
        Loader::Plain => {
            log::info!("not updating the ld.so.cache: the image has no /etc");
            None
        }
    };
    let undone = undone.or(earlier).map(|file| {
        let cause =
            "the next ldconfig in this container will make programs use it instead of the driver's";
        Error::fault(ErrorKind::LdCache, file, cause)
    });
    Ok(undone.into_iter().collect())
}

/// Opens the directories without duplicates, and selects the names to examine.
fn directories<'a>(
    root: &RootDir,
    authority: &Authority,
    paths: impl Iterator<Item = &'a ContainerPath>,
    placed: &[ContainerPath],
    is_whole: impl Fn(&FileStat) -> bool,
) -> Result<Vec<Directory<'a>>> {
    let mut opened: Vec<Directory<'a>> = Vec::new();
    for (rank, path) in paths.enumerate() {
        let failed = |errno| failure("open failed", path.as_path(), errno);
        let fd = match root.resolve_directory(path.as_path()) {
            Ok(fd) => Rc::new(OpenDirectory::from(fd)),
            Err(Errno::ENOENT | Errno::ENOTDIR) => continue,
            Err(errno) => return Err(failed(errno)),
        };
        let stat = inroot::stat(fd.as_fd()).map_err(failed)?;
        let known = |known: &Directory<'_>| identity(&known.stat) == identity(&stat);
        let number = opened.iter().position(known).unwrap_or(opened.len());
        if number == opened.len() {
            let names = if is_whole(&stat) {
                names(fd.as_fd()).map_err(failed)?
            } else {
                Vec::new()
            };
            opened.push(Directory {
                path,
                rights: authority.rights_in(&fd).map_err(failed)?,
                fd,
                stat,
                names,
                placed: HashSet::new(),
                rank,
            });
        }
        if let Some(directory) = opened.get_mut(number) {
            let mut known: HashSet<OsString> = directory.names.iter().cloned().collect();
            let is_here =
                |placed: &&ContainerPath| placed.as_path().parent() == Some(path.as_path());
            let placed = placed.iter().filter(is_here);
            let placed = placed.map(|placed| placed.file_name().to_owned());
            for name in placed {
                directory.placed.insert(name.clone());
                if known.insert(name.clone()) {
                    directory.names.push(name);
                }
            }
        }
    }
    Ok(opened)
}

/// Returns all names in a directory that can be libraries.
fn names(fd: BorrowedFd<'_>) -> Result<Vec<OsString>, Errno> {
    let fd = inroot::open_to_list(fd)?;
    let mut names = Vec::new();
    directory::list(fd.as_fd(), &mut { MAX_NAMES }, |entry| {
        if library::is_name(entry.name.as_bytes()) && names.len() <= MAX_LIBRARIES {
            names.push(entry.name.to_owned());
        }
    })?;
    if names.len() > MAX_LIBRARIES {
        return Err(Errno::EFBIG);
    }
    Ok(names)
}

/// Replaces the cache, unless it is up to date and newer than `newest`. Returns a file that will have precedence over one
/// of ours when ldconfig runs in the container.
fn update_cache(
    places: &Places<'_>,
    authority: &Authority,
    cache: &SoundCache,
    directories: &[Directory<'_>],
    mut searched: Vec<SearchedDirectory>,
    newest: Option<Time>,
    journal: &mut Journal<'_>,
) -> Result<Option<ContainerPath>> {
    let place = Path::new("/etc/ld.so.cache");
    let failed = |operation| move |errno| failure(operation, place, errno);
    let kept = save(places.image, authority, "ld.so.cache")?;
    let now = kept.file().ok_or(if kept.is_missing() {
        Errno::ENOENT
    } else {
        Errno::EINVAL
    });
    let now = now.map_err(failed("open failed"))?;
    let stat = fstat(now).map_err(failed("stat failed"))?;
    let again;
    let (bytes, file) = if Version::of(&stat) == cache.file {
        (&cache.bytes, cache.file)
    } else {
        // Rewritten since discovery, by an earlier call of ours or by the container.
        again = judge::read_cache(now, &stat).map_err(failed("reading failed"))?;
        (&again.0, again.1)
    };
    let changed = |why| {
        Error::new(
            ErrorKind::LdCache,
            format!("{} was changed", place.display()),
        )
        .because(why)
    };
    let listing = Listing::parse(bytes).map_err(changed)?;
    let action = |base: &[u8]| places.action(directories, base);
    let routes = merge::routes(&listing.directories().map_err(changed)?, &searched, action);
    if places.folders.former.is_some() {
        // A program has listed all that it takes for a library.
        merge::keep_listed(&listing, &routes, &mut searched);
    }
    let lines = merge::update(&listing, &routes, &searched);
    let earlier = places.earlier(directories, &searched, &listing, &routes);
    if lines == listing.lines && newest.is_some_and(|newest| !newest.is_after(file.modified)) {
        log::debug!("{} is up to date", place.display());
        return Ok(earlier);
    }
    let bytes = listing.form.write(&lines);
    let bytes = bytes.ok_or_else(|| failed("file creation failed")(Errno::EFBIG))?;
    log::info!("writing {} with {} libraries", place.display(), lines.len());
    let mode = Mode::from_bits_truncate(0o644);
    replace(kept, authority, &bytes, mode, place, journal).map(|()| earlier)
}

/// Saves a file of the image's /etc, which is going to be replaced.
fn save(image: Image<'_>, authority: &Authority, name: &'static str) -> Result<SavedFile> {
    let directory = Path::new("/etc");
    let failed = |operation| move |errno| failure(operation, &directory.join(name), errno);
    let etc = image.root.resolve_directory(directory);
    let etc = etc.map_err(failed("open failed"))?;
    let rights = authority.rights(etc.as_fd());
    let rights = rights.map_err(failed("open failed"))?;
    let kept = SavedFile::take(etc, rights, name, image.descriptors);
    kept.map_err(failed("saving failed"))
}

/// Replaces a file of the loader.
fn replace(
    kept: SavedFile,
    authority: &Authority,
    content: &[u8],
    mode: Mode,
    place: &Path,
    journal: &mut Journal<'_>,
) -> Result<()> {
    let replaced = replace::replace(kept, authority, content, mode, place, journal);
    replaced.map_err(|error| error.with_kind(ErrorKind::LdCache))
}

fn failure(operation: &str, path: &Path, errno: Errno) -> Error {
    Error::file(operation, path, errno).with_kind(ErrorKind::LdCache)
}
