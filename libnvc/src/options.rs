//! Defines the options of the library, and parses words that name options.
//!
//! Words are for interfaces such as the C library's: a string of words separated by spaces, order irrelevant, duplicates
//! harmless, at most 255 bytes. Rust callers use the sets directly.

#![forbid(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use bitflags::bitflags;
use serde::Serialize;

use crate::error::{Error, ErrorKind, Result};
use crate::path::ContainerPath;

/// Longest option string; the C library's `NVC_ARG_MAX` counts its terminating zero too.
const MAX_LEN: usize = 255;

bitflags! {
    /// Options of the library itself.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct LibraryOptions: u32 {
        /// Load the kernel modules and create the device nodes.
        const LOAD_KMODS = 1 << 0;
        /// With `LOAD_KMODS`: do not create IMEX channel nodes.
        const NO_CREATE_IMEX_CHANNELS = 1 << 1;
    }
}

bitflags! {
    /// Parts of the driver to leave out or to look up differently.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct DriverOptions: u32 {
        /// Look for the legacy GL library names instead of the GLVND vendor libraries.
        const NO_GLVND = 1 << 0;
        /// Leave out /dev/nvidia-uvm and /dev/nvidia-uvm-tools.
        const NO_UVM = 1 << 1;
        /// Leave out /dev/nvidia-modeset.
        const NO_MODESET = 1 << 2;
        /// Leave out the MPS programs and the MPS pipe directory.
        const NO_MPS = 1 << 3;
        /// Leave out the persistenced socket.
        const NO_PERSISTENCED = 1 << 4;
        /// Leave out the fabricmanager socket.
        const NO_FABRICMANAGER = 1 << 5;
        /// Leave out the GSP firmware.
        const NO_GSP_FIRMWARE = 1 << 6;
    }
}

/// How the image's own CUDA compatibility libraries are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CudaCompatMode {
    /// Mounted beside the driver's libraries, as upstream does without an option.
    Mount,
    /// Their directory goes first on ldconfig's command line; nothing is mounted.
    Ldconfig,
    /// Ignored.
    Disabled,
}

/// What updates the cache of a container's loader.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ldconfig {
    /// No program, if the image's cache can be updated without one; otherwise the host's.
    #[default]
    #[serde(rename = "builtin")]
    Auto,
    /// The host's, from this path in the caller's root.
    Host(PathBuf),
    /// The image's own.
    Image(ContainerPath),
}

/// Words for [`Ldconfig::Auto`]. `builtin` is the older one; those with an @ are for runtimes that prefix every value
/// with one. A program of such a name is spelled `./auto`.
const AUTOMATIC: [&str; 4] = ["auto", "@auto", "builtin", "@builtin"];

/// Returns true if this is where packages and upstream's configuration expect a host's ldconfig, so that it is no choice.
pub(crate) fn is_usual(path: &Path) -> bool {
    ["/sbin/ldconfig", "/sbin/ldconfig.real"]
        .map(Path::new)
        .contains(&path)
}

impl Ldconfig {
    /// Parses a word: `auto`, `@/path` on the host, or `/path` in the image.
    pub fn parse(word: &OsStr) -> Self {
        if AUTOMATIC.iter().any(|automatic| word == *automatic) {
            return Self::Auto;
        }
        match word.as_bytes().strip_prefix(b"@") {
            Some(path) => Self::Host(OsStr::from_bytes(path).into()),
            None => Self::Image(ContainerPath::new(word)),
        }
    }

    /// Returns the program that `path` means on a host: some distributions wrap it in a script, and name it `PATH.real`.
    #[must_use]
    pub fn real(path: &Path, exists: impl Fn(&Path) -> bool) -> PathBuf {
        let plain = path.as_os_str().as_bytes();
        let plain = OsStr::from_bytes(plain.strip_suffix(b".real").unwrap_or(plain));
        let real = [plain, OsStr::new(".real")]
            .into_iter()
            .collect::<OsString>();
        if exists(Path::new(&real)) {
            real
        } else {
            plain.into()
        }
        .into()
    }

