//! Lists the names of the driver's libraries and programs, and the capability that each belongs to.
//!
//! The order of the names is the order of `list` and of the mounts. Names of libraries are beginnings: versions follow.
//! Deliberately absent, as with upstream: GLVND's dispatch libraries, which images bring themselves, and what only an X
//! server on the host loads.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::options::{ContainerOptions, DriverOptions};

const UTILITY: &[&str] = &["libnvidia-ml.so", "libnvidia-cfg.so", "libnvidia-nscq.so"];

const COMPUTE: &[&str] = &[
    "libcuda.so",
    "libcudadebugger.so",
    "libnvidia-opencl.so",
    "libnvidia-gpucomp.so",
    "libnvidia-ptxjitcompiler.so",
    "libnvidia-fatbinaryloader.so",
    "libnvidia-allocator.so",
    "libnvidia-compiler.so",
    "libnvidia-pkcs11.so",
    "libnvidia-pkcs11-openssl3.so",
    "libnvidia-nvvm.so",
    "libnvidia-tileiras.so",
];

const NGX: &[&str] = &["libnvidia-ngx.so"];

const VIDEO: &[&str] = &[
    "libvdpau_nvidia.so",
    "libnvidia-encode.so",
    "libnvidia-opticalflow.so",
    "libnvcuvid.so",
];

const GRAPHICS: &[&str] = &[
    "libnvidia-eglcore.so",
    "libnvidia-glcore.so",
    "libnvidia-tls.so",
    "libnvidia-glsi.so",
    "libnvidia-fbc.so",
    "libnvidia-ifr.so",
    "libnvidia-rtcore.so",
    "libnvoptix.so",
];

const GRAPHICS_GLVND: &[&str] = &[
    "libGLX_nvidia.so",
    "libEGL_nvidia.so",
    "libGLESv2_nvidia.so",
    "libGLESv1_CM_nvidia.so",
    "libnvidia-glvkspirv.so",
    "libnvidia-cbl.so",
];

/// The names Mesa uses too: see [`is_legacy_gl`].
const GRAPHICS_LEGACY: &[&str] = &["libGL.so", "libEGL.so", "libGLESv1_CM.so", "libGLESv2.so"];

const DXCORE: &[&str] = &["libdxcore.so"];

const UTILITY_PROGRAMS: &[&str] = &[
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nv-fabricmanager",
];

const COMPUTE_PROGRAMS: &[&str] = &["nvidia-cuda-mps-control", "nvidia-cuda-mps-server"];

/// What belongs to which capability; libraries of no capability always go in.
const LIBRARIES: &[(ContainerOptions, &[&[&str]])] = &[
    (ContainerOptions::UTILITY, &[UTILITY]),
    (ContainerOptions::COMPUTE, &[COMPUTE]),
    (ContainerOptions::NGX, &[NGX]),
    (ContainerOptions::VIDEO, &[VIDEO]),
    (
        ContainerOptions::GRAPHICS,
        &[GRAPHICS, GRAPHICS_GLVND, GRAPHICS_LEGACY],
    ),
    (ContainerOptions::empty(), &[DXCORE]),
];

const PROGRAMS: &[(ContainerOptions, &[&[&str]])] = &[
    (ContainerOptions::UTILITY_BINS, &[UTILITY_PROGRAMS]),
    (ContainerOptions::COMPUTE_BINS, &[COMPUTE_PROGRAMS]),
];

/// Whether a container with these options gets the library of this name.
pub fn library_wanted(basename: &OsStr, options: ContainerOptions) -> bool {
    wanted(LIBRARIES, basename, options)
}

/// Whether a container with these options gets the program of this name.
pub fn binary_wanted(basename: &OsStr, options: ContainerOptions) -> bool {
    wanted(PROGRAMS, basename, options)
}

/// The libraries to look for, in order.
pub(super) fn libraries(options: DriverOptions, wsl: bool) -> Vec<&'static str> {
    let gl = if options.contains(DriverOptions::NO_GLVND) {
        GRAPHICS_LEGACY
    } else {
        GRAPHICS_GLVND
    };
    let dxcore = if wsl { DXCORE } else { &[] };
    [UTILITY, COMPUTE, NGX, VIDEO, GRAPHICS, gl, dxcore].concat()
}

