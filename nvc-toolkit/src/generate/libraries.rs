//! Finds the driver's libraries, and the links that programs find them by.

use std::path::{Path, PathBuf};

use libnvc::{Error, ErrorKind, HostPath, Result};

use super::tree::Tree;
use crate::driver_files::LIBRARY_DIRECTORIES;

/// Libraries that images usually bring along.
const EXPLICIT: [&str; 11] = [
    "libEGL.so",
    "libGL.so",
    "libGLESv1_CM.so",
    "libGLESv2.so",
    "libGLX.so",
    "libGLdispatch.so",
    "libOpenCL.so",
    "libOpenGL.so",
    "libnvidia-api.so",
    "libnvidia-egl-xcb.so",
    "libnvidia-egl-xlib.so",
];

/// How libraries are found.
#[derive(Debug)]
pub(super) struct Libraries<'a> {
    tree: &'a Tree,
    directories: Vec<PathBuf>,
    /// The directories of the loader's cache, for hosts that keep libraries elsewhere.
    cached: Vec<PathBuf>,
}

impl<'a> Libraries<'a> {
    pub(super) fn new(tree: &'a Tree, search: &[PathBuf]) -> Self {
        let (directories, cached) = match search {
            [] => (
                LIBRARY_DIRECTORIES.iter().map(PathBuf::from).collect(),
                cached(tree),
            ),
            given => (given.to_vec(), Vec::new()),
        };
        Self {
            tree,
            directories,
            cached,
        }
    }

    /// The libraries whose names fit a pattern: those of the usual directories, else those of the loader's cache.
    pub(super) fn locate(&self, pattern: &str) -> Vec<HostPath> {
        let found = self.in_directories(&self.directories, pattern);
        if found.is_empty() {
            self.in_directories(&self.cached, pattern)
        } else {
            found
        }
    }

    fn in_directories(&self, directories: &[PathBuf], pattern: &str) -> Vec<HostPath> {
        let mut found: Vec<HostPath> = Vec::new();
        for directory in directories {
            for file in self.tree.files(directory, pattern) {
                if !found.contains(&file) {
                    found.push(file);
                }
            }
        }
        found
    }

    /// The version that the names of the driver's libraries end with.
    pub(super) fn version(&self) -> Option<String> {
        ["libcuda.so.", "libnvidia-ml.so."]
            .iter()
            .find_map(|prefix| {
                let found = self.locate(&format!("{prefix}*.*"));
                let name = found.first()?.file_name().to_string_lossy().into_owned();
                name.strip_prefix(prefix).map(String::from)
            })
    }

    /// The directories that hold libraries of a version.
    pub(super) fn directories_of(&self, version: &str) -> Result<Vec<HostPath>> {
        let mut directories: Vec<HostPath> = Vec::new();
        for file in self.locate(&format!("lib*.so.{version}")) {
            let directory = file.parent();
            // A subdirectory of its own is found from the one above.
            if directory.file_name() != "vdpau" && !directories.contains(&directory) {
                directories.push(directory);
            }
        }
        if directories.is_empty() {
            let text = format!("there are no libraries of driver {version}");
            let error = Error::new(ErrorKind::NotFound, text);
            return Err(error.hint("the kernel module may be of another version than the libraries: reboot, or reload it"));
        }
        Ok(directories)
    }

    /// All libraries of a version in some directories.
    pub(super) fn of_version(
        &self,
        directories: &[HostPath],
        version: &str,
        explicit: bool,
    ) -> Vec<HostPath> {
        let mut found: Vec<HostPath> = Vec::new();
        let mut add = |files: Vec<HostPath>| {
            for file in files {
                if !found.contains(&file) {
                    found.push(file);
                }
            }
        };
        for directory in directories {
            add(self
                .tree
                .files(directory.as_path(), &format!("*.so.{version}")));
        }
        for directory in directories {
            add(self.tree.files(
                directory.join("vdpau").as_path(),
                &format!("*.so.{version}"),
            ));
        }
        add(self.locate("libnvidia-nvvm70.so.*"));
        if explicit {
            for name in EXPLICIT {
                add(self.locate(name).into_iter().take(1).collect());
            }
        }
        found
    }

    /// The links for some libraries: `TARGET::LINK`.
    pub(super) fn links(&self, libraries: &[HostPath], version: &str) -> Vec<String> {
        let mut links = Vec::new();
        for library in libraries {
            let directory = library.parent();
            let name = library.file_name().to_string_lossy().into_owned();
            let mut add = |target: &str, link: &str| {
                let link = format!("{target}::{}", directory.join(link));
                if !links.contains(&link) {
                    links.push(link);
                }
            };
            match name.strip_suffix(&format!(".so.{version}")) {
                Some("libcuda") => add("libcuda.so.1", "libcuda.so"),
                Some("libGLX_nvidia") => add(&name, "libGLX_indirect.so.0"),
                Some("libnvidia-opticalflow") => {
                    add("libnvidia-opticalflow.so.1", "libnvidia-opticalflow.so");
                }
                _ => {}
            }
            let is_link = |link: &str| self.tree.link(&directory.join(link)).is_some();
            let Some(soname) = self.tree.soname(library) else {
                continue;
            };
            if soname.contains('/') || soname.contains("::") {
                continue;
            }
            if soname != name && is_link(&soname) {
                add(&name, &soname);
            }
            let plain = name.split_once(".so").map(|(stem, _)| format!("{stem}.so"));
            if let Some(plain) =
                plain.filter(|plain| *plain != soname && *plain != name && is_link(plain))
            {
                add(&soname, &plain);
            }
        }
        links
    }
}

/// The directories that the loader's cache of the driver root names.
fn cached(tree: &Tree) -> Vec<PathBuf> {
    let Some(cache) = tree.real_file(Path::new("/etc/ld.so.cache")) else {
        return Vec::new();
    };
    let bytes = std::fs::read(tree.on_host(&cache)).unwrap_or_default();
    libnvc::host::cached_directories(&bytes)
}
