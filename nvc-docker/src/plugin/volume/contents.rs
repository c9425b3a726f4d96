//! Finds the contents of the driver's volume with libnvc's search. The names are those of its catalogue, but for the
//! exceptions here.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};

use libnvc::host::search::{self, Contents, FileSearch};
use libnvc::host::{Abi, DriverRoot, FileClass, catalogue};
use libnvc::library_file::LibraryFile;
use libnvc::{HostPath, Result};
use nvc_hostfile::programs;

/// Programs of libnvc's catalogue that configure the machine: the volume lacks them.
const EXCLUDED_PROGRAMS: [&str; 4] = [
    "nv-fabricmanager",
    "nvidia-imex",
    "nvidia-imex-ctl",
    "nvidia-xconfig",
];

/// Libraries of libnvc's catalogue that the volume lacks, as upstream's does.
const EXCLUDED_LIBRARIES: [&str; 6] = [
    "libcudadebugger.so",
    "libdxcore.so",
    "libnvidia-cbl.so",
    "libnvidia-cfg.so",
    "libnvidia-nscq.so",
    "libnvidia-tileiras.so",
];

/// Libraries beside those of the catalogue, as in upstream's volume: GLVND's, which newer images have themselves, and
/// two whose names have no version of the driver.
const EXTRA_LIBRARIES: [&str; 5] = [
    "libGLX.so",
    "libGLdispatch.so",
    "libOpenGL.so",
    "libnvidia-egl-wayland.so",
    "libnvidia-nvvm70.so",
];

/// The names of GL libraries of both kinds, and of the others that the search does not find by the version.
const FURTHER_LIBRARIES: [&str; 8] = [
    "libGL.so.1",
    "libEGL.so.1",
    "libGLESv1_CM.so.1",
    "libGLESv2.so.2",
    "libGLX.so.0",
    "libGLdispatch.so.0",
    "libOpenGL.so.0",
    "libnvidia-egl-wayland.so.1",
];

/// Libraries that NVIDIA's GL libraries need. Another vendor's libraries of the same names do not need them.
const NVIDIA_DEPENDENCIES: [&str; 3] = [
    "libnvidia-glcore.so",
    "libnvidia-eglcore.so",
    "libGLdispatch.so",
];

/// The minimum kernel of the newer of two libraries for thread-local storage.
const NEWER_TLS: [u32; 3] = [2, 3, 99];

/// An entry of the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its path in the volume.
    pub(super) place: PathBuf,
    pub(super) what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The file at this path.
    File(PathBuf),
    /// A link to a file in the same directory.
    Link(String),
}

/// Returns the files of a driver version.
///
/// # Errors
/// There is no library of that version.
pub(super) fn find(version: &str) -> Result<Vec<Entry>> {
    let path = std::env::var_os("PATH").filter(|path| !path.is_empty());
    let directories = programs::directories(path.as_deref());
    let wanted = FileSearch {
        programs: directories.iter().map(HostPath::new).collect(),
        further: FURTHER_LIBRARIES.to_vec(),
        ..FileSearch::new(Contents::All)
    };
    let root = DriverRoot::open(Path::new("/"))?;
    let driver = search::find(&root, Some(version), &wanted)?;
    let mut layout = Layout::default();
    for file in driver.of_class(FileClass::Program) {
        let name = catalogue::program_of(file.path.file_name()).map(|known| known.name);
        if name.is_some_and(|name| !EXCLUDED_PROGRAMS.contains(&name)) {
            layout.add_file("bin", file.path.as_path());
        }
    }
    let libraries = driver.files.iter().chain(&driver.graphics);
    for file in libraries.filter(|file| file.class == FileClass::Library) {
        if is_listed(file.path.file_name()) {
            add_library(&mut layout, file.abi, file.path.as_path());
        }
    }
    Ok(layout.entries)
}

/// Returns true if the volume has a library: most of libnvc's catalogue.
fn is_listed(name: &OsStr) -> bool {
    let known = catalogue::library_of(name);
    known.is_some_and(|known| !EXCLUDED_LIBRARIES.contains(&known.name))
        || EXTRA_LIBRARIES
            .iter()
            .any(|more| name.as_encoded_bytes().starts_with(more.as_bytes()))
}

