//! Makes the loader find libraries if /etc may not be changed, because it is on a volume or the root is read-only.
//!
//! Often nothing needs to be done, because the loader searches their directory by default. If not, a copy of the cache
//! with the new entries, or of musl's list of directories, is mounted over the original. That is the last resort:
//! ldconfig replaces the cache by rename(2), which fails in such a container, and with it the installation of packages.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use nix::errno::Errno;

use super::{Directory, UpdateInput, directories, failure, links, search};
use crate::apply::journal::Journal;
use crate::apply::mount::attach::Attacher;
use crate::apply::mount::cover;
use crate::apply::mount::target::{Leaf, Tree};
use crate::apply::replace::NewFile;
use crate::apply::volumes::decision::{self, Remedy};
use crate::apply::volumes::redirect::Redirection;
use crate::container::Layout;
use crate::error::{Error, ErrorKind, Result};
use crate::inroot::{self, Image, identity};
use crate::ldcache::contents::CacheLine;
use crate::ldcache::judge;
use crate::ldcache::listing::Listing;
use crate::ldcache::merge::{self, DirectoryAction, FoundLibrary, SearchedDirectory};
use crate::ldcache::musl::{COMPAT32, MuslLoader, NATIVE};
use crate::ldcache::{built_in, musl};
use crate::path::ContainerPath;
use crate::read_file;

/// Size limit of a loader; real ones have a quarter of a megabyte.
const MAX_LOADER: u64 = 8 << 20;
/// Size limit of musl's list.
const MAX_LIST: u64 = 64 << 10;
/// Limit of covers in one container: one for each call that adds libraries.
const MAX_COVERS: usize = 64;
const CACHE: &str = "/etc/ld.so.cache";

/// The flags that distinguish libraries of two architectures (`FLAG_REQUIRED_MASK`).
const ARCHITECTURE: i32 = 0xff00;

/// glibc's loaders: of 64-bit and of 32-bit programs.
#[cfg(target_arch = "x86_64")]
const LOADERS: [&str; 2] = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux.so.2"];
#[cfg(target_arch = "aarch64")]
const LOADERS: [&str; 2] = ["/lib/ld-linux-aarch64.so.1", "/lib/ld-linux-armhf.so.3"];

/// What has been done.
pub(in crate::apply) enum Outcome {
    /// The loader finds the libraries.
    Found,
    /// It finds them in a cover, with a warning about that.
    Covered(Error),
    /// It does not, for this reason.
    Refused(Error),
}

/// The tools for a cover.
pub(in crate::apply) struct Tools<'t, 'a, 'd> {
    pub(in crate::apply) redirection: &'t Redirection,
    pub(in crate::apply) attacher: &'t mut Attacher<'a>,
    pub(in crate::apply) journal: &'t mut Journal<'d>,
}

/// A library that the loader must find.
struct Wanted {
    soname: Vec<u8>,
    flags: i32,
    /// The index of its directory.
    directory: usize,
}

/// What must be written to a file of the loader, and which one.
struct Lacking {
    place: ContainerPath,
    /// None if the file cannot be read.
    content: Option<Vec<u8>>,
    exists: bool,
}

/// Creates the links of libraries by SONAME in some directories, whose names are all examined.
pub(in crate::apply) fn link(
    folders: &[ContainerPath],
    tree: &Tree<'_>,
    descriptors: &impl AsFd,
    journal: &mut Journal<'_>,
) -> Result<()> {
    let image = Image {
        root: &tree.root,
        descriptors: descriptors.as_fd(),
    };
    for directory in &directories(image.root, &tree.authority, folders.iter(), &[], |_| true)? {
        let libraries = search::libraries(image, directory);
        for library in libraries.iter().filter(|library| !library.is_link) {
            links::make(image, directory, library, journal);
        }
    }
    Ok(())
}

