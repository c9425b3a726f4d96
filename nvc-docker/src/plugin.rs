//! `nvidia-docker-plugin`: the REST interface, and the driver as a docker volume.
//!
//! [`run`] starts it by its [`options`]: [`listeners`] come from systemd or are made, [`server`] accepts connections
//! within limits and lets [`rest`] and [`volume`] answer. What is said about GPUs comes from [`gpus`], which asks the
//! driver no more often than it must.

pub mod gpus;
mod listeners;
mod options;
pub mod rest;
mod run;
mod server;
mod stall;
pub mod volume;

pub use run::run;

/// Gives foreign bytes to the parsers, for fuzzing.
pub(crate) fn parse(bytes: &[u8], text: &str) {
    let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
    let _ = options::read("plugin", &words);
    rest::parse(text);
    volume::parse(bytes);
}
