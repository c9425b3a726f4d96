//! `nvidia-docker`: translates one docker command so that its container gets GPUs, and becomes docker.
//!
//! The way of a command line: [`line`] finds the command and the image in it, by the [`options`] that docker knows;
//! [`docker`] asks the engine what it is and the image what it wants ([`image`]); [`backend`] decides how GPUs get in;
//! [`local`] or [`remote`] find the devices where the back end needs them; [`arguments`] words the result. [`host`] says
//! where the plugin is.

mod arguments;
mod backend;
mod docker;
mod host;
mod image;
mod line;
mod local;
mod options;
mod remote;
mod run;
mod selection;

pub(crate) use local::control_devices;
pub use run::run;
