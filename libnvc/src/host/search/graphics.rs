//! Finds the files for graphics beyond the driver's libraries: EGL platforms, X.org modules, manifests and profiles.

use serde_json::Value;

use super::libraries::{connect, link};
use super::sonames::link_by_soname;
use super::{FileSearch, Search};
use crate::capability::Capability;
use crate::host::{Abi, DriverFile, FileClass, NamedLibrary, catalogue};
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

/// Directories with configuration files and shared data.
const ETC: &str = "/etc";
const DATA: [&str; 2] = ["/usr/local/share", "/usr/share"];

/// Size limit of a manifest; real ones have a few hundred bytes.
const MAX_MANIFEST: usize = 1 << 16;

/// Depth of the values in a manifest that are searched for names of libraries.
const MAX_DEPTH: usize = 8;

impl Search<'_> {
    /// Returns the files. `known` are the libraries that the container has anyway.
    pub(super) fn graphics(
        &mut self,
        wanted: &FileSearch,
        known: impl Fn(&HostPath) -> bool,
    ) -> Vec<DriverFile> {
        let graphics = Some(Capability::Graphics);
        let mut files = self.platforms();
        files.extend(self.xorg());
        let mut files: Vec<_> = files.into_iter().map(|file| file.of(graphics)).collect();
        let mut manifests = self.configuration(wanted);
        for manifest in &mut manifests {
            for library in self.libraries_of(manifest) {
                let is_new = files.iter().all(|file| file.path != library.path);
                if is_new && !known(&library.path) {
                    files.push(library);
                }
            }
        }
        files.extend(manifests);
        connect(&mut files, &mut self.places);
        link_by_soname(&mut files, &mut self.places, false);
        files
    }

    /// Returns the libraries of EGL's platforms, which are versioned independently, and Vulkan's producer.
    fn platforms(&mut self) -> Vec<DriverFile> {
        let library = |path| DriverFile::new(path, FileClass::Library);
        let platforms = catalogue::EGL_PLATFORMS.iter();
        let mut found: Vec<DriverFile> = platforms
            .flat_map(|stem| self.of_any_version(stem, "1"))
            .map(library)
            .collect();
        let producer = format!("libnvidia-vulkan-producer.so.{}", self.version);
        if let Some(path) = self.places.locate(&producer, Abi::Native) {
            let mut file = library(path);
            let target = file.path.file_name().to_string_lossy().into_owned();
            file.links
                .push(link("libnvidia-vulkan-producer.so", &target));
            found.push(file);
        }
        found
    }

    /// Returns the files of a library whose versions are its own: in the driver's directories, or as the loader finds it.
    pub(super) fn of_any_version(&mut self, stem: &str, soname: &str) -> Vec<HostPath> {
        // The real file's version usually has several parts; shorter names are links.
        let fits = |name: &str| {
            name.strip_prefix(stem)
                .is_some_and(|rest| rest.starts_with('.'))
        };
        for directory in self.places.real_homes(Abi::Native) {
            let found = self.places.files(&directory, fits);
            if !found.is_empty() {
                return found;
            }
        }
        let found = self.places.locate(&format!("{stem}.{soname}"), Abi::Native);
        found.into_iter().collect()
    }

    /// Returns the X.org driver and its GLX module.
    fn xorg(&mut self) -> Vec<DriverFile> {
        let modules = |base: HostPath| MODULES.map(|place| base.join(place));
        let of_driver = |directory: &HostPath| {
            let own = [directory.join("nvidia/xorg")];
            own.into_iter().chain(modules(directory.join("xorg")))
        };
        let homes = self.places.real_homes(Abi::Native);
        let own = homes.iter().flat_map(of_driver);
        let others = XORG.iter().flat_map(|base| modules(HostPath::new(base)));
        let places: Vec<HostPath> = own.chain(others).collect();
        let mut first = |name: &str| {
            let mut paths = places.iter().map(|place| place.join(name));
            let found = paths.find_map(|path| self.places.file(&path));
            found.map(|path| DriverFile::new(path, FileClass::XModule))
        };
        let driver = first("nvidia_drv.so");
        let glx = format!("libglxserver_nvidia.so.{}", self.version);
        let module = first(&glx).map(|mut file| {
            file.links.push(link("libglxserver_nvidia.so", &glx));
            file
        });
        driver.into_iter().chain(module).collect()
    }

    /// Returns configuration files, and files in the shared data directories: the usual ones, then those beside the
    /// driver's libraries.
    fn configuration(&mut self, wanted: &FileSearch) -> Vec<DriverFile> {
        let data = match wanted.data.as_slice() {
            [] => DATA.map(HostPath::new).to_vec(),
            given => given.to_vec(),
        };
        let directories: Vec<HostPath> = (wanted.configuration.iter().cloned())
            .chain([HostPath::new(ETC)])
            .chain(data)
            .chain(
                ["share", "etc"]
                    .iter()
                    .flat_map(|name| self.places.beside(name)),
            )
            .collect();
        let top = wanted.configuration.is_empty().then(|| HostPath::new("/"));
        let mut found = Vec::new();
        for wanted in catalogue::GRAPHICS_FILES {
            let name = wanted.path.replace("VERSION", self.version);
            let top = top.iter().filter(|_| wanted.in_root);
            let places = directories.iter().chain(top);
            let mut paths = places.map(|directory| directory.join(&name));
            let Some(path) = paths.find_map(|path| self.places.file(&path)) else {
                log::info!("missing {name}");
                continue;
            };
            let mut file = DriverFile::new(path, wanted.class).of(wanted.capability);
            let standard = ContainerPath::new(wanted.standard).join(&name);
            file.at = (standard.as_path() != file.path.as_path()).then_some(standard);
            found.push(file);
        }
        found
    }

    /// Returns the libraries that a manifest names: they are the driver's, whatever their names. Records absolute paths.
    fn libraries_of(&mut self, manifest: &mut DriverFile) -> Vec<DriverFile> {
        if manifest.class != FileClass::Config {
            return Vec::new();
        }
        let text = self.places.root.read(&manifest.path).unwrap_or_default();
        let names = match manifest.path.as_path().extension() {
            Some(kind) if kind == "json" => named(&text),
            Some(kind) if kind == "icd" => vec![String::from_utf8_lossy(&text).trim().to_owned()],
            _ => Vec::new(),
        };
        let mut found = Vec::new();
        for name in names {
            let path = match name.as_str() {
                "" => None,
                path if path.starts_with('/') => {
                    self.places.library(&HostPath::new(path), Abi::Native)
                }
                // Relative to the manifest, which is elsewhere in the container.
                path if path.contains('/') => None,
                name => self.places.locate(name, Abi::Native),
            };
            if let (Some(library), true) = (&path, name.starts_with('/')) {
                manifest.names.push(NamedLibrary {
                    at: ContainerPath::new(&name),
                    library: library.clone(),
                });
            }
            let library = path.map(|path| DriverFile::new(path, FileClass::Library));
            found.extend(
                library.map(|file| file.of(manifest.capability.or(Some(Capability::Compute)))),
            );
        }
        found
    }
}

/// Returns the names of libraries in a manifest.
fn named(manifest: &[u8]) -> Vec<String> {
    let manifest = manifest.get(..MAX_MANIFEST).unwrap_or(manifest);
    let mut names = Vec::new();
    if let Ok(value) = serde_json::from_slice(manifest) {
        collect(&value, MAX_DEPTH, &mut names);
    }
    names
}

fn collect(value: &Value, depth: usize, names: &mut Vec<String>) {
    let Some(depth) = depth.checked_sub(1) else {
        return;
    };
    match value {
        Value::Array(values) => values.iter().for_each(|value| collect(value, depth, names)),
        Value::Object(members) => {
            for (key, value) in members {
                match (key.as_str(), value) {
                    ("library_path", Value::String(name)) => names.push(name.clone()),
                    _ => collect(value, depth, names),
                }
            }
        }
        _ => {}
    }
}
