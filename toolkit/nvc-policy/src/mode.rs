//! Selects how a container gets its GPUs: by the hook, by CDI specifications, or by a Jetson's file lists.

use std::fmt;

use libnvc::{Error, ErrorKind, Result};
use nvc_cdi::names;
use nvc_program::hints::did_you_mean;

use crate::config::Config;
use crate::config::keys::{MODE, MODES};
use crate::image::Devices;

/// A way to serve a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// By a prestart hook that configures the container from outside.
    Legacy,
    /// By CDI specifications in files.
    Cdi,
    /// By a CDI specification generated for the container and never written to a file.
    JitCdi,
    /// By a Jetson's file lists.
    Csv,
}

impl fmt::Display for Mode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Legacy => "legacy",
            Self::Cdi => "cdi",
            Self::JitCdi => "jit-cdi",
            Self::Csv => "csv",
        })
    }
}

impl Mode {
    /// Returns the mode that the configuration fixes; None if it depends on the request and on the machine.
    ///
    /// # Errors
    /// There is no such mode.
    pub fn configured(config: &Config) -> Result<Option<Self>> {
        Ok(Some(match config.runtime.mode.as_str() {
            "auto" => return Ok(None),
            "legacy" => Self::Legacy,
            "cdi" => Self::Cdi,
            "jit-cdi" => Self::JitCdi,
            "csv" => Self::Csv,
            word => {
                let text = format!("invalid mode \"{word}\"");
                let hint = format!("{}: {}", config.mode_origin(), did_you_mean(word, MODES));
                return Err(Error::new(ErrorKind::Malformed, text).hint(hint));
            }
        }))
    }
}

/// The mode for a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenMode {
    pub mode: Mode,
    /// The mode and the line that decides: `automatic mode csv (KEY: FILE:LINE)`.
    pub said: String,
}

/// Chooses the mode for a request. Calls `is_jetson` only if neither the configuration nor the request decides; `default`
/// is the program's own mode.
///
/// # Errors
/// Those of [`Mode::configured`].
pub fn choose(
    config: &Config,
    devices: &Devices,
    is_jetson: impl FnOnce() -> bool,
    default: Mode,
) -> Result<ChosenMode> {
    let (mode, how) = match Mode::configured(config)? {
        Some(mode) => (mode, ""),
        None if are_cdi_names(devices) => (Mode::Cdi, "automatic "),
        None if is_jetson() => (Mode::Csv, "automatic "),
        None => (default, "automatic "),
    };
    let said = format!("{how}mode {mode} ({MODE}: {})", config.mode_origin());
    Ok(ChosenMode { mode, said })
}

/// Returns true if all devices have CDI names.
pub fn are_cdi_names(devices: &Devices) -> bool {
    match devices {
        Devices::Names(names) => names.iter().all(|name| names::is_qualified(name)),
        Devices::None | Devices::All => false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Devices {
        Devices::Names(names.iter().map(|&name| name.to_owned()).collect())
    }

    fn config(mode: &str) -> Config {
        let mut config = Config::default();
        config.runtime.mode = mode.into();
        config
    }

    #[test]
    fn the_word_is_exact() {
        let of = |word: &str| Mode::configured(&config(word)).unwrap();
        assert_eq!(of("auto"), None);
        for mode in [Mode::Legacy, Mode::Cdi, Mode::JitCdi, Mode::Csv] {
            assert_eq!(of(&mode.to_string()), Some(mode));
        }
        for word in ["", "CDI"] {
            let error = Mode::configured(&config(word)).unwrap_err();
            assert_eq!(error.message(), format!("invalid mode \"{word}\""));
        }
    }

    #[test]
    fn configuration_and_names_come_before_the_machine() {
        let of = |mode: &str, devices: &Devices, is_jetson| {
            let chosen = choose(&config(mode), devices, || is_jetson, Mode::JitCdi);
            chosen.unwrap()
        };
        let auto = |devices: &Devices, is_jetson| of("auto", devices, is_jetson).mode;
        let cdi = names(&["nvidia.com/gpu=0", "n/g=a"]);
        assert_eq!(auto(&cdi, true), Mode::Cdi);
        assert_eq!(auto(&names(&["nvidia.com/gpu=0", "0"]), true), Mode::Csv);
        assert_eq!(auto(&names(&["0"]), false), Mode::JitCdi);
        assert_eq!(auto(&Devices::All, false), Mode::JitCdi);
        assert_eq!(auto(&Devices::None, true), Mode::Csv);
        let fixed = of("legacy", &cdi, true);
        assert_eq!(fixed.mode, Mode::Legacy);
        assert_eq!(fixed.said, format!("mode legacy ({MODE}: default)"));
        let automatic = of("auto", &Devices::All, true).said;
        assert_eq!(automatic, format!("automatic mode csv ({MODE}: default)"));
    }
}
