//! Lists the names of the driver's files with their class, capability and links.
//!
//! This one table covers everything that is looked up by name. Its order is the order of `list` and of the mounts. A
//! library's name is a prefix, followed by a version. GLVND's dispatch libraries are absent on purpose, as in upstream:
//! images bring their own.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::file::{DriverFile, FileClass, FileLink};
use crate::capability::{Capabilities, Capability};
use crate::options::DriverOptions;
use crate::path::HostPath;

/// A name to look up.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    /// The file's name, or for a library the part of it before the version.
    pub name: &'static str,
    /// Class of the file.
    pub class: FileClass,
    /// The capability it belongs to; None means every container.
    pub capability: Option<Capability>,
    /// Links beside the file that ldconfig does not create.
    pub links: &'static [(&'static str, LinkTarget)],
    when: Condition,
}

/// Target of a link in the catalogue.
#[derive(Clone, Copy, Debug)]
pub enum LinkTarget {
    /// A fixed name.
    Name(&'static str),
    /// The file itself, including its version.
    TheFile,
}

/// Condition for looking up a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Always,
    /// If the GLVND vendor libraries are used.
    Glvnd,
    /// Without GLVND: names that Mesa uses too, see [`is_legacy_gl`].
    LegacyGl,
    /// On WSL2 hosts.
    Wsl,
    /// Unless MPS is excluded.
    Mps,
    /// If all files of the driver are requested.
    Everything,
    /// Unless all files of the driver are requested.
    NotEverything,
}

const fn library(name: &'static str, capability: Capability) -> Pattern {
    Pattern {
        name,
        class: FileClass::Library,
        capability: Some(capability),
        links: &[],
        when: Condition::Always,
    }
}

const fn program(name: &'static str, capability: Capability) -> Pattern {
    Pattern {
        class: FileClass::Program,
        ..library(name, capability)
    }
}

const fn when(when: Condition, pattern: Pattern) -> Pattern {
    Pattern { when, ..pattern }
}

const fn linked(links: &'static [(&'static str, LinkTarget)], pattern: Pattern) -> Pattern {
    Pattern { links, ..pattern }
}

/// Every library.
pub const LIBRARIES: &[Pattern] = {
    use Capability::{Compute, Graphics, Ngx, Utility, Video};
    use LinkTarget::{Name, TheFile};
    &[
        library("libnvidia-ml.so", Utility),
        library("libnvidia-cfg.so", Utility),
        library("libnvidia-nscq.so", Utility),
        linked(
            &[("libcuda.so", Name("libcuda.so.1"))],
            library("libcuda.so", Compute),
        ),
        library("libcudadebugger.so", Compute),
        library("libnvidia-opencl.so", Compute),
        library("libnvidia-gpucomp.so", Compute),
        library("libnvidia-ptxjitcompiler.so", Compute),
        library("libnvidia-fatbinaryloader.so", Compute),
        library("libnvidia-allocator.so", Compute),
        library("libnvidia-compiler.so", Compute),
        library("libnvidia-pkcs11.so", Compute),
        library("libnvidia-pkcs11-openssl3.so", Compute),
        library("libnvidia-nvvm.so", Compute),
        library("libnvidia-tileiras.so", Compute),
        library("libnvidia-ngx.so", Ngx),
        library("libvdpau_nvidia.so", Video),
        library("libnvidia-encode.so", Video),
        linked(
            &[(
                "libnvidia-opticalflow.so",
                Name("libnvidia-opticalflow.so.1"),
            )],
            library("libnvidia-opticalflow.so", Video),
        ),
        library("libnvcuvid.so", Video),
        library("libnvidia-eglcore.so", Graphics),
        library("libnvidia-glcore.so", Graphics),
        library("libnvidia-tls.so", Graphics),
        library("libnvidia-glsi.so", Graphics),
        library("libnvidia-fbc.so", Graphics),
        library("libnvidia-ifr.so", Graphics),
        library("libnvidia-rtcore.so", Graphics),
        library("libnvoptix.so", Graphics),
        // GLVND's fallback for indirect rendering must be the vendor's library.
        linked(
            &[("libGLX_indirect.so.0", TheFile)],
            when(Condition::Glvnd, library("libGLX_nvidia.so", Graphics)),
        ),
        when(Condition::Glvnd, library("libEGL_nvidia.so", Graphics)),
        when(Condition::Glvnd, library("libGLESv2_nvidia.so", Graphics)),
        when(
            Condition::Glvnd,
            library("libGLESv1_CM_nvidia.so", Graphics),
        ),
        when(
            Condition::Glvnd,
            library("libnvidia-glvkspirv.so", Graphics),
        ),
        when(Condition::Glvnd, library("libnvidia-cbl.so", Graphics)),
        when(Condition::LegacyGl, library("libGL.so", Graphics)),
        when(Condition::LegacyGl, library("libEGL.so", Graphics)),
        when(Condition::LegacyGl, library("libGLESv1_CM.so", Graphics)),
        when(Condition::LegacyGl, library("libGLESv2.so", Graphics)),
        Pattern {
            capability: None,
            ..when(Condition::Wsl, library("libdxcore.so", Compute))
        },
    ]
};

