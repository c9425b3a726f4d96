//! Finds the files for graphics beyond the driver's libraries: EGL platforms, X.org modules, configuration files.

use super::{Everything, has_version, link};
use crate::capability::Capability;
use crate::host::{DriverFile, FileClass, HostLink, SearchPaths, catalogue};
use crate::path::{ContainerPath, HostPath};

/// Directories of X.org modules, relative to a library directory.
const XORG_PLACES: &[&str] = &[
    "nvidia/xorg",
    "xorg/modules/drivers",
    "xorg/modules/extensions",
    "xorg/modules/updates/drivers",
    "xorg/modules/updates/extensions",
];

/// Directories that may contain `xorg`, besides the driver's.
const XORG_DIRECTORIES: &[&str] = &[
    "/usr/lib",
    "/usr/lib64",
    "/usr/X11R6/lib",
    "/usr/X11R6/lib64",
];

/// The file that GBM loads as the driver's backend, and its link target.
const GBM: (&str, &str) = ("gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1");

impl Everything<'_> {
    pub(super) fn graphics(&mut self, search: &SearchPaths) -> Vec<DriverFile> {
        let mut files = self.platforms();
        files.extend(self.xorg());
        files.extend(self.data_files(search));
        let graphics = Some(Capability::Graphics);
        files.into_iter().map(|file| file.of(graphics)).collect()
    }

    /// Returns the libraries of EGL's platforms, which are versioned independently.
    fn platforms(&mut self) -> Vec<DriverFile> {
        let mut found = Vec::new();
        for directory in self.directories.clone() {
            let names = self.names(&directory);
            for stem in catalogue::EGL_PLATFORMS {
                // The real file's version has several parts; shorter names are links.
                let is_real = |name: &&std::ffi::OsString| {
                    let text = name.to_string_lossy();
                    let version = text.strip_prefix(stem).unwrap_or_default();
                    has_version(name, stem) && version.matches('.').count() > 1
                };
                for name in names.iter().filter(is_real) {
                    let path = self.file(&directory.join(name));
                    found.extend(path.map(|path| DriverFile::new(path, FileClass::Library)));
                }
            }
            let producer = format!("libnvidia-vulkan-producer.so.{}", self.version);
            if let Some(path) = self.file(&directory.join(&producer)) {
                let mut file = DriverFile::new(path, FileClass::Library);
                file.links.push(link(
                    "libnvidia-vulkan-producer.so".as_ref(),
                    producer.as_ref(),
                ));
                found.push(file);
            }
        }
        found
    }

    /// Returns the X.org driver and its GLX module.
    fn xorg(&mut self) -> Vec<DriverFile> {
        let own = self.directories.clone();
        let others = XORG_DIRECTORIES.iter().map(HostPath::new);
        let directories: Vec<_> = own.into_iter().chain(others).collect();
        let places = |name: &str| -> Vec<HostPath> {
            let below = |directory: &HostPath| {
                let places = XORG_PLACES.iter();
                places
                    .map(|place| directory.join(place).join(name))
                    .collect::<Vec<_>>()
            };
            directories.iter().flat_map(below).collect()
        };
        let glx = format!("libglxserver_nvidia.so.{}", self.version);
        let mut found = Vec::new();
        let mut first = |paths: Vec<HostPath>| paths.iter().find_map(|path| self.file(path));
        let driver = first(places("nvidia_drv.so"));
        found.extend(driver.map(|path| DriverFile::new(path, FileClass::Library)));
        if let Some(path) = first(places(&glx)) {
            let mut file = DriverFile::new(path, FileClass::Library);
            file.links
                .push(link("libglxserver_nvidia.so".as_ref(), glx.as_ref()));
            found.push(file);
        }
        found
    }

    /// Returns the files in shared data directories.
    fn data_files(&mut self, search: &SearchPaths) -> Vec<DriverFile> {
        let mut found = Vec::new();
        for wanted in catalogue::GRAPHICS_FILES {
            let top = wanted.in_root.then(|| HostPath::new("/"));
            let directories = search.data.iter().cloned().chain(top);
            let paths: Vec<_> = directories
                .map(|directory| directory.join(wanted.path))
                .collect();
            match paths.iter().find_map(|path| self.file(path)) {
                Some(path) => {
                    let mut file = DriverFile::new(path, wanted.class);
                    let standard = ContainerPath::new(wanted.standard).join(wanted.path);
                    file.at = (standard.as_path() != file.path.as_path()).then_some(standard);
                    found.push(file);
                }
                None => log::info!("missing {}", wanted.path),
            }
        }
        found
    }

    /// Returns the links that belong to no graphics file.
    pub(super) fn graphics_links(&mut self) -> Vec<HostLink> {
        let mut found = Vec::new();
        for directory in self.directories.clone() {
            let allocator = format!("libnvidia-allocator.so.{}", self.version);
            if self.file(&directory.join(allocator)).is_some() {
                found.push(HostLink {
                    at: directory.join(GBM.0),
                    target: GBM.1.into(),
                });
            }
        }
        found
    }
}
