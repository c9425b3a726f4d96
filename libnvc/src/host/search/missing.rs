//! Says what a driver lacks, and what a caller can do about it.

use std::path::Path;

use crate::capability::{Capabilities, Capability};
use crate::error::{Error, ErrorKind};
use crate::host::{Abi, DriverInfo, DriverRoot, FileClass, catalogue};
use crate::path::HostPath;

/// Libraries, and the manifest without which no program finds them.
const MANIFESTS: [(&str, &str); 5] = [
    ("libGLX_nvidia.so.", "vulkan/icd.d/nvidia_icd"),
    ("libEGL_nvidia.so.", "glvnd/egl_vendor.d/10_nvidia.json"),
    ("libnvidia-opencl.so.", "OpenCL/vendors/nvidia.icd"),
    (
        "libnvidia-egl-gbm.so.",
        "egl/egl_external_platform.d/15_nvidia_gbm.json",
    ),
    (
        "libnvidia-present.so.",
        "vulkan/implicit_layer.d/nvidia_layers.json",
    ),
];

/// Returns the error that there is no library of a version; `found` is that of other libraries.
pub(in crate::host) fn libraries(root: &DriverRoot, version: &str, found: Option<&str>) -> Error {
    let text = format!("there are no libraries of driver {version}");
    let error = Error::new(ErrorKind::NotFound, text);
    match found.filter(|found| *found != version) {
        Some(found) => error
            .with_cause(format!("the libraries are of driver {found}"))
            .hint("load the new kernel module, or reboot; or install the libraries of the loaded one"),
        None if root.path() != Path::new("/") => {
            error.hint(DriverRoot::without_driver(root.path()))
        }
        None => error.hint(
            "install the driver's libraries, or name their directory: nvidia-ctk doctor says where they are searched",
        ),
    }
}

impl DriverInfo {
    /// Warns of missing libraries without which a requested capability is of little use.
    pub fn missing_libraries(&self, capabilities: Capabilities) -> Vec<String> {
        if self.wsl.is_some() {
            return Vec::new();
        }
        let essential = [
            ("libnvidia-ml.so", Capability::Utility),
            ("libcuda.so", Capability::Compute),
        ];
        let is_there = |name: &str| {
            self.libraries(Abi::Native).any(|file| {
                let pattern = catalogue::library_of(file.path.file_name());
                pattern.is_some_and(|pattern| pattern.name == name)
            })
        };
        let missing = essential
            .into_iter()
            .filter(|(name, capability)| capabilities.include(*capability) && !is_there(name));
        let version = &self.versions.driver;
        missing
            .map(|(name, capability)| {
                format!("the driver has no {name}.{version}, which {capability} needs")
            })
            .collect()
    }

    /// Warns of libraries without the manifest by which programs find them.
    pub fn missing_manifests(&self) -> Vec<String> {
        let all = || self.files.iter().chain(&self.graphics);
        let lacks = |(library, manifest): (&str, &'static str)| {
            let mut files = all().filter(|file| {
                file.class == FileClass::Library
                    && file.abi == Abi::Native
                    && file.path.file_name().to_string_lossy().starts_with(library)
            });
            let file = files.next()?;
            let mut places = all().map(|file| file.path.as_path().to_string_lossy());
            let is_there = places.any(|place| place.contains(manifest));
            let path = &file.path;
            (!is_there)
                .then(|| format!("no program finds {path}: its manifest {manifest} is missing"))
        };
        MANIFESTS.into_iter().filter_map(lacks).collect()
    }

    /// Warns of programs that another process may not find.
    pub fn found_by_path(&self) -> Vec<String> {
        let text = |path: &HostPath| {
            format!("{path} was found only by PATH: a unit with another PATH does not find it")
        };
        self.by_path.iter().map(text).collect()
    }
}
