//! Finds the driver's files. This is the only search: for requests, which get what the catalogue names; for
//! specifications, which get all; and for programs that look at the machine.
//!
//! It looks in one source after the other, for names that are still missing. A library counts if it has
//! the driver's version; what it needs, and what manifests name, belongs to it.

use super::{Abi, Daemon, DriverFile, DriverInfo, DriverRoot, FileClass, WslDriver, catalogue};
use crate::error::{Error, ErrorKind, Result};
use crate::options::DriverOptions;
use crate::path::HostPath;

mod firmware;
mod graphics;
mod headers;
mod libraries;
pub(super) mod missing;
mod places;
mod programs;
mod sonames;

use libraries::{Wanted, connect, described, every};
use places::{Places, Source, without_duplicates};
pub(super) use places::{read_cache, usual};
pub(super) use programs::path_of;
use sonames::link_by_soname;

/// Which files to find.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Contents {
    /// Those that requests can have: the catalogue's.
    Catalogue(DriverOptions),
    /// All, also those that only the host's programs use.
    #[default]
    All,
    /// The files for graphics that the catalogue does not name.
    Graphics,
}

/// Files to find, and where the caller wants to search first: paths below the driver root.
#[derive(Clone, Debug, Default)]
pub struct FileSearch {
    /// The files.
    pub contents: Contents,
    /// Directories with libraries.
    pub libraries: Vec<HostPath>,
    /// A loader cache to use before the usual directories.
    pub ldcache: Option<HostPath>,
    /// Directories with configuration files.
    pub configuration: Vec<HostPath>,
    /// Directories with shared data; the usual ones if empty.
    pub data: Vec<HostPath>,
    /// Directories with programs, searched last: the caller's `PATH`.
    pub programs: Vec<HostPath>,
    /// Include libraries that images usually contain.
    pub explicit: bool,
    /// Names of other libraries to include if they exist.
    pub further: Vec<&'static str>,
    /// Omit 32-bit libraries.
    pub no_compat32: bool,
    /// Omit the daemons' sockets.
    pub no_sockets: bool,
}

impl FileSearch {
    /// Looks for these files in the usual places.
    pub fn new(contents: Contents) -> Self {
        Self {
            contents,
            ..Self::default()
        }
    }

    /// Returns the places to search, those that the caller names first.
    fn places<'r>(&self, root: &'r DriverRoot) -> Result<Places<'r>> {
        let mut places = Places::new(root, &self.libraries);
        if let Some(ldcache) = &self.ldcache {
            places.use_cache(ldcache)?;
        }
        Ok(places)
    }
}

/// Returns the files of a driver version, or of the [`version`] in the names of its libraries. The caller adds devices and
/// other versions.
///
/// # Errors
/// A cache named by the caller that is missing or malformed. No version is given, and no library has one. For all files:
/// there is no library of that version.
pub fn find(root: &DriverRoot, version: Option<&str>, wanted: &FileSearch) -> Result<DriverInfo> {
    let mut places = wanted.places(root)?;
    let version = match version {
        Some(version) => version.to_owned(),
        None => version_in(&mut places).ok_or_else(|| {
            let text = "the driver's version is unknown: no libcuda.so and no libnvidia-ml.so";
            let error = Error::new(ErrorKind::NotFound, text);
            error.hint(DriverRoot::without_driver(root.path()))
        })?,
    };
    let mut search = Search {
        places,
        version: &version,
    };
    let mut info = match wanted.contents {
        Contents::Catalogue(options) => search.catalogue(options, wanted, &[]),
        Contents::All => search.all(wanted)?,
        Contents::Graphics => search.only_graphics(wanted),
    };
    info.versions.driver = version;
    Ok(info)
}

/// Returns the catalogue's files under WSL2, where libraries have no version.
///
/// # Errors
/// A cache named by the caller that is missing or malformed.
pub(super) fn find_wsl(
    root: &DriverRoot,
    options: DriverOptions,
    wanted: &FileSearch,
    wsl: &[WslDriver],
) -> Result<DriverInfo> {
    let mut search = Search {
        places: wanted.places(root)?,
        version: "",
    };
    Ok(search.catalogue(options, wanted, wsl))
}

