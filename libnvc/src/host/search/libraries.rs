//! Finds the driver's libraries: those that the catalogue names, or every one of a version.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;

use log::{debug, warn};

use super::headers::Headers;
use super::places::{Places, Source};
use crate::capability::Capability;
use crate::host::catalogue::{self, Pattern};
use crate::host::realpath::Directory;
use crate::host::{Abi, DriverFile, FileClass, FileLink};
use crate::path::HostPath;

/// ABI note of libnvidia-tls's NPTL variant: Linux 2.3.99 or later.
const TLS_ABI: [u32; 4] = [0, 2, 3, 99];

/// NVIDIA's legacy GL libraries need one of these; Mesa's of the same name need none.
const GL_CORES: [&str; 2] = ["libnvidia-glcore.so", "libnvidia-eglcore.so"];

/// Libraries to look up.
pub(super) struct Wanted<'w> {
    pub(super) patterns: Vec<&'static Pattern>,
    /// The version in their names; None under WSL2, where they have none.
    pub(super) version: Option<&'w str>,
}

/// A library to look up, and what was found so far.
struct Slot {
    pattern: &'static Pattern,
    /// The names that its file can have, best first.
    names: Vec<OsString>,
    found: Option<HostPath>,
    /// The reason why a file that should be it is not.
    broken: Option<String>,
}

impl Wanted<'_> {
    /// Looks the libraries up in one place after the other; the result has the order of the patterns.
    pub(super) fn find(
        &self,
        places: &mut Places<'_>,
        abi: Abi,
    ) -> Vec<(&'static Pattern, Option<HostPath>)> {
        let slot = |pattern: &&'static Pattern| Slot {
            pattern,
            names: match self.version {
                Some(version) => vec![format!("{}.{version}", pattern.name).into()],
                None => vec![format!("{}.1", pattern.name).into(), pattern.name.into()],
            },
            found: None,
            broken: None,
        };
        let mut slots: Vec<Slot> = self.patterns.iter().map(slot).collect();
        for source in places.sources() {
            let missing: Vec<&mut Slot> = slots
                .iter_mut()
                .filter(|slot| slot.found.is_none())
                .collect();
            if missing.is_empty() {
                break;
            }
            if source == Source::Cache {
                self.in_cache(places, abi, missing);
            } else {
                let directories = places.directories(source, abi);
                self.in_directories(places, abi, &directories, missing);
            }
        }
        for slot in slots.iter().filter(|slot| slot.found.is_none()) {
            match &slot.broken {
                Some(why) => warn!("skipping {why}"),
                None => debug!(
                    "missing {}library {}",
                    if abi == Abi::Compat32 { "32-bit " } else { "" },
                    slot.pattern.name
                ),
            }
        }
        slots
            .into_iter()
            .map(|slot| (slot.pattern, slot.found))
            .collect()
    }

    fn in_directories(
        &self,
        places: &mut Places<'_>,
        abi: Abi,
        directories: &[Rc<Directory>],
        mut missing: Vec<&mut Slot>,
    ) {
        for directory in directories {
            for slot in &mut missing {
                if slot.found.is_some() {
                    continue;
                }
                slot.found = slot.names.iter().find_map(|name| {
                    let real = places.file_in(directory, name)?;
                    self.judge(places, abi, slot.pattern, real, &mut slot.broken)
                });
                if let Some(library) = &slot.found {
                    debug!("selecting {library}");
                    places.at_home(abi, directory.listed.clone(), library);
                }
            }
        }
    }

    /// Of the cache's entries for one name the last counts; under WSL2 the first in the directory that Windows provides.
    fn in_cache(&self, places: &mut Places<'_>, abi: Abi, mut missing: Vec<&mut Slot>) {
        let patterns: Vec<&Pattern> = missing.iter().map(|slot| slot.pattern).collect();
        let entries = places.cached(abi, |key| catalogue::position(&patterns, key));
        let mut listed: HashMap<usize, HostPath> = HashMap::new();
        for (at, path) in entries {
            let Some(slot) = missing.get_mut(at) else {
                continue;
            };
            let is_settled = self.version.is_none() && slot.found.as_ref().is_some_and(is_of_wsl);
            if is_settled {
                continue;
            }
            let Some(real) = places.file(&path) else {
                if let Some(missing) = places.link_text(&path).filter(|text| self.fits(text)) {
                    slot.broken = Some(format!("{path}: {missing} is missing"));
                }
                continue;
            };
            places.lead(abi, real.parent());
            if let Some(found) = self.judge(places, abi, slot.pattern, real, &mut slot.broken) {
                debug!("selecting {found}");
                slot.found = Some(found);
                listed.insert(at, path.parent());
            }
        }
        for (at, slot) in missing.iter().enumerate() {
            if let (Some(library), Some(directory)) = (&slot.found, listed.remove(&at)) {
                places.at_home(abi, directory, library);
            }
        }
    }

    /// Returns a file as the library, if it is one of the driver's version.
    fn judge(
        &self,
        places: &mut Places<'_>,
        abi: Abi,
        pattern: &Pattern,
        path: HostPath,
        broken: &mut Option<String>,
    ) -> Option<HostPath> {
        if !self.fits(&path) {
            debug!("skipping {path}: another version");
            return None;
        }
        let Some(headers) = places.headers(&path) else {
            *broken = Some(format!("{path}: it is not a library"));
            return None;
        };
        let is_core = |name: &String| GL_CORES.iter().any(|core| name.starts_with(core));
        let why = if headers.abi != Some(abi) {
            "for another machine"
        } else if catalogue::is_tls(path.file_name()) && headers.note != Some(TLS_ABI) {
            "for another thread library"
        } else if pattern.is_legacy_gl() && !headers.needed.iter().any(is_core) {
            "not NVIDIA's"
        } else {
            return Some(path);
        };
        debug!("skipping {path}: {why}");
        None
    }

    /// Returns true if a file's name has the version.
    fn fits(&self, path: &HostPath) -> bool {
        let name = path.file_name().as_bytes();
        self.version.is_none_or(|version| {
            let stem = name.strip_suffix(version.as_bytes());
            stem.is_some_and(|stem| stem.ends_with(b"."))
        })
    }
}

