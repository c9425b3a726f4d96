//! Selects how a container gets its GPUs: by the hook, by CDI specifications, or by a Jetson's file lists.

use std::fmt;

use crate::config::Config;
use crate::image::{Devices, qualified};

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

/// The configured mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setting {
    /// Depends on the request and on the machine.
    Auto,
    /// This mode.
    Fixed(Mode),
    /// An unknown word.
    Unknown(String),
}

impl Setting {
    /// Parses the configured word.
    pub fn of(config: &Config) -> Self {
        match config.runtime.mode.as_str() {
            "auto" => Self::Auto,
            "legacy" => Self::Fixed(Mode::Legacy),
            "cdi" => Self::Fixed(Mode::Cdi),
            "jit-cdi" => Self::Fixed(Mode::JitCdi),
            "csv" => Self::Fixed(Mode::Csv),
            other => Self::Unknown(other.to_owned()),
        }
    }
}

/// Returns the mode for a request if the configuration does not fix it.
///
/// Calls `is_tegra` only if the request does not decide; `otherwise` is the program's own mode.
pub fn automatic(devices: &Devices, is_tegra: impl FnOnce() -> bool, otherwise: Mode) -> Mode {
    if are_cdi_names(devices) {
        Mode::Cdi
    } else if is_tegra() {
        Mode::Csv
    } else {
        otherwise
    }
}

/// Returns true if all devices have CDI names.
pub fn are_cdi_names(devices: &Devices) -> bool {
    match devices {
        Devices::Names(names) => names.iter().all(|name| qualified::is_qualified(name)),
        Devices::None | Devices::All => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Devices {
        Devices::Names(names.iter().map(|&name| name.to_owned()).collect())
    }

    #[test]
    fn the_word_is_exact() {
        let of = |word: &str| {
            let mut config = Config::default();
            config.runtime.mode = word.into();
            Setting::of(&config)
        };
        assert_eq!(Setting::of(&Config::default()), Setting::Auto);
        for mode in [Mode::Legacy, Mode::Cdi, Mode::JitCdi, Mode::Csv] {
            assert_eq!(of(&mode.to_string()), Setting::Fixed(mode));
        }
        assert_eq!(of(""), Setting::Unknown(String::new()));
        assert_eq!(of("CDI"), Setting::Unknown("CDI".into()));
    }

    #[test]
    fn names_come_before_the_machine() {
        let of = |devices: &Devices, tegra| automatic(devices, || tegra, Mode::JitCdi);
        let cdi = names(&["nvidia.com/gpu=0", "n/g=a"]);
        assert_eq!(of(&cdi, true), Mode::Cdi);
        assert_eq!(of(&names(&["nvidia.com/gpu=0", "0"]), true), Mode::Csv);
        assert_eq!(of(&names(&["0"]), false), Mode::JitCdi);
        assert_eq!(of(&Devices::All, false), Mode::JitCdi);
        assert_eq!(of(&Devices::None, true), Mode::Csv);
    }
}