/// Returns links to libraries that an engine has mounted in a directory where nothing can be created: each SONAME, with
/// the library's path. None if the directory has all of them.
pub(in crate::apply) fn missing_links(
    folder: &ContainerPath,
    mounted: &[ContainerPath],
    tree: &Tree<'_>,
    descriptors: &impl AsFd,
) -> Result<Option<Vec<(OsString, ContainerPath)>>> {
    let image = Image {
        root: &tree.root,
        descriptors: descriptors.as_fd(),
    };
    let folders = std::iter::once(folder);
    let mut links = Vec::new();
    let mut has_all = true;
    for directory in &directories(image.root, &tree.authority, folders, mounted, |_| false)? {
        for library in search::libraries(image, directory) {
            let link = folder.join(OsStr::from_bytes(&library.soname));
            let found = image.root.resolve(link.as_path());
            let found = found.and_then(|fd| inroot::stat(fd.as_fd()));
            has_all &= found.is_ok_and(|stat| identity(&stat) == library.identity);
            links.push((
                OsString::from_vec(library.soname),
                folder.join(OsStr::from_bytes(&library.name)),
            ));
        }
    }
    Ok((!has_all).then_some(links))
}

/// Makes the loader find the libraries, if that is possible without a change in /etc.
pub(in crate::apply) fn inform(
    news: &UpdateInput<'_>,
    layout: &Layout,
    tree: &mut Tree<'_>,
    tools: Tools<'_, '_, '_>,
) -> Result<Outcome> {
    let Tools {
        redirection,
        attacher,
        journal,
    } = tools;
    let descriptors = attacher.descriptors;
    let image = Image {
        root: &tree.root,
        descriptors: descriptors.as_fd(),
    };
    let ours: HashSet<_> = redirection
        .in_tmpfs()
        .iter()
        .filter_map(|folder| image.root.resolve_directory(folder.as_path()).ok())
        .filter_map(|fd| inroot::stat(fd.as_fd()).ok())
        .map(|stat| identity(&stat))
        .collect();
    let all: Vec<_> = news.folders.iter().chain(news.directories).collect();
    let is_whole = |stat: &_| ours.contains(&identity(stat));
    let opened = directories(
        image.root,
        &tree.authority,
        all.iter().copied(),
        &news.placed,
        is_whole,
    )?;
    let mut searched = Vec::with_capacity(opened.len());
    let mut wanted = Vec::new();
    let mut unlinked = None;
    for (rank, directory) in opened.iter().enumerate() {
        let libraries = search::libraries(image, directory);
        for library in libraries.iter().filter(|library| !library.is_link) {
            links::make(image, directory, library, journal);
            let link = directory.path.join(OsStr::from_bytes(&library.soname));
            if image.root.exists(link.as_path()) != Ok(true) {
                unlinked = Some(link);
            }
        }
        // Links for development are found with or without an entry, as in a first run.
        let files = libraries.iter().filter(|library| !library.is_development);
        wanted.extend(files.map(|library| Wanted {
            soname: library.soname.clone(),
            flags: library.flags,
            directory: rank,
        }));
        let found = libraries
            .iter()
            .map(|library| FoundLibrary::new(&library.soname, library.flags));
        searched.push(SearchedDirectory {
            path: directory.path.as_path().as_os_str().as_bytes().to_vec(),
            found: found.collect(),
            rank,
        });
    }
    let etc = Path::new("/etc");
    let etc = image
        .root
        .resolve_directory(etc)
        .map_err(|errno| failure("open failed", etc, errno))?;
    if let Some(link) = unlinked {
        let error = tree
            .authority
            .refusal("file creation failed", link.as_path(), etc.as_fd());
        return Ok(Outcome::Refused(error.with_kind(ErrorKind::LdCache)));
    }
    let has_cache = image.root.exists(Path::new(CACHE)) == Ok(true);
    let is_musl = !has_cache && image.root.exists(Path::new(NATIVE.path)) == Ok(true);
    let lacking = if is_musl {
        lacking_for_musl(image, layout, &all)
    } else {
        lacking_in_cache(image, &opened, &searched, &wanted)?
            .into_iter()
            .collect()
    };
    drop(opened);
    let mut warning = None;
    for Lacking {
        place,
        content,
        exists,
    } in lacking
    {
        let tmpfs = redirection.ensure_tmpfs(tree, attacher, journal)?;
        let loader = decision::Loader {
            finds_all: false,
            is_readable: content.is_some(),
            has_cover: exists && tmpfs.is_some(),
        };
        let (Remedy::Cover, Some(content), Some(tmpfs)) = (loader.remedy(), content, tmpfs) else {
            return Ok(Outcome::Refused(refusal(&place, tree, &etc)));
        };
        cover_file(&place, &content, tmpfs, tree, attacher, journal)?;
        // musl has no program that replaces its list.
        warning = (!is_musl).then(|| warned(&place));
    }
    Ok(warning.map_or(Outcome::Found, Outcome::Covered))
}