/// Every program.
pub const PROGRAMS: &[Pattern] = {
    use Capability::{Compute, Utility};
    &[
        program("nvidia-smi", Utility),
        program("nvidia-debugdump", Utility),
        program("nvidia-persistenced", Utility),
        when(
            Condition::NotEverything,
            program("nv-fabricmanager", Utility),
        ),
        when(Condition::Mps, program("nvidia-cuda-mps-control", Compute)),
        when(Condition::Mps, program("nvidia-cuda-mps-server", Compute)),
        when(Condition::Everything, program("nvidia-imex", Utility)),
        when(Condition::Everything, program("nvidia-imex-ctl", Utility)),
        when(Condition::Everything, program("nvidia-xconfig", Utility)),
    ]
};

/// A file looked up in shared data directories, with its place in a container.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataFile {
    /// Its path relative to such a directory; `VERSION` is the driver's.
    pub path: &'static str,
    /// Its directory in a container.
    pub standard: &'static str,
    /// Class of the file.
    pub class: FileClass,
    /// The capability it belongs to; None means every container.
    pub capability: Option<Capability>,
    /// True if it may also lie in the driver root itself.
    pub in_root: bool,
}

const fn config(path: &'static str) -> DataFile {
    DataFile {
        path,
        standard: "/usr/share",
        class: FileClass::Config,
        capability: Some(Capability::Graphics),
        in_root: false,
    }
}

const fn vulkan(path: &'static str) -> DataFile {
    DataFile {
        standard: "/etc",
        in_root: true,
        ..config(path)
    }
}

#[cfg(target_arch = "aarch64")]
const VULKAN_ICD: &str = "vulkan/icd.d/nvidia_icd.aarch64.json";
#[cfg(not(target_arch = "aarch64"))]
const VULKAN_ICD: &str = "vulkan/icd.d/nvidia_icd.x86_64.json";

/// The configuration and data of the graphics libraries.
pub(crate) const GRAPHICS_FILES: &[DataFile] = &[
    config("glvnd/egl_vendor.d/10_nvidia.json"),
    config("egl/egl_external_platform.d/15_nvidia_gbm.json"),
    config("egl/egl_external_platform.d/10_nvidia_wayland.json"),
    config("egl/egl_external_platform.d/09_nvidia_wayland2.json"),
    config("egl/egl_external_platform.d/20_nvidia_xcb.json"),
    config("egl/egl_external_platform.d/20_nvidia_xlib.json"),
    DataFile {
        class: FileClass::Data,
        ..config("nvidia/nvoptix.bin")
    },
    // The library reads the one of its version.
    DataFile {
        class: FileClass::Data,
        ..config("nvidia/nvidia-application-profiles-VERSION-rc")
    },
    config("X11/xorg.conf.d/10-nvidia.conf"),
    config("X11/xorg.conf.d/nvidia-drm-outputclass.conf"),
    DataFile {
        standard: "/etc",
        capability: None,
        ..config("OpenCL/vendors/nvidia.icd")
    },
    vulkan("vulkan/icd.d/nvidia_icd.json"),
    vulkan(VULKAN_ICD),
    vulkan("vulkan/icd.d/nvidia_layers.json"),
    vulkan("vulkan/implicit_layer.d/nvidia_layers.json"),
];