/// Returns the files of a WSL2 host's driver store, and the library that locates it.
pub fn of_store(root: &DriverRoot, wsl: &WslDriver) -> DriverInfo {
    let mut places = Places::new(root, &[]);
    let mut files: Vec<DriverFile> = Vec::new();
    let dxcore = places.file(&HostPath::new(places::WSL).join("libdxcore.so"));
    files.extend(dxcore.map(|path| DriverFile::new(path, FileClass::Library)));
    let is_wanted = |name: &str| {
        name.contains(".so")
            || name.ends_with(".bin")
            || name.ends_with(".dll")
            || name == "nvidia-smi"
    };
    for path in places.files(&wsl.store, is_wanted) {
        files.push(DriverFile::new(path, FileClass::Library));
    }
    DriverInfo {
        files,
        wsl: Some(wsl.clone()),
        ..DriverInfo::default()
    }
}

/// Returns the version in the file name of the CUDA library, or else of the management library.
pub fn version(root: &DriverRoot, directories: &[HostPath]) -> Option<String> {
    version_in(&mut Places::new(root, directories))
}

/// Returns true if the driver has a library of this name, such as NVML.
pub fn has_library(root: &DriverRoot, name: &str) -> bool {
    library(root, name, &[]).is_some()
}

/// Returns a library's real path, by its name.
pub(super) fn library(root: &DriverRoot, name: &str, directories: &[HostPath]) -> Option<HostPath> {
    Places::new(root, directories).locate(name, Abi::Native)
}

/// Records which libraries of the driver others of them need, and their links, for callers that have only their paths.
pub fn connect_files(root: &DriverRoot, files: &mut [DriverFile]) {
    let mut places = Places::new(root, &[]);
    connect(files, &mut places);
    link_by_soname(files, &mut places, false);
}

fn version_in(places: &mut Places<'_>) -> Option<String> {
    let libraries = ["libcuda.so.", "libnvidia-ml.so."];
    let version = |path: &HostPath, prefix: &str| {
        let name = path.file_name().to_string_lossy().into_owned();
        let version = name.strip_prefix(prefix)?;
        version.contains('.').then(|| version.to_owned())
    };
    // A link leads to the newest of two drivers; the names in a directory do not say which is installed.
    for prefix in libraries {
        let found = places.locate(&format!("{prefix}1"), Abi::Native);
        if let Some(version) = found.and_then(|path| version(&path, prefix)) {
            return Some(version);
        }
    }
    for prefix in libraries {
        for source in [Source::Named, Source::Usual] {
            for directory in places.directories(source, Abi::Native) {
                let named = places.files(&directory.listed, |name| name.starts_with(prefix));
                if let Some(version) = named.iter().find_map(|path| version(path, prefix)) {
                    return Some(version);
                }
            }
        }
    }
    None
}

/// State of a search for the files of a version.
struct Search<'s> {
    places: Places<'s>,
    version: &'s str,
}

