//! Turns option words into typed sets and back.
//!
//! The words are the C library's interface: a string of words separated by spaces, order irrelevant, duplicates
//! harmless, at most 255 bytes. Rust callers use the sets directly.

#![forbid(unsafe_code)]

use bitflags::bitflags;

use crate::error::{Error, ErrorKind, Result};

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

impl LibraryOptions {
    const WORDS: &[(&str, Self)] = &[
        ("load-kmods", Self::LOAD_KMODS),
        ("no-create-imex-channels", Self::NO_CREATE_IMEX_CHANNELS),
    ];

    /// Parses the set that `words` name; no words, no options.
    ///
    /// # Errors
    /// `invalid option: <word>` and `too many options`.
    pub fn parse(words: &str) -> Result<Self> {
        parse(words, Self::WORDS)
    }
}

impl DriverOptions {
    const WORDS: &[(&str, Self)] = &[
        ("no-glvnd", Self::NO_GLVND),
        ("no-uvm", Self::NO_UVM),
        ("no-modeset", Self::NO_MODESET),
        ("no-mps", Self::NO_MPS),
        ("no-persistenced", Self::NO_PERSISTENCED),
        ("no-fabricmanager", Self::NO_FABRICMANAGER),
        ("no-gsp-firmware", Self::NO_GSP_FIRMWARE),
    ];

    /// Parses the set that `words` name; no words, no options.
    ///
    /// # Errors
    /// `invalid option: <word>` and `too many options`.
    pub fn parse(words: &str) -> Result<Self> {
        parse(words, Self::WORDS)
    }
}

/// Parses the set that `words` name in a table, for option strings of other programs' interfaces.
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

    #[test]
    fn words_make_sets() {
        let options = DriverOptions::parse("  no-mps  no-uvm no-mps").unwrap();
        assert_eq!(options, DriverOptions::NO_MPS | DriverOptions::NO_UVM);
        assert_eq!(DriverOptions::parse("").unwrap(), DriverOptions::empty());
        assert_eq!(
            LibraryOptions::parse("load-kmods").unwrap(),
            LibraryOptions::LOAD_KMODS
        );
    }

    #[test]
    fn unknown_words_are_refused() {
        let message = |words: &str| DriverOptions::parse(words).unwrap_err().message();
        assert_eq!(message("no-mps frob"), "invalid option: frob");
        assert_eq!(message(&"no-mps ".repeat(40)), "too many options");
    }
}
