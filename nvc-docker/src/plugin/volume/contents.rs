//! Finds the contents of the driver's volume: programs by the search path, libraries by the loader's cache.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use libnvc::library_file::LibraryFile;

use super::sections::Sections;
use crate::failure::Result;
use crate::libraries::{self, Library, Width};

/// Programs, except those that configure the machine.
const PROGRAMS: [&str; 5] = [
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-smi",
];

/// Libraries, by name prefix up to `.so`. Those after the empty line came with later drivers.
const LIBRARIES: &str = "
    libnvidia-ml libcuda libnvidia-ptxjitcompiler libnvidia-fatbinaryloader libnvidia-opencl libnvidia-compiler
    libvdpau_nvidia libnvidia-encode libnvcuvid libnvidia-fbc libnvidia-ifr
    libGL libGLX libOpenGL libGLESv1_CM libGLESv2 libEGL libGLdispatch
    libGLX_nvidia libEGL_nvidia libGLESv2_nvidia libGLESv1_CM_nvidia
    libnvidia-eglcore libnvidia-egl-wayland libnvidia-glcore libnvidia-tls libnvidia-glsi

    libnvidia-nvvm libnvidia-nvvm70 libnvidia-gpucomp libnvidia-allocator libnvidia-opticalflow libnvidia-rtcore
    libnvoptix libnvidia-ngx libnvidia-glvkspirv libnvidia-pkcs11 libnvidia-pkcs11-openssl3";

/// Library names that other vendors use too.
const OF_ANY_VENDOR: [&str; 4] = ["EGL", "GL", "GLESv1_CM", "GLESv2"];

/// Libraries that NVIDIA's versions of those need.
const NVIDIAS: [&str; 3] = [
    "libnvidia-glcore.so",
    "libnvidia-eglcore.so",
    "libGLdispatch.so",
];

/// The minimum kernel of the newer of two libraries for thread-local storage.
const NEWER_TLS: [u32; 2] = [3, 99];

/// Search path of a plugin that was started without one.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

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

/// Returns the machine's current driver files.
///
/// # Errors
/// If the loader's cache cannot be read.
pub(super) fn find() -> Result<Vec<Entry>> {
    let mut layout = Layout::default();
    for program in PROGRAMS {
        if let Some(file) = in_search_path(program) {
            layout.add_file("bin", &file);
        }
    }
    let mut seen = BTreeSet::new();
    for library in libraries::all()?
        .iter()
        .filter(|library| is_listed(library))
    {
        let Ok(file) = library.path.canonicalize() else {
            continue;
        };
        if seen.insert(file.clone()) {
            add_library(&mut layout, library.width, &file);
        }
    }
    Ok(layout.entries)
}

fn is_listed(library: &Library) -> bool {
    LIBRARIES.split_whitespace().any(|name| {
        let rest = library.name.strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with(".so"))
    })
}

/// Returns the first executable file of a name, with links resolved.
fn in_search_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").filter(|path| !path.is_empty());
    let path = path.unwrap_or_else(|| PATH.into());
    let mut places = std::env::split_paths(&path).filter(|place| place.is_absolute());
    places.find_map(|place| {
        let file = place.join(name).canonicalize().ok()?;
        let metadata = fs::metadata(&file).ok()?;
        (metadata.is_file() && metadata.permissions().mode() & 0o111 != 0).then_some(file)
    })
}

fn add_library(layout: &mut Layout, width: Width, file: &Path) {
    let Some((soname, is_nvidias)) = names(file) else {
        // Not a library: nothing could load it.
        return;
    };
    let Some(name) = file.file_name().and_then(|name| name.to_str()) else {
        return;
    };
    let is_wanted = match plain_name(name) {
        Some(plain) if OF_ANY_VENDOR.contains(&plain) => is_nvidias,
        Some("nvidia-tls") => Sections::read(file)
            .and_then(|sections| sections.kernel())
            .is_none_or(|version| version == NEWER_TLS),
        _ => true,
    };
    if !is_wanted {
        return;
    }
    let directory = match width {
        Width::Wide => "lib64",
        Width::Narrow => "lib",
    };
    if !layout.add_file(directory, file) {
        return;
    }
    let Some(soname) = soname else {
        return;
    };
    layout.add_link(directory, &soname, name);
    if soname.starts_with("libcuda") {
        let bare = soname.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
        layout.add_link(directory, bare, name);
    }
    if soname.starts_with("libGLX_nvidia") {
        layout.add_link(directory, "libGLX_indirect.so.0", name);
    }
}

/// Returns a library's SONAME, and whether it needs one of NVIDIA's; None if it is not a library.
fn names(file: &Path) -> Option<(Option<String>, bool)> {
    let facts = LibraryFile::read(File::open(file).ok()?, &NVIDIAS)?;
    match facts.soname {
        // If the segments' string table is invalid, the sections' may be valid.
        Some(soname) if soname.is_empty() => Sections::read(file)?.names(&NVIDIAS),
        soname => Some((
            soname.and_then(|soname| soname.into_string().ok()),
            facts.needs,
        )),
    }
}

/// Returns the name of `libNAME.so.VERSION`; None for other file names.
fn plain_name(file: &str) -> Option<&str> {
    let (name, version) = file.strip_prefix("lib")?.split_once(".so")?;
    let in_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let in_version = |c: char| c.is_ascii_digit() || c == '.';
    (!name.is_empty() && name.chars().all(in_name) && version.chars().all(in_version))
        .then_some(name)
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
    fn names_of_libraries() {
        for (file, name) in [
            ("libGL.so.375.66", Some("GL")),
            ("libGL.so.1.2.0", Some("GL")),
            ("libnvidia-tls.so.375.66", Some("nvidia-tls")),
            ("libGL.so", Some("GL")),
            ("libGL.so.1x", None),
            ("GL.so.1", None),
            ("lib.so.1", None),
        ] {
            assert_eq!(plain_name(file), name, "{file}");
        }
    }

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
        ] {
            let library = Library {
                width: Width::Wide,
                name: name.into(),
                path: PathBuf::new(),
            };
            assert_eq!(is_listed(&library), expected, "{name}");
        }
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