/// The programs to look for, in order.
pub(super) fn programs(options: DriverOptions) -> Vec<&'static str> {
    let mps = if options.contains(DriverOptions::NO_MPS) {
        &[]
    } else {
        COMPUTE_PROGRAMS
    };
    [UTILITY_PROGRAMS, mps].concat()
}

/// Which of `names` a library's name begins with.
pub(super) fn position(names: &[&str], library: &[u8]) -> Option<usize> {
    // The names end with their only ".so", so that a prefix test is an equality test of the part up to there.
    let stem = library.get(..library.windows(3).position(|part| part == b".so")? + 3)?;
    names.iter().position(|name| name.as_bytes() == stem)
}

/// Whether a library of this name may be Mesa's as well.
pub(super) fn is_legacy_gl(basename: &OsStr) -> bool {
    position(GRAPHICS_LEGACY, basename.as_bytes()).is_some()
}

/// Whether this is the library that comes in a variant for each way threads keep their storage.
pub(super) fn is_tls(basename: &OsStr) -> bool {
    position(&["libnvidia-tls.so"], basename.as_bytes()).is_some()
}

fn wanted(
    table: &[(ContainerOptions, &[&[&str]])],
    basename: &OsStr,
    options: ContainerOptions,
) -> bool {
    let begins = |name: &&str| basename.as_bytes().starts_with(name.as_bytes());
    table.iter().any(|(capability, groups)| {
        options.contains(*capability) && groups.iter().copied().flatten().any(begins)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn all_libraries() -> Vec<&'static str> {
        let groups = LIBRARIES.iter().flat_map(|(_, groups)| groups.iter());
        groups.copied().flatten().copied().collect()
    }

    #[test]
    fn a_name_ends_with_its_only_so() {
        for name in all_libraries() {
            assert_eq!(name.find(".so"), Some(name.len() - 3), "{name}");
        }
    }

    #[test]
    fn names_are_found_by_their_beginning() {
        let names = all_libraries();
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
            let found = position(&names, library.as_bytes()).map(|at| names[at]);
            assert_eq!(found, name, "{library}");
        }
    }

    #[test]
    fn capabilities_choose() {
        let lib = |name: &str, words: &str| {
            let options = ContainerOptions::parse(&format!("supervised {words}")).unwrap();
            library_wanted(OsStr::new(name), options)
        };
        assert!(lib("libcuda.so.550.1", "compute"));
        assert!(lib("libcuda.so.550.1", "video"));
        assert!(!lib("libcuda.so.550.1", "utility"));
        assert!(lib("libnvidia-ml.so.550.1", "utility"));
        assert!(lib("libGLX_nvidia.so.0", "display"));
        assert!(lib("libGL.so.1", "graphics"));
        assert!(lib("libdxcore.so", ""));
        assert!(!lib("libfoo.so", "compute utility graphics video ngx"));

        let bin = |name: &str, words: &str| {
            let options = ContainerOptions::parse(&format!("supervised {words}")).unwrap();
            binary_wanted(OsStr::new(name), options)
        };
        assert!(bin("nvidia-smi", "utility"));
        assert!(!bin("nvidia-smi", "compute"));
        assert!(bin("nvidia-cuda-mps-server", "compute"));
        assert!(!bin("nvidia-cuda-mps-server", "video"));
    }

    #[test]
    fn look_up_lists() {
        let names = libraries(DriverOptions::empty(), false);
        assert_eq!(names.first(), Some(&"libnvidia-ml.so"));
        assert_eq!(names.last(), Some(&"libnvidia-cbl.so"));
        let names = libraries(DriverOptions::NO_GLVND, true);
        assert!(names.ends_with(&["libGLESv2.so", "libdxcore.so"]));
        assert!(!names.contains(&"libGLX_nvidia.so"));
        assert_eq!(programs(DriverOptions::NO_MPS).len(), 4);
        assert_eq!(programs(DriverOptions::empty()).len(), 6);
    }
}