fn add_library(layout: &mut Layout, abi: Abi, file: &Path) {
    let Some(facts) = File::open(file)
        .ok()
        .and_then(|file| LibraryFile::read(file, &NVIDIA_DEPENDENCIES))
    else {
        // Not a library: nothing could load it.
        return;
    };
    let Some(name) = file.file_name() else {
        return;
    };
    let known = catalogue::library_of(name);
    // It has one variant per thread-local storage model.
    let is_wanted = if known.is_some_and(|known| known.name == "libnvidia-tls.so") {
        facts.kernel.is_none_or(|version| version == NEWER_TLS)
    } else {
        facts.needs || !catalogue::is_legacy_gl(name)
    };
    let (true, Some(name)) = (is_wanted, name.to_str()) else {
        return;
    };
    let directory = match abi {
        Abi::Native => "lib64",
        Abi::Compat32 => "lib",
    };
    if !layout.add_file(directory, file) {
        return;
    }
    let Some(soname) = facts.soname.and_then(|soname| soname.into_string().ok()) else {
        return;
    };
    layout.add_link(directory, &soname, name);
    let links = known.map_or(&[][..], |known| known.links);
    for (link, _) in links {
        layout.add_link(directory, link, name);
    }
}

/// Entries with distinct names.
#[derive(Debug, Default)]
struct Layout {
    entries: Vec<Entry>,
    places: BTreeSet<PathBuf>,
}

impl Layout {
    /// Adds a file under its own name, unless that name is taken.
    fn add_file(&mut self, directory: &str, file: &Path) -> bool {
        let Some(name) = file.file_name() else {
            return false;
        };
        self.add(Path::new(directory).join(name), What::File(file.to_owned()))
    }

    fn add_link(&mut self, directory: &str, name: &str, target: &str) {
        // A name with a slash would leave the directory.
        if !name.is_empty() && !name.contains('/') && name != "." && name != ".." {
            self.add(
                Path::new(directory).join(name),
                What::Link(target.to_owned()),
            );
        }
    }

    fn add(&mut self, place: PathBuf, what: What) -> bool {
        let is_new = self.places.insert(place.clone());
        if is_new {
            self.entries.push(Entry { place, what });
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn catalogue_names() {
        for (name, expected) in [
            ("libcuda.so.1", true),
            ("libcuda.so", true),
            ("libcudadebugger.so.1", false),
            ("libnvidia-cfg.so.1", false),
            ("libnvidia-nvvm70.so.4", true),
            ("libOpenCL.so.1", false),
            ("libGL.so.1", true),
            ("libGLU.so.1", false),
            ("libGLdispatch.so.0", true),
            ("libnvidia-egl-wayland.so.1", true),
            ("libnvidia-egl-gbm.so.1", false),
        ] {
            assert_eq!(is_listed(OsStr::new(name)), expected, "{name}");
        }
    }

    #[test]
    fn exceptions_are_names_of_the_catalogue() {
        let is_known = |name: &str, table: &[catalogue::Pattern]| {
            table.iter().any(|pattern| pattern.name == name)
        };
        let mut less = EXCLUDED_PROGRAMS.iter();
        assert!(less.all(|name| is_known(name, catalogue::PROGRAMS)));
        let mut less = EXCLUDED_LIBRARIES.iter();
        assert!(less.all(|name| is_known(name, catalogue::LIBRARIES)));
        let mut more = EXTRA_LIBRARIES.iter();
        assert!(!more.any(|name| is_known(name, catalogue::LIBRARIES)));
    }

    #[test]
    fn the_first_of_a_name_stays() {
        let mut layout = Layout::default();
        assert!(layout.add_file("lib64", Path::new("/a/libx.so.1")));
        assert!(!layout.add_file("lib64", Path::new("/b/libx.so.1")));
        assert!(layout.add_file("lib", Path::new("/b/libx.so.1")));
        layout.add_link("lib64", "libx.so.1", "libx.so.9");
        layout.add_link("lib64", "../evil", "x");
        assert_eq!(layout.entries.len(), 2);
    }
}
