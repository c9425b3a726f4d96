//! Finds what graphics needs: platform libraries, the X server's modules, and configuration files. All of it is optional.

use std::path::{Path, PathBuf};

use libnvc::HostPath;

use super::Options;
use super::driver::{mount, mount_at};
use super::libraries::Libraries;
use super::tree::Tree;
use crate::cdi::Edits;

/// Libraries with versions of their own.
const LIBRARIES: [&str; 5] = [
    "libnvidia-egl-gbm.so.*.*",
    "libnvidia-egl-wayland.so.*.*",
    "libnvidia-egl-wayland2.so.*.*",
    "libnvidia-egl-xcb.so.*.*",
    "libnvidia-egl-xlib.so.*.*",
];

/// Configuration files, and where containers look for them.
const CONFIGURATION: [(&str, &str); 9] = [
    ("glvnd/egl_vendor.d/10_nvidia.json", "/usr/share"),
    (
        "egl/egl_external_platform.d/15_nvidia_gbm.json",
        "/usr/share",
    ),
    (
        "egl/egl_external_platform.d/10_nvidia_wayland.json",
        "/usr/share",
    ),
    (
        "egl/egl_external_platform.d/09_nvidia_wayland2.json",
        "/usr/share",
    ),
    (
        "egl/egl_external_platform.d/20_nvidia_xcb.json",
        "/usr/share",
    ),
    (
        "egl/egl_external_platform.d/20_nvidia_xlib.json",
        "/usr/share",
    ),
    ("nvidia/nvoptix.bin", "/usr/share"),
    ("X11/xorg.conf.d/10-nvidia.conf", "/usr/share"),
    ("X11/xorg.conf.d/nvidia-drm-outputclass.conf", "/usr/share"),
];
const OPENCL: &str = "OpenCL/vendors/nvidia.icd";

/// Files of Vulkan; they can be in the driver root itself, and containers look for them in /etc.
const VULKAN: [&str; 4] = [
    "vulkan/icd.d/nvidia_icd.json",
    #[cfg(target_arch = "x86_64")]
    "vulkan/icd.d/nvidia_icd.x86_64.json",
    #[cfg(not(target_arch = "x86_64"))]
    "vulkan/icd.d/nvidia_icd.aarch64.json",
    "vulkan/icd.d/nvidia_layers.json",
    "vulkan/implicit_layer.d/nvidia_layers.json",
];

pub(super) fn add(
    options: &Options,
    tree: &Tree,
    libraries: &Libraries<'_>,
    directories: &[HostPath],
    version: &str,
    edits: &mut Edits,
) {
    let mut links = Vec::new();
    for pattern in LIBRARIES {
        for library in libraries.locate(pattern) {
            mount(tree, &library, edits);
        }
    }
    if let Some(library) = libraries
        .locate(&format!("libnvidia-allocator.so.{version}"))
        .first()
    {
        let link = library.parent().join("gbm/nvidia-drm_gbm.so");
        links.push(format!("../libnvidia-allocator.so.1::{link}"));
    }
    let producer = libraries.locate(&format!("libnvidia-vulkan-producer.so.{version}"));
    if let Some(file) = producer.first() {
        mount(tree, file, edits);
        let link = file.parent().join("libnvidia-vulkan-producer.so");
        links.push(format!("{}::{link}", file.file_name().to_string_lossy()));
    }
    for file in configuration(options, tree) {
        mount_at(tree, &file.0, &file.1, edits);
    }
    for name in [
        "nvidia_drv.so".to_string(),
        format!("libglxserver_nvidia.so.{version}"),
    ] {
        let places = xorg_directories(directories);
        let found = places
            .iter()
            .find_map(|directory| tree.real_file(&directory.join(&name)));
        let Some(file) = found else {
            continue;
        };
        mount(tree, &file, edits);
        if name.starts_with("libglx") {
            links.push(format!(
                "{name}::{}",
                file.parent().join("libglxserver_nvidia.so")
            ));
        }
    }
    options.hooks.add_links(&links, edits);
}

/// Configuration files that are there, with their places.
fn configuration(options: &Options, tree: &Tree) -> Vec<(HostPath, PathBuf)> {
    let data = if options.data_dirs.is_empty() {
        "/usr/local/share:/usr/share"
    } else {
        &options.data_dirs
    };
    let given = !options.config_search.is_empty();
    let directories: Vec<PathBuf> = match given {
        true => options.config_search.clone(),
        false => std::iter::once("/etc")
            .chain(data.split(':'))
            .map(PathBuf::from)
            .collect(),
    };
    let find = |name: &str, more: &[PathBuf]| {
        let mut places = directories
            .iter()
            .chain(more)
            .map(|directory| directory.join(name));
        places.find_map(|path| tree.real_file(&path))
    };
    let root = if given {
        Vec::new()
    } else {
        vec![PathBuf::from("/")]
    };
    let mut found = Vec::new();
    for (name, place) in CONFIGURATION.into_iter().chain([(OPENCL, "/etc")]) {
        found.extend(find(name, &[]).map(|file| (file, Path::new(place).join(name))));
    }
    for name in VULKAN {
        found.extend(find(name, &root).map(|file| (file, Path::new("/etc").join(name))));
    }
    found
}

/// Where modules of the X server are.
fn xorg_directories(libraries: &[HostPath]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let modules = |base: PathBuf, found: &mut Vec<PathBuf>| {
        for middle in ["modules", "modules/updates"] {
            for kind in ["drivers", "extensions"] {
                found.push(base.join(middle).join(kind));
            }
        }
    };
    for library in libraries {
        found.push(library.as_path().join("nvidia/xorg"));
        modules(library.as_path().join("xorg"), &mut found);
    }
    for base in [
        "/usr/lib/xorg",
        "/usr/lib64/xorg",
        "/usr/X11R6/lib",
        "/usr/X11R6/lib64",
    ] {
        modules(base.into(), &mut found);
    }
    found
}
