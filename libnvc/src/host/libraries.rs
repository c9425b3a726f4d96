//! Finds the driver's libraries: first candidates from the loader cache, then those of the driver's version.
//!
//! There are two phases so that the first, which is most of the work, runs while NVML determines the version. The
//! selection follows upstream's entry by entry, except that a stale entry or an unreadable library does not stop the
//! search: it is skipped, with a warning if it would have been selected. A missing cache is not fatal either, see
//! [`directories`].

pub(super) mod directories;

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;

use log::{debug, info, warn};
use nix::sys::stat::SFlag;

use crate::elf::{ElfError, Library};
use crate::error::{Error, ErrorKind, Result, errno_text};
use crate::host::arch::Abi;
use crate::host::catalogue::{self, Pattern};
use crate::host::realpath::RealPaths;
use crate::host::{DriverFile, DriverRoot};
use crate::ldcache::format::Cache;
use crate::options::DriverOptions;
use crate::path::HostPath;

/// The loader cache, unless the caller names another.
pub(crate) const DEFAULT_LDCACHE: &str = "/etc/ld.so.cache";

/// ABI note of libnvidia-tls's NPTL variant: Linux 2.3.99 or later.
const TLS_ABI: [u32; 4] = [0, 2, 3, 99];

/// NVIDIA's legacy GL libraries need one of these; Mesa's of the same name need none.
const GL_CORES: &[&str] = &["libnvidia-glcore.so", "libnvidia-eglcore.so"];

/// Libraries of any version that may be the driver's, in cache order.
#[derive(Debug)]
pub(crate) struct LibraryCandidates {
    patterns: Vec<&'static Pattern>,
    wsl: bool,
    candidates: Vec<Candidate>,
}

#[derive(Debug)]
struct Candidate {
    abi: Abi,
    /// Index of the matching pattern.
    name: usize,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// A file to take if its version matches.
    Real(HostPath),
    /// A file that matches by name but is not the driver's, such as Mesa's.
    Foreign(HostPath, &'static str),
    /// A file that could not be examined: its cache path, its link target, the reason.
    Broken(HostPath, Option<HostPath>, String),
}

impl LibraryCandidates {
    /// Looks up the candidates. `ldcache` is the cache the caller named, if any.
    ///
    /// # Errors
    /// `open failed: <cache>: <cause>` and `unsupported file format: <cache>` if the caller named the cache, or if the
    /// usual directories have no driver library either.
    pub(crate) fn collect(
        root: &DriverRoot,
        ldcache: Option<&HostPath>,
        options: DriverOptions,
        wsl: bool,
    ) -> Result<Self> {
        let default = HostPath::new(DEFAULT_LDCACHE);
        let mut search = Search::new(root, catalogue::libraries(options, wsl));
        match search.add_cache(ldcache.unwrap_or(&default)) {
            Err(error) if ldcache.is_some() => return Err(error),
            Err(error) => {
                search.add_directories(directories::all());
                if search.candidates.is_empty() {
                    return Err(error);
                }
                warn!(
                    "{}: searching the usual library directories instead",
                    error.message()
                );
            }
            Ok(()) if ldcache.is_none() && search.candidates.is_empty() => {
                search.add_directories(directories::uncached());
                if !search.candidates.is_empty() {
                    info!("no driver library in {}", root.join(&default).display());
                }
            }
            Ok(()) => {}
        }
        Ok(Self {
            patterns: search.patterns,
            wsl,
            candidates: search.candidates,
        })
    }

