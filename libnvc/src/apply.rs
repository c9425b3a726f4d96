//! Carries a plan out by descriptor, all or nothing.

mod cgroup;
mod cgroup_v1;
mod cgroup_v2;
mod device_program;

pub use cgroup::{DeviceRules, allow as allow_devices};
