//! `nvidia-docker-plugin`: the REST interface, and the driver as a docker volume.
//!
//! [`run`] starts it with its [`options`]: [`listeners`] are passed by systemd or created, [`server`] accepts
//! connections within limits and dispatches to [`rest`] and [`volume`]. Information about GPUs comes from [`gpus`],
//! which queries the driver no more often than necessary.

pub mod gpus;
mod listeners;
mod options;
pub mod rest;
mod run;
mod server;
pub mod volume;

pub use run::run;

/// Passes foreign bytes to the parsers, for fuzzing.
pub(crate) fn parse(bytes: &[u8], text: &str) {
    let words: Vec<_> = text.split(' ').map(Into::into).collect();
    let _ = options::read("plugin", &words);
    rest::parse(text);
    volume::parse(bytes);
}
