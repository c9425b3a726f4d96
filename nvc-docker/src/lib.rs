//! Adds GPUs to docker containers like nvidia-docker 1: a wrapper of the command line, and a plugin.
//!
//! The wrapper translates one `docker run` for the engine. The plugin reports the machine's GPUs and their state over
//! HTTP, and serves the driver as a docker volume. The modules below are shared by both.

#![forbid(unsafe_code)]

// shared
pub mod cuda_version;
pub mod device_id;
mod device_nodes;
pub mod driver_volume;
mod failure;
pub mod log_line;
pub mod modprobe;

// the two programs
pub mod plugin;
pub mod wrapper;

// for fuzzing
#[doc(hidden)]
pub mod testing;

/// The plugin's name in docker.
pub const VOLUME_DRIVER: &str = "nvidia-docker";

/// The version of both programs.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