/// A library that a program opens by a path of its own, in a directory beside the loader's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenedByPath {
    /// The directory, relative to the loader's.
    pub(crate) directory: &'static str,
    /// The name that the program opens.
    pub(crate) name: &'static str,
    /// The library's name without its version.
    library: &'static str,
    /// Its SONAME.
    pub(crate) soname: &'static str,
    /// The capability of the program.
    pub(crate) capability: Capability,
}

/// Those libraries: the backend of GBM, and that of VDPAU.
const OPENED_BY_PATH: &[OpenedByPath] = &[
    OpenedByPath {
        directory: "gbm",
        name: "nvidia-drm_gbm.so",
        library: "libnvidia-allocator.so",
        soname: "libnvidia-allocator.so.1",
        capability: Capability::Graphics,
    },
    OpenedByPath {
        directory: "vdpau",
        name: "libvdpau_nvidia.so.1",
        library: "libvdpau_nvidia.so",
        soname: "libvdpau_nvidia.so.1",
        capability: Capability::Video,
    },
];

/// The names by which an X server loads its modules, with their directories below that of all modules.
const X_MODULES: [(&str, &str); 2] = [
    ("drivers", "nvidia_drv.so"),
    ("extensions", "libglxserver_nvidia.so"),
];

/// Returns how a library of this base name is opened by path, if it is.
pub(crate) fn opened_by_path(basename: &OsStr) -> Option<&'static OpenedByPath> {
    let stem = stem(basename.as_bytes())?;
    let mut all = OPENED_BY_PATH.iter();
    all.find(|opened| opened.library.as_bytes() == stem)
}

/// Returns the path by which an X server loads a module of this base name, below the directory of all modules.
pub(crate) fn x_module(basename: &OsStr) -> Option<PathBuf> {
    let stem = stem(basename.as_bytes())?;
    let mut all = X_MODULES.iter();
    let (directory, name) = all.find(|(_, name)| name.as_bytes() == stem)?;
    Some(Path::new(directory).join(name))
}

/// Libraries of EGL's platforms, which are versioned independently.
pub(crate) const EGL_PLATFORMS: &[&str] = &[
    "libnvidia-egl-gbm.so",
    "libnvidia-egl-wayland.so",
    "libnvidia-egl-wayland2.so",
    "libnvidia-egl-xcb.so",
    "libnvidia-egl-xlib.so",
];

/// Libraries that images usually contain themselves.
pub(crate) const EXPLICIT: &[&str] = &[
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

/// Libraries that belong to the driver but do not have its version in their names, with the version of their SONAME.
pub(crate) const UNVERSIONED: &[(&str, &str)] = &[("libnvidia-nvvm70.so", "4")];

/// Returns true if a library of the driver does not have its version in the name.
pub(crate) fn is_unversioned(name: &str) -> bool {
    let mut stems = UNVERSIONED.iter();
    stems.any(|(stem, _)| {
        name.strip_prefix(stem)
            .is_some_and(|rest| rest.starts_with('.'))
    })
}

/// Returns the libraries to look up, in order.
pub(super) fn libraries(options: DriverOptions, wsl: bool) -> Vec<&'static Pattern> {
    let glvnd = !options.contains(DriverOptions::NO_GLVND);
    let wanted = |pattern: &&Pattern| match pattern.when {
        Condition::Glvnd => glvnd,
        Condition::LegacyGl => !glvnd,
        Condition::Wsl => wsl,
        _ => true,
    };
    LIBRARIES.iter().filter(wanted).collect()
}