    /// Returns the libraries of a driver version: native, then 32-bit, each in catalogue order.
    pub(crate) fn select(&self, driver_version: &str) -> Vec<DriverFile> {
        let mut selection = Selection {
            version: driver_version,
            wsl: self.wsl,
            slots: [
                vec![None; self.patterns.len()],
                vec![None; self.patterns.len()],
            ],
        };
        for candidate in &self.candidates {
            selection.offer(candidate);
        }
        // Broken ones last: a library is missing only if no other candidate provides it.
        for candidate in &self.candidates {
            selection.log_unreadable(candidate);
        }
        let [native, compat32] = selection.slots;
        if let (true, false, Some(found)) = (
            native.iter().all(Option::is_none),
            self.wsl,
            self.versions().next(),
        ) {
            warn!(
                "none of the driver's libraries is of version {driver_version}, the first is of {found}: run ldconfig if \
                 a new driver is installed, or wait until it is"
            );
        }
        for (kind, slots) in [("", &native), ("compat32 ", &compat32)] {
            let pairs = self.patterns.iter().zip(slots);
            for (pattern, _) in pairs.filter(|(_, slot)| slot.is_none()) {
                debug!("missing {kind}library {}", pattern.name);
            }
        }
        let mut files = Vec::new();
        for (abi, slots) in Abi::ALL.into_iter().zip([native, compat32]) {
            for (pattern, path) in self.patterns.iter().zip(slots) {
                files.extend(path.map(|path| DriverFile {
                    abi,
                    ..pattern.file(path.clone())
                }));
            }
        }
        files
    }

    /// Returns the versions of the native libraries that talk to the kernel module, in cache order.
    pub(super) fn versions(&self) -> impl Iterator<Item = &str> {
        let talks = |name: &str| matches!(name, "libcuda.so" | "libnvidia-ml.so");
        self.candidates.iter().filter_map(move |candidate| {
            let Place::Real(path) = &candidate.place else {
                return None;
            };
            let name = self.patterns.get(candidate.name)?.name;
            if candidate.abi != Abi::Native || !talks(name) {
                return None;
            }
            let version = path.file_name().to_str()?.strip_prefix(name)?;
            let version = version.strip_prefix('.')?;
            version.contains('.').then_some(version)
        })
    }
}

/// State of the first phase.
struct Search<'r> {
    root: &'r DriverRoot,
    patterns: Vec<&'static Pattern>,
    paths: RealPaths<'r>,
    candidates: Vec<Candidate>,
}

impl<'r> Search<'r> {
    fn new(root: &'r DriverRoot, patterns: Vec<&'static Pattern>) -> Self {
        Self {
            root,
            patterns,
            paths: RealPaths::new(root),
            candidates: Vec::new(),
        }
    }

    /// Adds the entries of a loader cache, in its order.
    fn add_cache(&mut self, path: &HostPath) -> Result<()> {
        let bytes = read_cache(self.root, path)?;
        let cache = Cache::parse(&bytes).ok_or_else(|| unsupported(self.root, path))?;
        for entry in cache.entries() {
            let Some(name) = catalogue::position(&self.patterns, entry.key) else {
                continue;
            };
            let Some(abi) = Abi::of_cache_entry(entry.flags) else {
                continue;
            };
            self.add(abi, name, HostPath::new(OsStr::from_bytes(entry.value)));
        }
        Ok(())
    }

    fn add(&mut self, abi: Abi, name: usize, listed: HostPath) {
        let place = match self.paths.resolve_with_kind(&listed) {
            Ok((real, SFlag::S_IFREG)) => judge(self.root, real),
            Ok((real, _)) => Place::Broken(real, None, "it is not a regular file".to_owned()),
            Err(errno) => {
                let link = self.link_text(&listed);
                Place::Broken(listed, link, errno_text(errno))
            }
        };
        self.candidates.push(Candidate { abi, name, place });
    }

    /// Returns a link's target: that of a dangling link still reveals the missing version.
    fn link_text(&mut self, path: &HostPath) -> Option<HostPath> {
        let (directory, _) = self.paths.directory(path.parent()).ok()?;
        let text = nix::fcntl::readlinkat(directory, path.file_name()).ok()?;
        Some(path.parent().join(text))
    }
}