/// Mounts a file with this content over another one; it is in the tmpfs.
fn cover_file(
    at: &ContainerPath,
    content: &[u8],
    tmpfs: &ContainerPath,
    tree: &mut Tree<'_>,
    attacher: &mut Attacher<'_>,
    journal: &mut Journal<'_>,
) -> Result<()> {
    let descriptors = attacher.descriptors;
    // A mount on a file that an earlier call has put there would fail if that file were replaced.
    let name = at.file_name().to_string_lossy().into_owned();
    let names = (0..MAX_COVERS).map(|number| format!("{name}.{number}"));
    let is_free = |name: &String| {
        let found = tree.root.resolve_nofollow(tmpfs.join(name).as_path());
        found.err() == Some(Errno::ENOENT)
    };
    let name = { names }
        .find(is_free)
        .ok_or_else(|| failure("file creation failed", tmpfs.as_path(), Errno::EEXIST))?;
    let file = NewFile {
        name: &name,
        content,
        mode: 0o644,
        above: 0o755,
    };
    tree.write(tmpfs, &file, descriptors, journal)?;
    let place = at.below(tree.rootfs);
    let failed = |errno| failure("mount operation failed", &place, errno);
    let source = tree.root.resolve_nofollow(tmpfs.join(&name).as_path());
    let source = source.map_err(failed)?;
    let target = tree.existing(at, Leaf::File(0)).map_err(failed)?;
    log::info!("mounting a copy of {at} with the libraries over it");
    cover::mount_file(&source, &target, &place, attacher, journal)
}

/// Returns what musl's lists lack.
fn lacking_for_musl(image: Image<'_>, layout: &Layout, all: &[&ContainerPath]) -> Vec<Lacking> {
    let bytes = |path: &ContainerPath| path.as_path().as_os_str().as_bytes().to_vec();
    let mut lacking = Vec::new();
    for (loader, libs) in [(&NATIVE, &layout.libs_dir), (&COMPAT32, &layout.libs32_dir)] {
        if image.root.exists(Path::new(loader.path)) != Ok(true) {
            continue;
        }
        let of_layout = [&layout.libs_dir, &layout.libs32_dir];
        let first = all.iter().filter(|path| !of_layout.contains(path));
        let first: Vec<_> = match loader {
            MuslLoader { path, .. } if *path == NATIVE.path => {
                first.map(|path| bytes(path)).collect()
            }
            _ => Vec::new(),
        };
        let first: Vec<_> = first.iter().map(Vec::as_slice).collect();
        let last = if all.contains(&libs) {
            vec![bytes(libs)]
        } else {
            Vec::new()
        };
        let last: Vec<_> = last.iter().map(Vec::as_slice).collect();
        let place = ContainerPath::new("/etc").join(loader.list);
        let list = match read(image, &place, MAX_LIST) {
            Ok(list) => Ok(Some(list)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno),
        };
        let exists = !matches!(list, Ok(None));
        match list {
            Ok(list) => {
                let extended = musl::extended(list.as_deref(), &first, &last);
                lacking.extend(extended.map(|content| Lacking {
                    place,
                    content: Some(content),
                    exists,
                }));
            }
            Err(_) => lacking.push(Lacking {
                place,
                content: None,
                exists,
            }),
        }
    }
    lacking
}

