//! Reads the hook's container: its state from standard input, its config.json from the bundle.
//!
//! Both are read before anything is printed, because their annotations say where the streams of hooks lead. Failures
//! are kept until they are due.

use std::io;
use std::path::{Path, PathBuf};

use libnvc::request::ProcessUser;
use libnvc::{Error, ErrorKind, Result};
use nvc_hostfile::cause;
use nvc_oci::{bundle, lenient, paths, state};
use nvc_policy::container::{self, Facts};
use nvc_policy::image;
use nvc_program::messages;

use crate::arguments::Options;
use crate::report::Report;

/// The container.
#[derive(Debug)]
pub(crate) struct Input {
    /// The process in whose namespaces it is.
    pub pid: i64,
    /// Its root, absolute.
    pub root: PathBuf,
    /// The members that decide about GPUs.
    pub container: image::Container,
    /// The user of its process, unless it is root.
    pub user: Option<ProcessUser>,
}

/// The texts of the state and of config.json.
#[derive(Debug)]
pub(crate) struct Texts {
    state: io::Result<Vec<u8>>,
    /// Missing if the state cannot be parsed.
    specification: Option<(String, io::Result<Vec<u8>>)>,
}

impl Texts {
    /// Reads them, and makes this process silent if hooks write to a file that the image may have chosen.
    pub(crate) fn read(options: &Options, report: &mut Report) -> Result<Self> {
        // A few hundred bytes, and annotations that are at most as long as config.json.
        let state = nvc_hostfile::bounded(io::stdin(), bundle::MAX_SIZE);
        let parsed = state.as_ref().ok().and_then(|text| state::read(text).ok());
        let specification = parsed.map(|state| {
            report.of_container(&state.id);
            let file = match &options.specification {
                Some(file) => file.to_string_lossy().into_owned(),
                None => paths::clean(&format!("{}/config.json", bundle_of(&state))),
            };
            let text = bundle::read(Path::new(&file));
            (file, text)
        });
        let texts = Self {
            state,
            specification,
        };
        let specification = texts.specification.as_ref();
        let specification = specification.and_then(|(_, text)| text.as_ref().ok());
        let mut known = texts.state.iter().chain(specification);
        if known.any(|text| messages::are_streams_redirected(text)) {
            messages::silence().map_err(|error| {
                let text = format!("could not redirect the streams: {}", cause::text(&error));
                Error::new(ErrorKind::System, text)
            })?;
        }
        Ok(texts)
    }
}

impl Input {
    /// Parses the texts, or returns an error message.
    pub(crate) fn parse(texts: Texts, options: &Options) -> Result<Self> {
        let text = texts.state.map_err(|error| {
            malformed(format!(
                "could not read container state: {}",
                cause::text(&error)
            ))
        })?;
        let state = state::read(&text)
            .map_err(|error| error.context("could not decode container state"))?;
        drop(text);
        let Some((file, text)) = texts.specification else {
            return Err(malformed("could not decode container state"));
        };
        let facts = specification(&file, text)?;
        let path = match &facts.root {
            Some(path) => path,
            None => return Err(malformed("Root is empty in OCI spec")),
        };
        let here = match &options.bundle {
            Some(bundle) => bundle.clone(),
            None => std::env::current_dir().map_err(|error| {
                let cause = cause::text(&error);
                Error::new(
                    ErrorKind::System,
                    format!("could not get the current directory: {cause}"),
                )
            })?,
        };
        Ok(Self {
            pid: state.pid,
            root: paths::absolute(path, &here),
            user: facts.user.clone(),
            container: facts
                .container()
                .map_err(|error| malformed(error.to_string()))?,
        })
    }
}

fn malformed(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Malformed, text)
}

fn bundle_of(state: &state::State) -> &str {
    match state.bundle.as_str() {
        "" => ".",
        bundle => bundle,
    }
}

fn specification(file: &str, text: io::Result<Vec<u8>>) -> Result<Facts> {
    let text = text.map_err(|error| {
        let cause = cause::text(&error);
        malformed(format!("could not open OCI spec: open {file}: {cause}"))
    })?;
    let value = lenient::first_unique_value(&text);
    drop(text);
    let value = value.map_err(|error| error.context("could not decode OCI spec"))?;
    let facts = container::facts(&value).map_err(|error| match error {
        container::Error::Decode(error) => error.context("could not decode OCI spec"),
        container::Error::Capabilities(error) => {
            error.context("could not decode Process.Capabilities in OCI spec")
        }
    })?;
    if facts.version.is_empty() && !has_version(&value) {
        return Err(malformed("Version is empty in OCI spec"));
    }
    if !facts.has_process {
        return Err(malformed("Process is empty in OCI spec"));
    }
    Ok(facts)
}

/// Returns true if there is an `ociVersion`, even if it is empty.
fn has_version(value: &serde_json::Value) -> bool {
    value
        .as_object()
        .is_some_and(|spec| lenient::member(spec, "ociVersion").is_some())
}
