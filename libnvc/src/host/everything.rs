//! Finds all files of the driver, including those that only the host's programs use: the contents of a CDI
//! specification.
//!
//! `configure` gives containers the files that the catalogue names. A specification serves unknown images, so it lists
//! every library of the driver's version, with the host's links to it, and the files for graphics. That search takes
//! longer, so it runs only on request. It uses neither NVML nor the environment: the caller provides the directories and,
//! if known, the version.

use std::collections::HashSet;

use super::{
    Abi, Daemon, DriverFile, DriverInfo, DriverRoot, FileClass, FileLink, WslDriver, catalogue,
};
use crate::capability::Capability;
use crate::elf::Library;
use crate::error::{Error, ErrorKind, Result};
use crate::options::DriverOptions;
use crate::path::HostPath;

mod graphics;
mod others;
mod search;

use search::{Search, without_duplicates};

/// Directories to search, below the driver root, and files to omit.
#[derive(Clone, Debug, Default)]
pub struct FileSearch {
    /// Directories with libraries; the usual ones, then those of the loader's cache, if empty.
    pub libraries: Vec<HostPath>,
    /// Directories with configuration files; /etc, then `data`, if empty.
    pub configuration: Vec<HostPath>,
    /// Directories with shared data; the usual ones if empty.
    pub data: Vec<HostPath>,
    /// Directories with programs, searched before the usual ones.
    pub programs: Vec<HostPath>,
    /// Include libraries that images usually contain.
    pub explicit: bool,
    /// Names of other libraries to include if they exist.
    pub further: Vec<&'static str>,
    /// Omit the daemons' sockets.
    pub no_sockets: bool,
}

/// Returns all files of a driver version, or of the [`version`] in the names of its libraries. The caller adds devices and
/// other versions.
///
/// # Errors
/// There is no library of that version, or without one, none with a version.
pub fn find(root: &DriverRoot, version: Option<&str>, wanted: &FileSearch) -> Result<DriverInfo> {
    let mut search = Search::new(root, &wanted.libraries);
    let version = match version {
        Some(version) => version.to_owned(),
        None => version_in(&mut search).ok_or_else(|| {
            let text = "the driver's version is unknown: no libcuda.so and no libnvidia-ml.so";
            Error::new(ErrorKind::NotFound, text)
        })?,
    };
    let mut all = Everything {
        search,
        version: &version,
        directories: Vec::new(),
    };
    all.find_directories()?;
    let (graphics, graphics_links) = all.graphics(wanted);
    let mut files = all.libraries(wanted);
    all.log_missing(&files);
    files.extend(others::programs(&mut all.search, &wanted.programs));
    files.extend(others::firmware(&mut all.search, &version));
    let mut info = DriverInfo {
        files,
        graphics,
        graphics_links,
        directories: all.directories,
        daemons: if wanted.no_sockets {
            Vec::new()
        } else {
            Daemon::ALL.to_vec()
        },
        ..DriverInfo::default()
    };
    info.versions.driver = version;
    Ok(info)
}

/// Returns only the files for graphics.
///
/// # Errors
/// As [`find`].
pub fn graphics(root: &DriverRoot, version: &str, wanted: &FileSearch) -> Result<DriverInfo> {
    let mut all = Everything {
        search: Search::new(root, &wanted.libraries),
        version,
        directories: Vec::new(),
    };
    all.find_directories()?;
    let (graphics, graphics_links) = all.graphics(wanted);
    Ok(DriverInfo {
        graphics,
        graphics_links,
        ..DriverInfo::default()
    })
}

/// Returns the files of a WSL2 host's driver store, and the library that locates it.
pub fn of_store(root: &DriverRoot, wsl: &WslDriver) -> DriverInfo {
    let mut search = Search::new(root, &[]);
    let mut files: Vec<DriverFile> = Vec::new();
    let dxcore = search.file(&HostPath::new("/usr/lib/wsl/lib/libdxcore.so"));
    files.extend(dxcore.map(|path| DriverFile::new(path, FileClass::Library)));
    let is_wanted = |name: &str| {
        name.contains(".so")
            || name.ends_with(".bin")
            || name.ends_with(".dll")
            || name == "nvidia-smi"
    };
    for path in search.files(&wsl.store, is_wanted) {
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
    version_in(&mut Search::new(root, directories))
}

/// Returns true if the driver has a management library, NVML.
pub fn has_management_library(root: &DriverRoot) -> bool {
    let mut search = Search::new(root, &[]);
    !search.locate(|name| name == "libnvidia-ml.so.1").is_empty()
}

fn version_in(search: &mut Search<'_>) -> Option<String> {
    ["libcuda.so.", "libnvidia-ml.so."]
        .iter()
        .find_map(|prefix| {
            let has_parts = |name: &str| {
                let version = name.strip_prefix(prefix);
                version.is_some_and(|version| version.contains('.'))
            };
            let found = search.locate(has_parts);
            let name = found.first()?.file_name().to_string_lossy().into_owned();
            name.strip_prefix(prefix).map(String::from)
        })
}

struct Everything<'r> {
    search: Search<'r>,
    version: &'r str,
    /// The directories with libraries of the version.
    directories: Vec<HostPath>,
}