/// Returns the programs to look up, in order.
pub(super) fn programs(options: DriverOptions) -> Vec<&'static Pattern> {
    let wanted = |pattern: &&Pattern| match pattern.when {
        Condition::Mps => !options.contains(DriverOptions::NO_MPS),
        Condition::Everything => false,
        _ => true,
    };
    PROGRAMS.iter().filter(wanted).collect()
}

/// Returns the programs to look up if all files of the driver are requested, in order.
pub(super) fn programs_of_everything() -> impl Iterator<Item = &'static Pattern> {
    let patterns = PROGRAMS.iter();
    patterns.filter(|pattern| pattern.when != Condition::NotEverything)
}

/// Returns the library with this base name, whatever its origin: an image, or a caller of the C library.
pub fn library_of(basename: &OsStr) -> Option<&'static Pattern> {
    let begins = |pattern: &&Pattern| basename.as_bytes().starts_with(pattern.name.as_bytes());
    LIBRARIES.iter().find(begins)
}

/// Returns the program with this base name.
pub fn program_of(basename: &OsStr) -> Option<&'static Pattern> {
    let begins = |pattern: &&Pattern| basename.as_bytes().starts_with(pattern.name.as_bytes());
    PROGRAMS.iter().find(begins)
}

impl Pattern {
    /// Describes a file found by this pattern.
    pub fn file(&self, path: HostPath) -> DriverFile {
        let target = |target: &LinkTarget| match target {
            LinkTarget::Name(name) => PathBuf::from(name),
            LinkTarget::TheFile => PathBuf::from(path.file_name()),
        };
        let links = self.links.iter().map(|(name, leads_to)| FileLink {
            name: Path::new(name).to_owned(),
            target: target(leads_to),
        });
        DriverFile {
            links: links.collect(),
            ..DriverFile::new(path, self.class).of(self.capability)
        }
    }

    /// Returns true for a name that Mesa uses too.
    pub(super) fn is_legacy_gl(&self) -> bool {
        self.when == Condition::LegacyGl
    }

    /// Returns true if a container with these capabilities gets the file.
    pub(crate) fn is_wanted(&self, capabilities: Capabilities) -> bool {
        is_wanted(self.class, self.capability, capabilities)
    }
}

/// Returns true if a container with these capabilities gets a file of this class and capability.
pub(crate) fn is_wanted(
    class: FileClass,
    capability: Option<Capability>,
    capabilities: Capabilities,
) -> bool {
    capability.is_none_or(|capability| match class {
        FileClass::Program => capabilities.include_programs(capability),
        _ => capabilities.include(capability),
    })
}

/// Returns the index of the pattern that a library's name matches.
pub(super) fn position(patterns: &[&Pattern], library: &[u8]) -> Option<usize> {
    let stem = stem(library)?;
    patterns
        .iter()
        .position(|pattern| pattern.name.as_bytes() == stem)
}

/// Returns a library's name without its version.
fn stem(library: &[u8]) -> Option<&[u8]> {
    // Each pattern ends with its only ".so", so a prefix match is an equality test up to there.
    library.get(..library.windows(3).position(|part| part == b".so")? + 3)
}

/// Returns true if a library of this name may also be Mesa's.
pub fn is_legacy_gl(basename: &OsStr) -> bool {
    let stem = stem(basename.as_bytes());
    let mut legacy = LIBRARIES.iter().filter(|p| p.when == Condition::LegacyGl);
    legacy.any(|pattern| Some(pattern.name.as_bytes()) == stem)
}

