//! Reads the hook's container: its state from standard input, its config.json from the bundle.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use nvc_toolkit::oci::container::{self, Facts};
use nvc_toolkit::oci::{bundle, lenient, paths, state};
use nvc_toolkit::{cause, image};

/// Size limit of a state: a few hundred bytes, and annotations that are at most as long as config.json.
const LONGEST_STATE: u64 = bundle::LONGEST;

/// The container.
#[derive(Debug)]
pub(crate) struct Input {
    /// The process in whose namespaces it is.
    pub pid: i64,
    /// Its root, absolute.
    pub root: PathBuf,
    /// The members that decide about GPUs.
    pub container: image::Container,
}

/// Reads everything, or returns an error message.
pub(crate) fn read() -> Result<Input, String> {
    let mut text = Vec::new();
    std::io::stdin()
        .take(LONGEST_STATE)
        .read_to_end(&mut text)
        .map_err(|error| format!("could not read container state: {}", cause::text(&error)))?;
    let state =
        state::read(&text).map_err(|what| format!("could not decode container state: {what}"))?;
    drop(text);

    let file = paths::clean(&format!("{}/config.json", bundle_of(&state)));
    let facts = specification(Path::new(&file))?;
    let path = match &facts.root {
        Some(path) => path,
        None => return Err("Root is empty in OCI spec".into()),
    };
    let here = std::env::current_dir().map_err(|error| {
        format!(
            "could not get the current directory: {}",
            cause::text(&error)
        )
    })?;
    Ok(Input {
        pid: state.pid,
        root: paths::absolute(path, &here),
        container: facts.container().map_err(|error| error.to_string())?,
    })
}

fn bundle_of(state: &state::State) -> &str {
    match state.bundle.as_str() {
        "" => ".",
        bundle => bundle,
    }
}

fn specification(file: &Path) -> Result<Facts, String> {
    let text = bundle::read(file).map_err(|error| {
        let (file, cause) = (file.display(), cause::text(&error));
        format!("could not open OCI spec: open {file}: {cause}")
    })?;
    let value = lenient::first_value(&text);
    drop(text);
    let value = value.map_err(|what| format!("could not decode OCI spec: {what}"))?;
    let facts = container::facts(&value).map_err(|error| match error {
        container::Error::Decode(what) => format!("could not decode OCI spec: {what}"),
        container::Error::Capabilities(what) => {
            format!("could not decode Process.Capabilities in OCI spec: {what}")
        }
    })?;
    if facts.version.is_empty() && !has_version(&value) {
        return Err("Version is empty in OCI spec".into());
    }
    if !facts.has_process {
        return Err("Process is empty in OCI spec".into());
    }
    Ok(facts)
}

/// Returns true if there is an `ociVersion`, even if it is empty.
fn has_version(value: &serde_json::Value) -> bool {
    value
        .as_object()
        .is_some_and(|spec| lenient::member(spec, "ociVersion").is_some())
}
