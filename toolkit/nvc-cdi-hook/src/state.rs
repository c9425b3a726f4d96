//! Reads the container's state, and opens its root.
//!
//! The state's pid is not used: it is 0 or 1 here, and would name a process of the host.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use libnvc::{Error, ErrorKind, Result};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nvc_program::json::Object;
use serde::Deserialize;
use serde_json::Value;

use crate::root::open_root;

/// Size limit of the state and of config.json.
const MAX_SIZE: u64 = 16 << 20;

/// The runtime's description of the container.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct State {
    bundle: PathBuf,
    /// Set by crun, and by later versions of runc.
    root: Option<PathBuf>,
}

/// Reads a state's text.
pub(crate) fn read(from: impl Read) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    from.take(MAX_SIZE)
        .read_to_end(&mut text)
        .map_err(|error| {
            let operation = "reading the container's state failed";
            Error::file(operation, "standard input", errno_of(&error))
        })?;
    Ok(text)
}

fn errno_of(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

/// Reads the rest of standard input, unless it is a terminal.
pub(crate) fn drain() {
    use std::io::IsTerminal;
    let input = std::io::stdin();
    if !input.is_terminal() {
        let _ = std::io::copy(&mut input.lock().take(MAX_SIZE), &mut std::io::sink());
    }
}

/// Reads a state's text from a file.
pub(crate) fn read_file(path: &str) -> Result<Vec<u8>> {
    let file =
        File::open(path).map_err(|error| Error::file("open failed", path, errno_of(&error)))?;
    read(file)
}

/// Returns the container's id, if the state has one.
pub(crate) fn id(text: &[u8]) -> Option<String> {
    let mut values = serde_json::Deserializer::from_slice(text).into_iter::<Value>();
    let state = values.next()?.ok()?;
    state.get("id")?.as_str().map(str::to_owned)
}

/// Parses a state; ignores data after it.
pub(crate) fn parse(text: &[u8]) -> Result<State> {
    let mut values = serde_json::Deserializer::from_slice(text).into_iter::<Value>();
    let value = match values.next() {
        Some(Ok(value)) => value,
        Some(Err(error)) => {
            return Err(
                malformed("the container's state is not JSON").with_cause(error.to_string())
            );
        }
        None => return Err(malformed("the container's state is empty")),
    };
    // Upstream's decoder takes null for an empty state.
    if !value.is_object() && !value.is_null() {
        return Err(malformed("the container's state is not an object"));
    }
    let path = |key: &str| {
        let text = value
            .get(key)
            .and_then(Value::as_str)
            .filter(|text| !text.is_empty());
        text.map(PathBuf::from)
    };
    Ok(State {
        bundle: path("bundle").unwrap_or_default(),
        root: path("root"),
    })
}

impl State {
    /// Reads config.json.
    pub(crate) fn config(&self) -> Result<Vec<u8>> {
        let path = self.bundle.join("config.json");
        read_file(&path.to_string_lossy())
    }

    /// Opens the root: the state's own, else config.json's, else the working directory.
    pub(crate) fn open_root(&self) -> Result<OwnedFd> {
        if let Some(root) = &self.root {
            return open_root(&self.bundle.join(root));
        }
        let config = self.bundle.join("config.json");
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        match open(&config, flags, Mode::empty()) {
            Ok(file) => {
                let path =
                    root_path(File::from(file)).map_err(|error| error.of(config.display()))?;
                // A missing or empty path means the bundle.
                open_root(&self.bundle.join(path))
            }
            // In a user namespace without the engine's user; the runtime then starts hooks in the root.
            Err(Errno::EACCES | Errno::EPERM) => open_root(Path::new(".")),
            Err(errno) => Err(Error::file("open failed", config, errno)),
        }
    }
}

fn malformed(text: &str) -> Error {
    Error::new(ErrorKind::Malformed, text)
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
fn root_path(file: File) -> Result<PathBuf> {
    let failed = |cause: String| malformed("reading failed").with_cause(cause);
    let metadata = file.metadata().map_err(|error| failed(error.to_string()))?;
    if !metadata.is_file() {
        return Err(failed("not a regular file".into()));
    }
    let size = usize::try_from(metadata.len().min(MAX_SIZE)).unwrap_or(0);
    let mut text = Vec::with_capacity(size);
    file.take(MAX_SIZE)
        .read_to_end(&mut text)
        .map_err(|error| failed(error.to_string()))?;
    let config: Object<Config> =
        serde_json::from_slice(&text).map_err(|error| failed(error.to_string()))?;
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
    fn states_are_read() {
        let state = parse(br#"{"pid": 1, "bundle": "/b", "root": "r"} trailing"#).unwrap();
        assert_eq!(state.bundle, Path::new("/b"));
        assert_eq!(state.root.as_deref(), Some(Path::new("r")));
        assert_eq!(parse(br#"{"root": ""}"#).unwrap().root, None);
        assert_eq!(id(br#"{"id": "c1"} trailing"#).as_deref(), Some("c1"));
        for none in ["", "{", "[]", "{}", r#"{"id": 7}"#] {
            assert_eq!(id(none.as_bytes()), None, "{none}");
        }
        let empty = State {
            bundle: PathBuf::new(),
            root: None,
        };
        assert_eq!(parse(b"null").unwrap(), empty);
        assert_eq!(parse(b"{}").unwrap(), empty);
        for text in ["", "[]", "{", "7"] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn the_roots_path_is_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path_in = |text: &str| {
            std::fs::write(file.path(), text).unwrap();
            root_path(File::open(file.path()).unwrap())
        };
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