    /// Returns the choice for this host: its usual ldconfig means `auto` if it has none there.
    #[must_use]
    pub fn on(self, exists: impl Fn(&Path) -> bool) -> Self {
        match self {
            Self::Host(path) if is_usual(&path) && !exists(&Self::real(&path, &exists)) => {
                Self::Auto
            }
            chosen => chosen,
        }
    }

    /// Returns true if it names no program.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Auto => false,
            Self::Host(path) => path.as_os_str().is_empty(),
            Self::Image(path) => path.as_path() == Path::new("/"),
        }
    }
}

/// Formats the word.
impl fmt::Display for Ldconfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Host(path) => write!(f, "@{}", path.display()),
            Self::Image(path) => write!(f, "{path}"),
        }
    }
}

/// Parses the set that `words` name in a table; no words, no options.
///
/// # Errors
/// `invalid option: <word>` and `too many options`.
pub fn parse<T: bitflags::Flags + Copy>(words: &str, table: &[(&str, T)]) -> Result<T> {
    if words.len() > MAX_LEN {
        return Err(invalid("too many options"));
    }
    let mut set = T::empty();
    for word in words.split(' ').filter(|word| !word.is_empty()) {
        let (_, flags) = table
            .iter()
            .find(|(name, _)| *name == word)
            .ok_or_else(|| invalid("invalid option").of(word))?;
        set = set.union(*flags);
    }
    Ok(set)
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const WORDS: &[(&str, DriverOptions)] = &[
        ("no-uvm", DriverOptions::NO_UVM),
        ("no-mps", DriverOptions::NO_MPS),
    ];

    #[test]
    fn words_make_sets() {
        let options = parse("  no-mps  no-uvm no-mps", WORDS).unwrap();
        assert_eq!(options, DriverOptions::NO_MPS | DriverOptions::NO_UVM);
        assert_eq!(parse("", WORDS).unwrap(), DriverOptions::empty());
    }

    #[test]
    fn programs_have_words() {
        for word in ["auto", "@/sbin/ldconfig", "@./auto", "/sbin/ldconfig"] {
            assert_eq!(Ldconfig::parse(word.as_ref()).to_string(), word);
        }
        for word in ["builtin", "@builtin", "@auto"] {
            assert_eq!(Ldconfig::parse(word.as_ref()), Ldconfig::Auto);
        }
        assert!(
            ["", "@"]
                .iter()
                .all(|word| Ldconfig::parse(word.as_ref()).is_empty())
        );
    }

    #[test]
    fn a_host_without_its_usual_program_means_auto() {
        for (word, exists, expected) in [
            ("@/sbin/ldconfig", "/sbin/ldconfig", "@/sbin/ldconfig"),
            ("@/sbin/ldconfig", "/sbin/ldconfig.real", "@/sbin/ldconfig"),
            ("@/sbin/ldconfig", "", "auto"),
            (
                "@/sbin/ldconfig.real",
                "/sbin/ldconfig",
                "@/sbin/ldconfig.real",
            ),
            ("@/sbin/ldconfig.real", "", "auto"),
            ("@/opt/ldconfig", "", "@/opt/ldconfig"),
            ("/sbin/ldconfig", "", "/sbin/ldconfig"),
        ] {
            let chosen = Ldconfig::parse(word.as_ref()).on(|path| path == Path::new(exists));
            assert_eq!(chosen.to_string(), expected, "{word}, {exists}");
        }
    }

    #[test]
    fn wrappers_have_real_programs() {
        for (path, exists, expected) in [
            ("/x", true, "/x.real"),
            ("/x", false, "/x"),
            ("/x.real", true, "/x.real"),
            ("/x.real", false, "/x"),
        ] {
            let real = Ldconfig::real(Path::new(path), |_| exists);
            assert_eq!(real, Path::new(expected), "{path}");
        }
    }

    #[test]
    fn unknown_words_are_refused() {
        let message = |words: &str| parse(words, WORDS).unwrap_err().message();
        assert_eq!(message("no-mps frob"), "invalid option: frob");
        assert_eq!(message(&"no-mps ".repeat(40)), "too many options");
    }
}
