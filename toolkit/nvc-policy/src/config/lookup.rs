//! Finds config.toml and reads it.

use std::ffi::OsString;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::{Config, Error, LoadedConfig, parse};

/// The variable that names the file.
pub const VARIABLE: &str = "NVIDIA_CTK_CONFIG_FILE_PATH";

/// Size limit: a configuration has a few dozen lines. Protects against a device or a huge file.
const MAX_SIZE: usize = 1 << 20;

/// The file's location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub file: PathBuf,
    /// True if the file was named, on the command line or in the environment.
    pub named: bool,
}

/// Searches in upstream's order: the command line, [`VARIABLE`], XDG, /etc.
pub fn place(given: Option<&Path>, variable: impl Fn(&str) -> Option<OsString>) -> Place {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    let named = given
        .filter(|path| !path.as_os_str().is_empty())
        .map(Path::to_owned)
        .or_else(|| set(VARIABLE).map(PathBuf::from));
    if let Some(file) = named {
        return Place { file, named: true };
    }
    let directory = set("XDG_CONFIG_HOME").map_or_else(|| "/etc".into(), PathBuf::from);
    Place {
        file: directory.join("nvidia-container-runtime/config.toml"),
        named: false,
    }
}

/// Reads the file.
///
/// # Errors
/// `Missing` if it does not exist (including a dangling link), `Read`, and those of [`parse`].
pub fn read(file: &Path) -> Result<LoadedConfig, Error> {
    let failed = |operation, cause: std::io::Error| match cause.kind() {
        ErrorKind::NotFound => Error::Missing(file.to_owned()),
        _ => Error::Read {
            operation,
            file: file.to_owned(),
            cause,
        },
    };
    let opened = File::open(file).map_err(|cause| failed("open", cause))?;
    let text = nvc_hostfile::bounded(opened, MAX_SIZE).map_err(|cause| failed("read", cause))?;
    let name = file.display();
    let text = String::from_utf8(text).map_err(|error| {
        let why = error.utf8_error();
        Error::Syntax(format!("{name}: it is not UTF-8: {why}"))
    })?;
    let mut loaded = parse(&text).map_err(|error| match error {
        Error::Syntax(what) => Error::Syntax(format!("{name}: {what}")),
        Error::Type(what) => Error::Type(format!("{name}: {what}")),
        other => other,
    })?;
    for warning in &mut loaded.warnings {
        *warning = format!("{name}: {warning}");
    }
    loaded.config.file = Some(file.to_owned());
    Ok(loaded)
}

/// Reads the file at `place`, or returns the defaults if it is missing and not required.
///
/// # Errors
/// Those of [`read`].
pub fn load(place: &Place, must_exist: bool) -> Result<LoadedConfig, Error> {
    match read(&place.file) {
        Err(Error::Missing(_)) if !must_exist => Ok(LoadedConfig {
            config: Config::default(),
            warnings: Vec::new(),
        }),
        done => done,
    }
}