/// Reads a loader cache.
fn read_cache(root: &DriverRoot, path: &HostPath) -> Result<Vec<u8>> {
    root.read(path)
        .map_err(|errno| Error::file("open failed", root.join(path), errno))
}

fn unsupported(root: &DriverRoot, path: &HostPath) -> Error {
    let error = Error::new(ErrorKind::Malformed, "unsupported file format");
    error.of(root.join(path).display())
}

/// Validates a cache that the caller named, without looking up any library.
pub(super) fn check_cache(root: &DriverRoot, path: &HostPath) -> Result<()> {
    match Cache::parse(&read_cache(root, path)?) {
        Some(_) => Ok(()),
        None => Err(unsupported(root, path)),
    }
}

/// Examines files whose names are ambiguous.
fn judge(root: &DriverRoot, real: HostPath) -> Place {
    let verdict = if catalogue::is_tls(real.file_name()) {
        open_library(root, &real).and_then(|library| match library.abi()? {
            TLS_ABI => Ok(None),
            _ => Ok(Some("for another thread library")),
        })
    } else if catalogue::is_legacy_gl(real.file_name()) {
        open_library(root, &real).and_then(|library| {
            if library.needs(GL_CORES)? {
                Ok(None)
            } else {
                Ok(Some("not NVIDIA's"))
            }
        })
    } else {
        Ok(None)
    };
    match verdict {
        Ok(None) => Place::Real(real),
        Ok(Some(why)) => Place::Foreign(real, why),
        Err(oddity) => Place::Broken(real, None, oddity.to_string()),
    }
}

fn open_library(root: &DriverRoot, path: &HostPath) -> Result<Library<File>, ElfError> {
    let file = root.open_file(path).map_err(std::io::Error::from)?;
    Library::open(file)
}

/// State of the second phase.
struct Selection<'a> {
    version: &'a str,
    wsl: bool,
    slots: [Vec<Option<&'a HostPath>>; 2],
}

impl<'a> Selection<'a> {
    fn offer(&mut self, candidate: &'a Candidate) {
        let path = match &candidate.place {
            Place::Real(path) => path,
            Place::Foreign(path, why) => return skip(path, why),
            Place::Broken(..) => return,
        };
        let versioned = self.has_version(path);
        let Some(slot) = self.slots[candidate.abi as usize].get_mut(candidate.name) else {
            return;
        };
        match *slot {
            Some(chosen) if chosen == path => return,
            Some(chosen) if self.wsl && is_of_wsl(chosen) => return skip(path, &"found already"),
            _ if !self.wsl && !versioned => return skip(path, &"another version"),
            Some(chosen) => debug!("selecting {path} over {chosen}"),
            None => debug!("selecting {path}"),
        }
        *slot = Some(path);
    }

    /// Reports a library that could not be examined; warns if it is missing.
    fn log_unreadable(&self, candidate: &Candidate) {
        let Place::Broken(path, link, why) = &candidate.place else {
            return;
        };
        let wanted = self.wsl
            || [Some(path), link.as_ref()]
                .into_iter()
                .flatten()
                .any(|p| self.has_version(p));
        let slot = self.slots[candidate.abi as usize].get(candidate.name);
        if wanted && slot == Some(&None) {
            warn!("skipping {path}: {why}");
        } else {
            skip(path, why);
        }
    }

    fn has_version(&self, path: &HostPath) -> bool {
        let name = path.file_name().as_bytes();
        name.strip_suffix(self.version.as_bytes())
            .is_some_and(|stem| stem.ends_with(b"."))
    }
}

fn skip(path: &HostPath, why: &dyn fmt::Display) {
    debug!("skipping {path}: {why}");
}

fn is_of_wsl(path: &HostPath) -> bool {
    let bytes = path.as_path().as_os_str().as_bytes();
    bytes.windows(9).any(|part| part == b"/wsl/lib/")
}

#[cfg(test)]
mod tests;
