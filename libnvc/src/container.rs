//! Discovers the container: its process, namespaces, root, layout and device cgroup, reading only.

use serde::Serialize;

use crate::path::ContainerPath;

mod cgroup;

pub use cgroup::{DeviceCgroup, locate as locate_device_cgroup};

/// Where things go in the container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Layout {
    /// Programs.
    pub bins_dir: ContainerPath,
    /// Native libraries.
    pub libs_dir: ContainerPath,
    /// 32-bit libraries.
    pub libs32_dir: ContainerPath,
    /// Where the image keeps CUDA.
    pub cudart_dir: ContainerPath,
}

/// Which device cgroup a container is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum CgroupVersion {
    /// The `devices` hierarchy: rules are written to files.
    V1,
    /// The unified hierarchy: rules are BPF programs.
    V2,
}
