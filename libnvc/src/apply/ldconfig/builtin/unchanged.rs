//! Checks that the loader finds the libraries although its files in /etc may not be changed, because they are on a volume
//! or read-only.
//!
//! The files are read only for this decision: nothing of them gets into another file.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;

use super::search::{self, Library};
use super::{Directory, UpdateInput, directories, failure, links, musl};
use crate::apply::journal::Journal;
use crate::apply::mount::target::Tree;
use crate::apply::volumes::authority::Authority;
use crate::container::Layout;
use crate::error::{Error, ErrorKind, Result};
use crate::inroot::{Image, identity, identity_of};
use crate::ldcache::built_in;
use crate::ldcache::contents::CacheLine;
use crate::ldcache::judge;
use crate::ldcache::listing::Listing;
use crate::ldcache::musl::NATIVE;
use crate::read_file;

/// Size limit of a loader; real ones have a quarter of a megabyte.
const MAX_LOADER: u64 = 8 << 20;
const CACHE: &str = "/etc/ld.so.cache";
/// The flags that distinguish libraries of two architectures (`FLAG_REQUIRED_MASK`).
const ARCHITECTURE: i32 = 0xff00;
/// The way out if it does not find them.
const HINT: &str = "mount the volume elsewhere than on /etc, or run ldconfig once in a container that has it and a GPU";

/// glibc's loaders: of 64-bit and of 32-bit programs.
#[cfg(target_arch = "x86_64")]
const LOADERS: [&str; 2] = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux.so.2"];
#[cfg(target_arch = "aarch64")]
const LOADERS: [&str; 2] = ["/lib/ld-linux-aarch64.so.1", "/lib/ld-linux-armhf.so.3"];

/// Creates the links, and checks that the loader finds the libraries. Returns a warning, unless its cache has them.
pub(in crate::apply) fn check(
    news: &UpdateInput<'_>,
    layout: &Layout,
    tree: &Tree<'_>,
    descriptors: BorrowedFd<'_>,
    journal: &mut Journal<'_>,
) -> Result<Option<Error>> {
    let root = &tree.root;
    let image = Image { root, descriptors };
    let all = [news.directories, news.folders].concat();
    let authority = &tree.authority;
    let opened = directories(root, authority, all.iter(), &news.placed, |_| false)?;
    let mut libraries = Vec::new();
    for directory in &opened {
        let here = search::libraries(image, directory);
        for library in here.iter().filter(|library| !library.is_link) {
            links::make(image, authority, directory, library, journal)?;
        }
        // Links for development are found with or without an entry, as in a first run.
        let here = here.into_iter().filter(|library| !library.is_development);
        libraries.extend(here.map(|library| (directory, library)));
    }
    let has_cache = root.exists(Path::new(CACHE)) == Ok(true);
    let is_known = if !has_cache && root.exists(Path::new(NATIVE.path)) == Ok(true) {
        if let Some(list) = musl::lacking(image, layout, &all) {
            let text = "the loader would not search the directory of the driver's libraries";
            return Err(refusal(image, authority, text, &list));
        }
        true
    } else {
        is_in_cache(image, authority, &libraries)?
    };
    let text = "leaving the loader's cache as it is, without which it finds the driver's libraries";
    let warning = || refusal(image, authority, text, Path::new(CACHE)).with_kind(ErrorKind::Volume);
    Ok((!is_known).then(warning))
}

/// Returns true if the cache has all libraries, and false if the loader finds some in the directories that it searches by
/// itself.
fn is_in_cache(
    image: Image<'_>,
    authority: &Authority,
    libraries: &[(&Directory<'_>, Library)],
) -> Result<bool> {
    let place = Path::new(CACHE);
    let refused = |text: &str| Err(refusal(image, authority, text, place));
    let bytes = image.root.resolve_nofollow(place).and_then(|fd| {
        let (file, stat) = image.open_file(fd.as_fd())?;
        judge::read_cache(&file, &stat)
    });
    let bytes = match bytes {
        Err(Errno::ENOENT) => Vec::new(),
        bytes => {
            bytes
                .map_err(|errno| failure("open failed", place, errno))?
                .0
        }
    };
    let lines = match &*bytes {
        [] => Vec::new(),
        bytes => match Listing::parse(bytes) {
            Ok(listing) => listing.lines,
            Err(why) => {
                return refused(&format!("the loader's cache cannot be judged, since {why}"));
            }
        },
    };
    // The volume's owner chooses how many entries there are; the loader takes the first one of a name.
    let mut entries: HashMap<_, &CacheLine<'_>> = HashMap::new();
    for line in &lines {
        entries
            .entry((line.key, line.flags & ARCHITECTURE))
            .or_insert(line);
    }
    let defaults = Defaults::of(image);
    let mut has_all = true;
    for (directory, library) in libraries {
        let entry = entries.get(&(&*library.soname, library.flags & ARCHITECTURE));
        if let Some(entry) = entry {
            if is_same(image, directory, entry.directory) {
                continue;
            }
            let other = [entry.directory, entry.rest].concat();
            let other = Path::new(OsStr::from_bytes(&other));
            if image.root.exists(other) != Ok(false) {
                let other = other.display();
                return refused(&format!(
                    "the loader would find {other} instead of the driver's"
                ));
            }
        }
        has_all = false;
        if !defaults.search(image, directory, library.flags) {
            let directory = directory.path;
            return refused(&format!("the loader does not search {directory} by itself"));
        }
    }
    Ok(has_all)
}

/// Returns true if a name leads to a directory.
fn is_same(image: Image<'_>, directory: &Directory<'_>, name: &[u8]) -> bool {
    let found = image
        .root
        .resolve_directory(Path::new(OsStr::from_bytes(name)));
    found.and_then(identity_of) == Ok(identity(&directory.stat))
}

/// The directories that the image's loaders search by themselves.
struct Defaults([Option<Vec<Vec<u8>>>; 2]);

impl Defaults {
    /// Reads them from the loaders, whose files contain their names.
    fn of(image: Image<'_>) -> Self {
        Self(LOADERS.map(|loader| {
            let found = image.root.resolve(Path::new(loader)).ok()?;
            let (file, _) = image.open_file(found.as_fd()).ok()?;
            let bytes = read_file::read(file, MAX_LOADER).ok()?;
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

/// Describes why a file of /etc stays, with what that means.
fn refusal(image: Image<'_>, authority: &Authority, text: &str, place: &Path) -> Error {
    match image.root.resolve_directory(Path::new("/etc")) {
        Ok(etc) => authority.refusal(text, place, etc.as_fd()).hint(HINT),
        Err(errno) => Error::file(text, place, errno),
    }
    .with_kind(ErrorKind::LdCache)
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
