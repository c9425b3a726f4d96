//! Finds the files for graphics beyond the driver's libraries: EGL platforms, X.org modules, configuration files.

use super::{Everything, FileSearch, has_version, link};
use crate::capability::Capability;
use crate::host::{DriverFile, FileClass, HostLink, catalogue};
use crate::path::{ContainerPath, HostPath};

/// Directories of X.org modules, relative to a directory `xorg` or similar.
const MODULES: [&str; 4] = [
    "modules/drivers",
    "modules/extensions",
    "modules/updates/drivers",
    "modules/updates/extensions",
];

/// Directories that contain X.org modules, besides the driver's.
const XORG: [&str; 4] = [
    "/usr/lib/xorg",
    "/usr/lib64/xorg",
    "/usr/X11R6/lib",
    "/usr/X11R6/lib64",
];

/// The file that GBM loads as the driver's backend, and its link target.
const GBM: (&str, &str) = ("gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1");

/// Directories with configuration files and shared data.
const ETC: &str = "/etc";
const DATA: [&str; 2] = ["/usr/local/share", "/usr/share"];

impl Everything<'_> {
    /// Returns the files, and links that belong to none of them.
    pub(super) fn graphics(&mut self, wanted: &FileSearch) -> (Vec<DriverFile>, Vec<HostLink>) {
        let graphics = Some(Capability::Graphics);
        let mut files = self.platforms();
        files.extend(self.xorg());
        let mut files: Vec<_> = files.into_iter().map(|file| file.of(graphics)).collect();
        files.extend(self.configuration(wanted));
        (files, self.gbm().into_iter().collect())
    }

    /// Returns the libraries of EGL's platforms, which are versioned independently, and Vulkan's producer.
    fn platforms(&mut self) -> Vec<DriverFile> {
        let library = |path| DriverFile::new(path, FileClass::Library);
        let mut found = Vec::new();
        for stem in catalogue::EGL_PLATFORMS {
            // The real file's version has several parts; shorter names are links.
            let is_real = |name: &str| {
                let version = name.strip_prefix(stem).unwrap_or_default();
                has_version(name, stem) && version.matches('.').count() > 1
            };
            found.extend(self.search.locate(is_real).into_iter().map(library));
        }
        let producer = format!("libnvidia-vulkan-producer.so.{}", self.version);
        if let Some(path) = self.first(&producer) {
            let mut file = library(path);
            let target = file.path.file_name().to_string_lossy().into_owned();
            file.links
                .push(link("libnvidia-vulkan-producer.so", &target));
            found.push(file);
        }
        found
    }

    /// Returns the first library of a name.
    fn first(&mut self, library: &str) -> Option<HostPath> {
        let found = self.search.locate(|name| name == library);
        found.into_iter().next()
    }

    /// Returns the X.org driver and its GLX module.
    fn xorg(&mut self) -> Vec<DriverFile> {
        let modules = |base: HostPath| MODULES.map(|place| base.join(place));
        let of_driver = |directory: &HostPath| {
            let own = [directory.join("nvidia/xorg")];
            own.into_iter().chain(modules(directory.join("xorg")))
        };
        let own = self.directories.iter().flat_map(of_driver);
        let others = XORG.iter().flat_map(|base| modules(HostPath::new(base)));
        let places: Vec<HostPath> = own.chain(others).collect();
        let mut first = |name: &str| {
            let mut paths = places.iter().map(|place| place.join(name));
            let found = paths.find_map(|path| self.search.file(&path));
            found.map(|path| DriverFile::new(path, FileClass::Library))
        };
        let driver = first("nvidia_drv.so");
        let glx = format!("libglxserver_nvidia.so.{}", self.version);
        let module = first(&glx).map(|mut file| {
            file.links.push(link("libglxserver_nvidia.so", &glx));
            file
        });
        driver.into_iter().chain(module).collect()
    }

    /// Returns configuration files, and files in the shared data directories.
    fn configuration(&mut self, wanted: &FileSearch) -> Vec<DriverFile> {
        let data = match wanted.data.as_slice() {
            [] => DATA.map(HostPath::new).to_vec(),
            given => given.to_vec(),
        };
        let usual = std::iter::once(HostPath::new(ETC)).chain(data);
        let (directories, top) = match wanted.configuration.as_slice() {
            [] => (usual.collect(), Some(HostPath::new("/"))),
            given => (given.to_vec(), None),
        };
        let mut found = Vec::new();
        for wanted in catalogue::GRAPHICS_FILES {
            let top = top.iter().filter(|_| wanted.in_root);
            let places = directories.iter().chain(top);
            let mut paths = places.map(|directory| directory.join(wanted.path));
            let Some(path) = paths.find_map(|path| self.search.file(&path)) else {
                log::info!("missing {}", wanted.path);
                continue;
            };
            let mut file = DriverFile::new(path, wanted.class).of(wanted.capability);
            let standard = ContainerPath::new(wanted.standard).join(wanted.path);
            file.at = (standard.as_path() != file.path.as_path()).then_some(standard);
            found.push(file);
        }
        found
    }

    /// Returns the link by which GBM finds the driver. If the driver's directories lack the library, another directory
    /// can only have one of another width.
    fn gbm(&mut self) -> Option<HostLink> {
        let allocator = self.first(&format!("libnvidia-allocator.so.{}", self.version))?;
        let directory = allocator.parent();
        self.directories.contains(&directory).then(|| HostLink {
            at: directory.join(GBM.0),
            target: GBM.1.into(),
        })
    }
}
