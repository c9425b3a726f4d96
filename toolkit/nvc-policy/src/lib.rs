//! Decides who gets which GPU, and how: by the administrator's configuration and the container's request.
//!
//! [`config`] reads config.toml, [`container`] what config.json says about a container, [`image`] decides, [`mode`] and
//! [`platform`] select how the GPUs are given. All of that is pure except for reading files of the host;
//! [`this_machine`] asks the driver which GPUs a name denotes, in a [`session`].
#![forbid(unsafe_code)]

// the administrator's policy
pub mod config;

// the container's request
pub mod container;
pub mod image;

// the ways to serve it
pub mod mode;
pub mod platform;

// the machine
pub mod semver;
pub mod session;
pub mod this_machine;