impl Search<'_> {
    /// Returns what the catalogue names: programs, native libraries, 32-bit libraries, firmware.
    fn catalogue(
        &mut self,
        options: DriverOptions,
        wanted: &FileSearch,
        wsl: &[WslDriver],
    ) -> DriverInfo {
        let is_native = wsl.is_empty();
        let patterns = Wanted {
            patterns: catalogue::libraries(options, !is_native),
            version: is_native.then_some(self.version),
        };
        let mut libraries = Vec::new();
        for abi in Abi::ALL {
            for (pattern, library) in patterns.find(&mut self.places, abi) {
                libraries.extend(library.map(|library| DriverFile {
                    abi,
                    ..pattern.file(library)
                }));
            }
        }
        connect(&mut libraries, &mut self.places);
        link_by_soname(&mut libraries, &mut self.places, false);
        let named = catalogue::programs(options).into_iter();
        let (mut files, by_path) =
            programs::programs(&mut self.places, named, &wanted.programs, wsl);
        files.extend(libraries);
        if is_native && !options.contains(DriverOptions::NO_GSP_FIRMWARE) {
            files.extend(firmware::firmware(&mut self.places, self.version));
        }
        DriverInfo {
            files,
            by_path,
            directories: self.places.real_homes(Abi::Native),
            wsl: wsl.first().cloned(),
            ..DriverInfo::default()
        }
    }

    /// Finds the directories of the driver's libraries.
    fn settle(&mut self) {
        let patterns = Wanted {
            patterns: catalogue::libraries(DriverOptions::empty(), false),
            version: Some(self.version),
        };
        for abi in Abi::ALL {
            patterns.find(&mut self.places, abi);
        }
    }

    /// Returns every file of the version. 32-bit libraries come first: in an image whose /usr/lib64 is a link to /usr/lib,
    /// both have one name, and the last mount counts.
    ///
    /// # Errors
    /// There is no library of the version.
    fn all(&mut self, wanted: &FileSearch) -> Result<DriverInfo> {
        self.settle();
        if self.places.real_homes(Abi::Native).is_empty() {
            let found = version_in(&mut self.places);
            return Err(missing::libraries(
                self.places.root,
                self.version,
                found.as_deref(),
            ));
        }
        let mut files = Vec::new();
        for abi in [Abi::Compat32, Abi::Native] {
            if abi == Abi::Compat32 && wanted.no_compat32 {
                continue;
            }
            for library in every(&mut self.places, self.version, abi) {
                files.push(described(library, abi, self.version));
            }
        }
        for (abi, path) in self.extras(wanted) {
            files.push(described(path, abi, self.version));
        }
        connect(&mut files, &mut self.places);
        link_by_soname(&mut files, &mut self.places, true);
        let graphics = self.graphics(wanted, |path| files.iter().any(|file| file.path == *path));
        let named = catalogue::programs_of_everything();
        let (programs, by_path) =
            programs::programs(&mut self.places, named, &wanted.programs, &[]);
        files.extend(programs);
        files.extend(firmware::firmware(&mut self.places, self.version));
        Ok(DriverInfo {
            files,
            by_path,
            graphics,
            directories: self.places.real_homes(Abi::Native),
            daemons: if wanted.no_sockets {
                Vec::new()
            } else {
                Daemon::ALL.to_vec()
            },
            ..DriverInfo::default()
        })
    }

    /// Returns the files for graphics that a container with the catalogue's lacks.
    fn only_graphics(&mut self, wanted: &FileSearch) -> DriverInfo {
        self.settle();
        let is_in_catalogue = |path: &HostPath| catalogue::library_of(path.file_name()).is_some();
        let graphics = self.graphics(wanted, is_in_catalogue);
        DriverInfo {
            graphics,
            ..DriverInfo::default()
        }
    }

    /// Returns libraries without the driver's version, and those that the caller names.
    fn extras(&mut self, wanted: &FileSearch) -> Vec<(Abi, HostPath)> {
        let mut paths = Vec::new();
        for (stem, soname) in catalogue::UNVERSIONED {
            let mut found = self.of_any_version(stem, soname);
            // A package that gives it a version may be beside another driver's.
            let version = self.version;
            let is_ours = |path: &HostPath| {
                libraries::has_version(&path.file_name().to_string_lossy(), version)
            };
            if found.iter().any(is_ours) {
                found.retain(is_ours);
            }
            paths.extend(found);
        }
        let explicit = catalogue::EXPLICIT.iter().filter(|_| wanted.explicit);
        for name in explicit.chain(&wanted.further) {
            paths.extend(self.places.locate(name, Abi::Native));
        }
        let paths = without_duplicates(paths).into_iter();
        let mut found: Vec<_> = paths.map(|path| (Abi::Native, path)).collect();
        if !wanted.no_compat32 {
            for name in &wanted.further {
                let narrow = self.places.locate(name, Abi::Compat32);
                found.extend(narrow.map(|path| (Abi::Compat32, path)));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests;
