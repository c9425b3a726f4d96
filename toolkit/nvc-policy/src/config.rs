//! Reads config.toml, the administrator's configuration of the toolkit.
//!
//! The hook, the runtime and `nvidia-ctk` all read it through this module, so a key has the same meaning in each of
//! them. [`lookup`] finds the file, [`keys`] has every key, [`parse`] converts text to a [`Config`], and
//! [`ldconfig`] returns the configured ldconfig.

pub mod keys;
pub mod ldconfig;
pub mod lookup;

mod parse;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};

pub use keys::{Cli, Config, Ctk, Features, Hook, MODE, Runtime};
pub use parse::{parse, place};

impl Config {
    /// Returns the origin of a key's value: `FILE:LINE`, or `default`.
    pub fn origin(&self, key: &str) -> String {
        let line = self.lines.iter().find(|(name, _)| name == key);
        match (line, &self.file) {
            (Some((_, line)), Some(file)) => format!("{}:{line}", file.display()),
            (Some((_, line)), None) => format!("line {line}"),
            (None, _) => "default".into(),
        }
    }

    /// Overrides the file's mode; `by` is the reason.
    pub fn force_mode(&mut self, mode: &str, by: &str) {
        mode.clone_into(&mut self.runtime.mode);
        self.forced_by = Some(by.to_owned());
    }

    /// Returns the origin of the mode: the program's name, or a line of the file.
    pub fn mode_origin(&self) -> String {
        match &self.forced_by {
            Some(name) => format!("program name {name}"),
            None => self.origin(MODE),
        }
    }

    /// Returns the driver root.
    pub fn driver_root(&self) -> &Path {
        match self.cli.root.as_str() {
            "" => Path::new("/"),
            root => Path::new(root),
        }
    }

    /// Returns the user that nvidia-container-cli changes to; on SUSE the group video owns the device nodes.
    pub fn user(&self, os_release: &str) -> String {
        match &self.cli.user {
            Some(user) => user.clone(),
            None if is_suse(os_release) => "root:video".into(),
            None => String::new(),
        }
    }
}

/// Returns true for an os-release file of SUSE or a derivative.
fn is_suse(os_release: &str) -> bool {
    let like = os_release
        .lines()
        .find_map(|line| line.trim().strip_prefix("ID_LIKE="));
    like.is_some_and(|value| {
        let words = value.trim_matches(['"', '\'']);
        words
            .split_ascii_whitespace()
            .any(|word| word == "suse" || word == "opensuse")
    })
}

/// A configuration, with warnings about the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedConfig {
    /// The configuration.
    pub config: Config,
    /// One line for each unknown key.
    pub warnings: Vec<String>,
}

/// The reason why there is no configuration.
#[derive(Debug)]
pub enum Error {
    /// The named file does not exist.
    Missing(PathBuf),
    /// The file cannot be opened or read.
    Read {
        /// `open` or `read`.
        operation: &'static str,
        file: PathBuf,
        cause: std::io::Error,
    },
    /// The text is not TOML.
    Syntax(String),
    /// A value has the wrong type.
    Type(String),
    /// A value is not allowed.
    Value(String),
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(_) => out.write_str("file does not exist"),
            Self::Read {
                operation,
                file,
                cause,
            } => write!(
                out,
                "failed to load specified config file: {operation} {}: {}",
                file.display(),
                nvc_hostfile::cause::text(cause)
            ),
            Self::Syntax(text) => write!(out, "failed to load specified config file: {text}"),
            Self::Type(text) => write!(out, "failed to unmarshal config: {text}"),
            Self::Value(text) => write!(out, "{text}: invalid config value"),
        }
    }
}

impl Error {
    /// Returns true if the file itself is at fault, rather than a value in it.
    pub fn is_of_the_file(&self) -> bool {
        matches!(self, Self::Missing(_) | Self::Read { .. } | Self::Syntax(_))
    }
}
