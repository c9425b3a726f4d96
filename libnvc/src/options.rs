//! Defines the options of the library, and parses words that name options.
//!
//! Words are for interfaces such as the C library's: a string of words separated by spaces, order irrelevant, duplicates
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
    fn unknown_words_are_refused() {
        let message = |words: &str| parse(words, WORDS).unwrap_err().message();
        assert_eq!(message("no-mps frob"), "invalid option: frob");
        assert_eq!(message(&"no-mps ".repeat(40)), "too many options");
    }
}