/// Returns every library of a version in the directories where some were found, sorted by name in each.
pub(super) fn every(places: &mut Places<'_>, version: &str, abi: Abi) -> Vec<HostPath> {
    let homes = places.real_homes(abi);
    let mut found: Vec<HostPath> = Vec::new();
    for subdirectory in ["", "vdpau"] {
        // Two drivers' directories may have files of one name.
        let mut names = HashSet::new();
        for directory in homes.iter().map(|home| home.join(subdirectory)) {
            for path in places.files(&directory, |name| has_version(name, version)) {
                let Some(headers) = places.headers(&path) else {
                    warn!("skipping {path}: it is not a library");
                    continue;
                };
                let is_known = found.contains(&path);
                // One directory may have the libraries of both widths.
                if headers.abi == Some(abi)
                    && !is_known
                    && names.insert(path.file_name().to_owned())
                {
                    found.push(path);
                }
            }
        }
    }
    found
}

/// Returns a library with its capability.
pub(super) fn described(path: HostPath, abi: Abi, version: &str) -> DriverFile {
    let name = path.file_name().to_string_lossy().into_owned();
    let file = match catalogue::library_of(path.file_name()) {
        Some(pattern) if has_version(&name, version) => pattern.file(path),
        // Those without the driver's version are of CUDA's compiler.
        _ if catalogue::is_unversioned(&name) => {
            DriverFile::new(path, FileClass::Library).of(Some(Capability::Compute))
        }
        // Libraries that the catalogue does not name are for graphics.
        _ => DriverFile::new(path, FileClass::Library).of(Some(Capability::Graphics)),
    };
    DriverFile { abi, ..file }
}

/// Records which libraries of the driver each one needs, by their files' names.
pub(super) fn connect(files: &mut [DriverFile], places: &mut Places<'_>) {
    let mut facts = |file: &DriverFile| {
        let headers = match file.class {
            FileClass::Library => places.headers(&file.path).unwrap_or_default(),
            _ => Rc::default(),
        };
        let name = file.path.file_name().to_string_lossy().into_owned();
        (name, headers)
    };
    let facts: Vec<(String, Rc<Headers>)> = files.iter().map(&mut facts).collect();
    let mut names: HashMap<(Abi, &str), &String> = HashMap::new();
    for (file, (name, headers)) in files.iter().zip(&facts) {
        let soname = headers.soname.as_deref();
        for known in [Some(name.as_str()), soname].into_iter().flatten() {
            names.entry((file.abi, known)).or_insert(name);
        }
    }
    for (file, (_, headers)) in files.iter_mut().zip(&facts) {
        let abi = file.abi;
        let known = |needed: &String| names.get(&(abi, needed.as_str())).copied().cloned();
        file.needs = headers.needed.iter().filter_map(known).collect();
    }
}

pub(super) fn link(name: &str, target: &str) -> FileLink {
    FileLink {
        name: name.into(),
        target: target.into(),
    }
}

/// Returns true if a name is `*.so.<version>`.
pub(super) fn has_version(name: &str, version: &str) -> bool {
    let stem = name.strip_suffix(version);
    stem.is_some_and(|stem| stem.ends_with(".so."))
}

fn is_of_wsl(path: &HostPath) -> bool {
    let bytes = path.as_path().as_os_str().as_bytes();
    bytes.windows(9).any(|part| part == b"/wsl/lib/")
}