/// Returns true for the library that has one variant per thread-local storage model.
pub(crate) fn is_tls(basename: &OsStr) -> bool {
    stem(basename.as_bytes()) == Some(b"libnvidia-tls.so")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_name_ends_with_its_only_so() {
        for Pattern { name, .. } in LIBRARIES {
            assert_eq!(name.find(".so"), Some(name.len() - 3), "{name}");
        }
    }

    #[test]
    fn no_name_begins_with_another() {
        // Otherwise a base name could match the wrong entry.
        for table in [LIBRARIES, PROGRAMS] {
            for (at, pattern) in table.iter().enumerate() {
                let before = table.iter().take(at);
                let taken = before.filter(|earlier| pattern.name.starts_with(earlier.name));
                let names: Vec<_> = taken.map(|earlier| earlier.name).collect();
                // Both belong to the same capability, so either match gives the same result.
                assert!(
                    names.is_empty() || names == ["nvidia-imex"],
                    "{}: {names:?}",
                    pattern.name
                );
            }
        }
    }

    #[test]
    fn names_are_found_by_their_beginning() {
        let patterns: Vec<&Pattern> = LIBRARIES.iter().collect();
        for (library, name) in [
            ("libcuda.so", Some("libcuda.so")),
            ("libcuda.so.1", Some("libcuda.so")),
            ("libnvidia-pkcs11.so.1", Some("libnvidia-pkcs11.so")),
            ("libnvidia-nvvm.so.4", Some("libnvidia-nvvm.so")),
            ("libnvidia-nvvm70.so.4", None),
            ("libcuda.a", None),
            ("libcudart.so.12", None),
            ("", None),
        ] {
            let found = position(&patterns, library.as_bytes()).map(|at| patterns[at].name);
            assert_eq!(found, name, "{library}");
        }
    }

    #[test]
    fn capabilities_choose() {
        let lib = |name: &str, capabilities| {
            library_of(OsStr::new(name)).is_some_and(|found| found.is_wanted(capabilities))
        };
        let all = Capabilities::all();
        assert!(lib("libcuda.so.550.1", Capabilities::COMPUTE));
        assert!(lib("libcuda.so.550.1", Capabilities::VIDEO));
        assert!(!lib("libcuda.so.550.1", Capabilities::UTILITY));
        assert!(lib("libnvidia-ml.so.550.1", Capabilities::UTILITY));
        assert!(lib("libGLX_nvidia.so.0", Capabilities::DISPLAY));
        assert!(lib("libGL.so.1", Capabilities::GRAPHICS));
        assert!(lib("libdxcore.so", Capabilities::empty()));
        assert!(!lib("libfoo.so", all));

        let bin = |name: &str, capabilities| {
            program_of(OsStr::new(name)).is_some_and(|found| found.is_wanted(capabilities))
        };
        assert!(bin("nvidia-smi", Capabilities::UTILITY));
        assert!(!bin("nvidia-smi", Capabilities::COMPUTE));
        assert!(bin("nvidia-cuda-mps-server", Capabilities::COMPUTE));
        assert!(!bin("nvidia-cuda-mps-server", Capabilities::VIDEO));
    }

    #[test]
    fn look_up_lists() {
        let names = |patterns: Vec<&Pattern>| -> Vec<_> {
            patterns.iter().map(|pattern| pattern.name).collect()
        };
        let list = names(libraries(DriverOptions::empty(), false));
        assert_eq!(list.first(), Some(&"libnvidia-ml.so"));
        assert_eq!(list.last(), Some(&"libnvidia-cbl.so"));
        let list = names(libraries(DriverOptions::NO_GLVND, true));
        assert!(list.ends_with(&["libGLESv2.so", "libdxcore.so"]));
        assert!(!list.contains(&"libGLX_nvidia.so"));
        assert_eq!(programs(DriverOptions::NO_MPS).len(), 4);
        assert_eq!(programs(DriverOptions::empty()).len(), 6);
        assert_eq!(programs_of_everything().count(), 8);
    }

    #[test]
    fn links_go_with_files() {
        let links = |name: &str| {
            let path = HostPath::new("/usr/lib").join(name);
            let file = library_of(path.file_name()).unwrap().file(path);
            let links = file.links.into_iter();
            let text =
                |link: FileLink| format!("{} -> {}", link.name.display(), link.target.display());
            links.map(text).collect::<Vec<_>>()
        };
        assert_eq!(links("libcuda.so.550.1"), ["libcuda.so -> libcuda.so.1"]);
        assert_eq!(
            links("libGLX_nvidia.so.550.1"),
            ["libGLX_indirect.so.0 -> libGLX_nvidia.so.550.1"]
        );
        assert!(links("libnvidia-ml.so.550.1").is_empty());
    }
}
