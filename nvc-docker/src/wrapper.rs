//! `nvidia-docker`: translates one docker command so that its container gets GPUs, and executes docker.
//!
//! [`line`] finds the command and the image in the command line, according to docker's [`options`]. For a new
//! [`container`], [`docker`] queries the engine and the image ([`image`]), [`backend`] decides how to add GPUs, and
//! [`local`] or [`remote`] find the devices if the back end needs them; a local query starts before docker has
//! answered, if the image's labels show the need. [`arguments`] formats the result. [`host`] locates the plugin.

mod arguments;
mod backend;
mod container;
mod docker;
mod help;
mod host;
mod http;
mod image;
mod invocation;
mod line;
mod local;
mod local_plugin;
mod options;
mod remote;
mod run;
mod selection;

pub use run::run;

/// Passes foreign bytes to the parsers, for fuzzing.
pub(crate) fn parse(bytes: &[u8], text: &str) {
    let _ = host::place(Some(text), None);
    let _ = host::place(None, Some(text));
    let words: Vec<_> = text.split(' ').map(Into::into).collect();
    if let Ok(line) = line::read(&words, |_, _| Ok(true)) {
        assert!(line.globals <= words.len());
        assert!(line.image.is_none_or(|at| at < words.len()));
    }
    let _ = options::in_help(text, "rm");
    let _ = docker::engine(bytes, Some(bytes));
    let _ = docker::configuration(bytes);
    remote::parse(bytes);
}