impl Everything<'_> {
    fn find_directories(&mut self) -> Result<()> {
        let version = self.version;
        let is_library = |name: &str| name.starts_with("lib") && ends_with(name, version);
        for file in self.search.locate(is_library) {
            let directory = file.parent();
            // It is found through its parent directory.
            if directory.file_name() != "vdpau" && !self.directories.contains(&directory) {
                self.directories.push(directory);
            }
        }
        if self.directories.is_empty() {
            let text = format!("there are no libraries of driver {version}");
            let error = Error::new(ErrorKind::NotFound, text);
            return Err(error.hint(
                "the kernel module may be of another version than the libraries: reboot, or reload it",
            ));
        }
        Ok(())
    }

    /// Returns every library of the version, with the links that lead to it.
    fn libraries(&mut self, wanted: &FileSearch) -> Vec<DriverFile> {
        let version = self.version;
        let mut paths: Vec<HostPath> = Vec::new();
        let directories = self.directories.clone();
        let vdpau = directories
            .iter()
            .map(|directory| directory.join("vdpau"))
            .collect();
        for directory in [directories, vdpau].concat() {
            paths.extend(
                self.search
                    .files(&directory, |name| ends_with(name, version)),
            );
        }
        for stem in catalogue::UNVERSIONED {
            paths.extend(self.search.locate(|name| has_version(name, stem)));
        }
        let explicit = catalogue::EXPLICIT.iter().filter(|_| wanted.explicit);
        for library in explicit.chain(&wanted.further) {
            paths.extend(
                self.search
                    .locate(|name| name == *library)
                    .into_iter()
                    .take(1),
            );
        }
        let mut linked = HashSet::new();
        let libraries = without_duplicates(paths).into_iter();
        libraries
            .map(|path| self.library(path, &mut linked))
            .collect()
    }

    /// Logs why libraries that drivers usually have are missing.
    fn log_missing(&mut self, found: &[DriverFile]) {
        if !log::log_enabled!(log::Level::Debug) {
            return;
        }
        for pattern in catalogue::libraries(DriverOptions::empty(), false) {
            let is_it = |name: &str| {
                let rest = name.strip_prefix(pattern.name);
                rest.is_some_and(|rest| rest.starts_with('.'))
            };
            let mut names = found.iter().map(|file| file.path.file_name());
            if names.any(|name| is_it(&name.to_string_lossy())) {
                continue;
            }
            let mut others = Vec::new();
            for directory in &self.directories {
                let names = self.search.names(directory).iter();
                others.extend(names.filter(|name| is_it(name)).cloned());
            }
            let why = if others.is_empty() {
                let all = self.directories.iter().map(ToString::to_string);
                format!("not in {}", all.collect::<Vec<_>>().join(", "))
            } else {
                let (others, version) = (others.join(", "), self.version);
                format!("{others} is no file of driver {version}")
            };
            log::debug!("missing library {}: {why}", pattern.name);
        }
    }

    /// Returns a library with the links beside it, except those of other libraries.
    fn library(
        &mut self,
        path: HostPath,
        linked: &mut HashSet<(HostPath, FileLink)>,
    ) -> DriverFile {
        let mut file = match catalogue::library_of(path.file_name()) {
            Some(pattern) if ends_with(&path.file_name().to_string_lossy(), self.version) => {
                pattern.file(path)
            }
            // Those without the driver's version are of CUDA's compiler.
            _ if is_unversioned(&path) => {
                DriverFile::new(path, FileClass::Library).of(Some(Capability::Compute))
            }
            // Libraries that the catalogue does not name are for graphics.
            _ => DriverFile::new(path, FileClass::Library).of(Some(Capability::Graphics)),
        };
        file.abi = Abi::Native;
        let directory = file.path.parent();
        file.links.extend(self.soname_links(&file.path));
        file.links
            .retain(|link| linked.insert((directory.clone(), link.clone())));
        file
    }

    /// Returns the links for the SONAME and for the unversioned name, if the host has them.
    fn soname_links(&mut self, path: &HostPath) -> Vec<FileLink> {
        let Some(soname) = soname(self.search.root, path) else {
            return Vec::new();
        };
        let directory = path.parent();
        let name = path.file_name().to_string_lossy();
        let mut is_link = |name: &str| self.search.has_link(&directory, name);
        let mut links = Vec::new();
        if soname != *name && is_link(&soname) {
            links.push(link(&soname, &name));
        }
        if let Some((stem, _)) = name.split_once(".so") {
            let development = format!("{stem}.so");
            if development != soname && development != *name && is_link(&development) {
                links.push(link(&development, &soname));
            }
        }
        links
    }
}

/// Returns the SONAME of a library, if it can be a link's name.
fn soname(root: &DriverRoot, path: &HostPath) -> Option<String> {
    let library = Library::open(root.open_file(path).ok()?).ok()?;
    let soname = String::from_utf8(library.soname().ok()??).ok()?;
    let is_plain = !matches!(soname.as_str(), "" | "." | "..")
        && !soname.contains('/')
        && !soname.contains("::");
    is_plain.then_some(soname)
}

fn link(name: &str, target: &str) -> FileLink {
    FileLink {
        name: name.into(),
        target: target.into(),
    }
}

/// Returns true if a library of the driver does not have its version in the name.
fn is_unversioned(path: &HostPath) -> bool {
    let name = path.file_name().to_string_lossy();
    let mut stems = catalogue::UNVERSIONED.iter();
    stems.any(|stem| has_version(&name, stem))
}

/// Returns true if a name is `*.so.<version>`.
fn ends_with(name: &str, version: &str) -> bool {
    let stem = name.strip_suffix(version);
    stem.is_some_and(|stem| stem.ends_with(".so."))
}

/// Returns true if a name is this library's followed by any version.
fn has_version(name: &str, stem: &str) -> bool {
    let version = name.strip_prefix(stem);
    version.is_some_and(|version| version.starts_with('.'))
}

#[cfg(test)]
mod tests;
