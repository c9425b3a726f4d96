//! Reads the texts of the container's state and of its config.json, and opens its root.
//!
//! The state's pid is not used: it is 0 or 1 here, and would name a process of the host.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use libnvc::{Error, ErrorKind, Result};
use nix::errno::Errno;
use nvc_oci::bundle;
use nvc_oci::state::State;
use nvc_program::json::Object;
use serde::Deserialize;
use serde_json::Value;

use crate::root;

/// Reads a state's text.
pub(crate) fn read(from: impl Read) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    from.take(bundle::MAX_SIZE as u64)
        .read_to_end(&mut text)
        .map_err(|error| {
            let operation = "reading the container's state failed";
            Error::file(operation, "standard input", errno_of(&error))
        })?;
    Ok(text)
}

fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

/// Reads the rest of standard input, unless it is a terminal.
pub(crate) fn drain() {
    use std::io::IsTerminal;
    let input = io::stdin();
    if !input.is_terminal() {
        let mut rest = input.lock().take(bundle::MAX_SIZE as u64);
        let _ = io::copy(&mut rest, &mut io::sink());
    }
}

/// Reads a state's text from a file.
pub(crate) fn read_file(path: &str) -> Result<Vec<u8>> {
    let file =
        File::open(path).map_err(|error| Error::file("open failed", path, errno_of(&error)))?;
    read(file)
}

/// Parses a state; ignores data after it.
pub(crate) fn parse(text: &[u8]) -> Result<State> {
    nvc_oci::state::read(text).map_err(|error| error.context("the container's state"))
}

/// Reads the config.json in the bundle of a state.
pub(crate) fn config(state: &State) -> Result<Vec<u8>> {
    let path = Path::new(&state.bundle).join("config.json");
    bundle::read(&path).map_err(|error| match error.raw_os_error() {
        Some(_) => Error::file("open failed", path, errno_of(&error)),
        None => Error::fault(ErrorKind::Malformed, path.display(), error.to_string()),
    })
}

/// Opens the root: the state's own, else config.json's, else the working directory.
pub(crate) fn open_root(state: &State) -> Result<OwnedFd> {
    let bundle = Path::new(&state.bundle);
    if !state.root.is_empty() {
        return root::open_root(&bundle.join(&state.root));
    }
    match config(state) {
        Ok(text) => {
            let path =
                root_path(&text).map_err(|error| error.of(bundle.join("config.json").display()))?;
            // A missing or empty path means the bundle.
            root::open_root(&bundle.join(path))
        }
        // In a user namespace without the engine's user; the runtime then starts hooks in the root.
        Err(error) if matches!(error.errno(), Some(Errno::EACCES | Errno::EPERM)) => {
            root::open_root(Path::new("."))
        }
        Err(error) => Err(error),
    }
}

/// The one key that is wanted of a config.json. Storing all of the others took most of a hook's own time.
#[derive(Deserialize)]
struct Config {
    root: Option<Object<ConfigRoot>>,
}

#[derive(Deserialize)]
struct ConfigRoot {
    path: Option<Value>,
}

/// Returns `root.path` of a config.json; the error lacks its path.
fn root_path(text: &[u8]) -> Result<PathBuf> {
    let failed =
        |cause: String| Error::new(ErrorKind::Malformed, "reading failed").with_cause(cause);
    let config: Object<Config> =
        serde_json::from_slice(text).map_err(|error| failed(error.to_string()))?;
    match config.0.root.and_then(|root| root.0.path) {
        None => Ok(PathBuf::new()),
        Some(Value::String(path)) => Ok(path.into()),
        Some(_) => Err(failed("root.path is not a string".into())),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_roots_path_is_read() {
        let path_in = |text: &str| root_path(text.as_bytes());
        let usual = r#"{"hooks": {"root": [1.5e3, {"path": "no"}]}, "root": {"readonly": true, "path": "r"}}"#;
        assert_eq!(path_in(usual).unwrap(), Path::new("r"));
        for none in ["{}", r#"{"root": null}"#, r#"{"root": {"path": null}}"#] {
            assert_eq!(path_in(none).unwrap(), PathBuf::new(), "{none}");
        }
        let odd = r#"{"root": {"path": 7}}"#;
        let error = path_in(odd).unwrap_err();
        assert_eq!(error.message(), "reading failed: root.path is not a string");
        // Of two roots a runtime may take the other one.
        for text in [
            "",
            "[]",
            "{",
            r#"{"root": 7}"#,
            // No runtime takes an array for an object.
            r#"[{"path": "r"}]"#,
            r#"{"root": ["r"]}"#,
            r#"{"root": {}, "root": {}}"#,
        ] {
            assert!(path_in(text).is_err(), "{text}");
        }
    }
}
