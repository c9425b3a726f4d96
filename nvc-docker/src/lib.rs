//! Gives GPUs to docker containers as the first nvidia-docker did: a wrapper of the command line, and a plugin.
//!
//! The wrapper translates one `docker run` for the engine that will carry it out. The plugin answers over HTTP what the
//! machine's GPUs are and do, and serves the driver as a docker volume. Both share the rules of this page.

#![forbid(unsafe_code)]

// rules of both
pub mod cuda_version;
pub mod device_id;
pub mod driver_volume;
pub mod failure;
mod libraries;
pub mod log_line;
pub mod modprobe;

// the two programs
pub mod plugin;
pub mod wrapper;

// for fuzzing
#[doc(hidden)]
pub mod testing;

/// The name under which docker knows the plugin.
pub const VOLUME_DRIVER: &str = "nvidia-docker";

/// The version of both programs.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
