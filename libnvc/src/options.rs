//! Turns option words into typed sets and back.
//!
//! The words are the C library's interface: a string of words separated by spaces, order irrelevant, duplicates
//! harmless, at most 255 bytes. Rust callers use the sets directly.

use bitflags::bitflags;

use crate::error::{Error, ErrorKind, Result};

/// Longest option string; the C library's `NVC_ARG_MAX` counts its terminating zero too.
const LONGEST: usize = 255;

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

bitflags! {
    /// How a container is reached and what it gets.
    ///
    /// Words whose capability needs `GRAPHICS` or `COMPUTE` set those bits too.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ContainerOptions: u32 {
        /// Reach the container through the caller's /proc.
        const SUPERVISED = 1 << 0;
        /// Reach the container through the /proc in its own root.
        const STANDALONE = 1 << 1;
        /// Do no device-cgroup work.
        const NO_CGROUPS = 1 << 2;
        /// Do not bind device nodes.
        const NO_DEVBIND = 1 << 3;
        /// Libraries and programs for monitoring.
        const UTILITY = 1 << 5;
        /// CUDA and OpenCL.
        const COMPUTE = 1 << 6;
        /// DLSS and the like.
        const NGX = 1 << 7;
        /// Video codecs; needs compute libraries.
        const VIDEO = 1 << 8;
        /// OpenGL and Vulkan.
        const GRAPHICS = 1 << 9;
        /// X11 displays; needs graphics libraries.
        const DISPLAY = 1 << 10;
        /// Programs of the utility capability.
        const UTILITY_BINS = 1 << 11;
        /// Programs of the compute capability.
        const COMPUTE_BINS = 1 << 12;
        /// 32-bit libraries too.
        const COMPAT32 = 1 << 13;
        /// Ignore the image's CUDA compatibility libraries.
        const CUDA_COMPAT_DISABLED = 1 << 14;
        /// Put the image's CUDA compatibility directory first on ldconfig's command line.
        const CUDA_COMPAT_LDCONFIG = 1 << 15;
        /// Mount the image's CUDA compatibility libraries beside the driver's.
        const CUDA_COMPAT_MOUNT = 1 << 16;
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

    /// The set that `words` name; no words, no options.
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

    /// The set that `words` name; no words, no options.
    ///
    /// # Errors
    /// `invalid option: <word>` and `too many options`.
    pub fn parse(words: &str) -> Result<Self> {
        parse(words, Self::WORDS)
    }
}

impl ContainerOptions {
    const WORDS: &[(&str, Self)] = &[
        ("supervised", Self::SUPERVISED),
        ("standalone", Self::STANDALONE),
        ("no-cgroups", Self::NO_CGROUPS),
        ("no-devbind", Self::NO_DEVBIND),
        ("no-cntlibs", Self::CUDA_COMPAT_DISABLED),
        ("utility", Self::UTILITY.union(Self::UTILITY_BINS)),
        ("compute", Self::COMPUTE.union(Self::COMPUTE_BINS)),
        ("ngx", Self::NGX),
        ("video", Self::VIDEO.union(Self::COMPUTE)),
        ("graphics", Self::GRAPHICS),
        ("display", Self::DISPLAY.union(Self::GRAPHICS)),
        ("compat32", Self::COMPAT32),
        ("cuda-compat-mode=disabled", Self::CUDA_COMPAT_DISABLED),
        ("cuda-compat-mode=ldconfig", Self::CUDA_COMPAT_LDCONFIG),
        ("cuda-compat-mode=mount", Self::CUDA_COMPAT_MOUNT),
    ];

    /// The default options of a container.
    pub const DEFAULT_WORDS: &str = "standalone no-cgroups no-devbind utility";

    /// The set that `words` name, checked for contradictions.
    ///
    /// # Errors
    /// `invalid option: <word>`, `too many options`, `invalid mode of operation` unless exactly one of
    /// `supervised` and `standalone` is there, `only one cuda-compat-mode can be specified at a time`.
    pub fn parse(words: &str) -> Result<Self> {
        let options: Self = parse(words, Self::WORDS)?;
        if options.contains(Self::SUPERVISED) == options.contains(Self::STANDALONE) {
            return Err(invalid("invalid mode of operation"));
        }
        options.checked_cuda_compat()?;
        Ok(options)
    }

    /// How the image's CUDA compatibility libraries are used; `Disabled` wins, `Mount` is the default.
    ///
    /// # Errors
    /// `only one cuda-compat-mode can be specified at a time`.
    pub fn checked_cuda_compat(self) -> Result<CudaCompatMode> {
        let both = Self::CUDA_COMPAT_LDCONFIG | Self::CUDA_COMPAT_MOUNT;
        if self.contains(Self::CUDA_COMPAT_DISABLED) {
            Ok(CudaCompatMode::Disabled)
        } else if self.contains(both) {
            Err(invalid(
                "only one cuda-compat-mode can be specified at a time",
            ))
        } else if self.contains(Self::CUDA_COMPAT_LDCONFIG) {
            Ok(CudaCompatMode::Ldconfig)
        } else {
            Ok(CudaCompatMode::Mount)
        }
    }
}

fn parse<T: bitflags::Flags + Copy>(words: &str, table: &[(&str, T)]) -> Result<T> {
    if words.len() > LONGEST {
        return Err(invalid("too many options"));
    }
    let mut set = T::empty();
    for word in words.split(' ').filter(|word| !word.is_empty()) {
        let (_, flags) = table
            .iter()
            .find(|(name, _)| *name == word)
            .ok_or_else(|| invalid(format!("invalid option: {word}")))?;
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
        let options =
            ContainerOptions::parse("  supervised  video display utility utility").unwrap();
        assert!(options.contains(ContainerOptions::COMPUTE | ContainerOptions::GRAPHICS));
        assert!(!options.contains(ContainerOptions::COMPUTE_BINS));
        assert_eq!(DriverOptions::parse("").unwrap(), DriverOptions::empty());
        assert_eq!(
            LibraryOptions::parse("load-kmods").unwrap(),
            LibraryOptions::LOAD_KMODS
        );
    }

    #[test]
    fn contradictions_and_unknown_words_are_refused() {
        let message = |words: &str| ContainerOptions::parse(words).unwrap_err().message();
        assert_eq!(message("utility"), "invalid mode of operation");
        assert_eq!(
            message("supervised standalone"),
            "invalid mode of operation"
        );
        assert_eq!(message("supervised frob"), "invalid option: frob");
        assert_eq!(message(&"utility ".repeat(40)), "too many options");
        assert_eq!(
            message("supervised cuda-compat-mode=mount cuda-compat-mode=ldconfig"),
            "only one cuda-compat-mode can be specified at a time"
        );
    }

    #[test]
    fn disabled_compat_wins() {
        let options = ContainerOptions::parse(
            "standalone no-cntlibs cuda-compat-mode=mount cuda-compat-mode=ldconfig",
        );
        assert_eq!(
            options.unwrap().checked_cuda_compat().unwrap(),
            CudaCompatMode::Disabled
        );
    }
}