/// Returns what glibc's cache lacks; None if the loader finds all libraries as it is.
fn lacking_in_cache(
    image: Image<'_>,
    opened: &[Directory<'_>],
    searched: &[SearchedDirectory],
    wanted: &[Wanted],
) -> Result<Option<Lacking>> {
    let place = ContainerPath::new(CACHE);
    let found = image.root.resolve_nofollow(place.as_path());
    let found = found.and_then(|fd| {
        let (file, stat) = image.open_file(fd.as_fd())?;
        judge::read_cache(&file, &stat)
    });
    let exists = found.as_ref().err() != Some(&Errno::ENOENT);
    let without_content = || {
        let (place, content) = (place.clone(), None);
        Ok(Some(Lacking {
            place,
            content,
            exists,
        }))
    };
    let unreadable = |why: &dyn std::fmt::Display| {
        log::info!("{place} cannot be extended: {why}");
        without_content()
    };
    let bytes = match found {
        Ok((bytes, _)) => bytes,
        Err(Errno::ENOENT) => Vec::new(),
        Err(errno) => return unreadable(&errno),
    };
    let listing = match Listing::parse(&bytes) {
        _ if bytes.is_empty() => None,
        Ok(listing) => Some(listing),
        Err(why) => return unreadable(&why),
    };
    // The volume's owner chooses how many entries and directories there are.
    let known = listing.as_ref().map(Listing::directories);
    let known = match known.unwrap_or(Ok(Vec::new())) {
        Ok(known) => known,
        Err(why) => return unreadable(&why),
    };
    let same_as = |name: &[u8]| {
        let mut numbers = 0..opened.len();
        numbers.find(|number| {
            let directory = opened.get(*number);
            directory.is_some_and(|directory| is_same(image, directory, name))
        })
    };
    let number_of: HashMap<&[u8], Option<usize>> = { known.iter() }
        .flat_map(|known| [known.path, known.base])
        .map(|name| (name, same_as(name)))
        .collect();
    let is_in = |number: usize, name: &[u8]| number_of.get(name) == Some(&Some(number));
    let sonames: HashSet<&[u8]> = wanted.iter().map(|wanted| &*wanted.soname).collect();
    let lines = listing.as_ref().map_or(&[][..], |listing| &listing.lines);
    let mut entries: HashMap<&[u8], Vec<&CacheLine<'_>>> = HashMap::new();
    for line in lines.iter().filter(|line| sonames.contains(line.key)) {
        entries.entry(line.key).or_default().push(line);
    }
    let defaults = Defaults::of(image);
    let finds = |wanted: &Wanted| {
        let its = entries.get(&*wanted.soname).into_iter().flatten();
        let its = its.filter(|line| (line.flags ^ wanted.flags) & ARCHITECTURE == 0);
        let entries: Vec<_> = its
            .map(|line| is_in(wanted.directory, line.directory))
            .collect();
        let directory = opened.get(wanted.directory);
        let is_default =
            directory.is_some_and(|directory| defaults.search(image, directory, wanted.flags));
        decision::finds(&entries, is_default)
    };
    if wanted.iter().all(finds) {
        log::info!("leaving {place} alone: the loader finds the libraries without it");
        return Ok(None);
    }
    let Some(listing) = listing else {
        return without_content();
    };
    let action = |base: &[u8]| match number_of.get(base) {
        Some(Some(number)) => DirectoryAction::Search(*number),
        _ => DirectoryAction::Keep(usize::MAX),
    };
    let routes = merge::routes(&known, searched, action);
    let content = listing
        .form
        .write(&merge::update(&listing, &routes, searched));
    Ok(Some(Lacking {
        place,
        content,
        exists,
    }))
}

/// Returns true if a name of the cache leads to a directory.
fn is_same(image: Image<'_>, directory: &Directory<'_>, name: &[u8]) -> bool {
    if directory.path.as_path().as_os_str().as_bytes() == name {
        return true;
    }
    let found = image
        .root
        .resolve_directory(Path::new(OsStr::from_bytes(name)));
    let stat = found.and_then(|fd| inroot::stat(fd.as_fd()));
    stat.is_ok_and(|stat| identity(&stat) == identity(&directory.stat))
}

/// The directories that the image's loaders search by themselves.
struct Defaults([Option<Vec<Vec<u8>>>; 2]);

impl Defaults {
    /// Reads them from the loaders, whose files contain their names.
    fn of(image: Image<'_>) -> Self {
        Self(LOADERS.map(|loader| {
            let bytes = read(image, &ContainerPath::new(loader), MAX_LOADER).ok()?;
            let names = built_in().map(|name| name.as_os_str().as_bytes().to_vec());
            Some(names.filter(|name| has_default(&bytes, name)).collect())
        }))
    }

    /// Returns true if the loader of these libraries searches a directory. An image without that loader has no programs
    /// that could use them.
    fn search(&self, image: Image<'_>, directory: &Directory<'_>, flags: i32) -> bool {
        let [native, other] = &self.0;
        let loader = if is_native(flags) { native } else { other };
        let Some(names) = loader else { return true };
        names.iter().any(|name| is_same(image, directory, name))
    }
}

/// Returns true if the flags of a library are those of 64 bits.
fn is_native(flags: i32) -> bool {
    flags & ARCHITECTURE != 0 && (cfg!(target_arch = "x86_64") || flags & ARCHITECTURE == 0x0a00)
}

/// Returns true if a loader's file has a directory as one of its strings, with the slash that glibc adds.
fn has_default(loader: &[u8], name: &[u8]) -> bool {
    let wanted = [b"\0", name, b"/\0"].concat();
    loader.windows(wanted.len()).any(|part| part == wanted)
}

/// Reads a regular file of the image: `EFBIG` if it is too large.
fn read(image: Image<'_>, path: &ContainerPath, limit: u64) -> Result<Vec<u8>, Errno> {
    let found = image.root.resolve(path.as_path())?;
    let (file, _) = image.open_file(found.as_fd())?;
    let bytes = read_file::read(file, limit + 1)?;
    if bytes.len() as u64 > limit {
        return Err(Errno::EFBIG);
    }
    Ok(bytes)
}

fn warned(place: &ContainerPath) -> Error {
    let cause = "/etc may not be changed, and a copy with the driver's libraries is mounted over this \
                 file, which ldconfig cannot replace";
    Error::fault(ErrorKind::Volume, place, cause)
        .context("ldconfig, and so apt-get install, in this container")
        .hint("mount the volume elsewhere than on /etc, or only one of /etc and /usr")
}

fn refusal(place: &ContainerPath, tree: &Tree<'_>, etc: &impl AsFd) -> Error {
    let refused = tree
        .authority
        .refusal("file creation failed", place.as_path(), etc.as_fd());
    refused.with_kind(ErrorKind::LdCache).hint(
        "the loader would not find the driver's libraries: run ldconfig once with the volume mounted where it may be \
         changed, or mount it elsewhere",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_directories_are_whole_strings() {
        let loader = b"\x7fELF\0/lib/x86_64-linux-gnu/\0/usr/lib/x86_64-linux-gnu/\0/lib/\0/opt/usr/lib64/\0";
        for (name, expected) in [
            ("/lib/x86_64-linux-gnu", true),
            ("/usr/lib/x86_64-linux-gnu", true),
            ("/lib", true),
            ("/usr/lib", false),
            ("/usr/lib64", false),
        ] {
            assert_eq!(has_default(loader, name.as_bytes()), expected, "{name}");
        }
    }
}
