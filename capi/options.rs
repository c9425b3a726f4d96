//! Knows the option words of library, driver and containers, and the containers' bit values, which are visible to C.
//!
//! The words are separated by spaces; order and duplicates do not matter. The bit values are part of the ABI: a
//! container begins with them, and upstream's command line reads them there.

use bitflags::bitflags;
use libnvc::options::{CudaCompatMode, DriverOptions, LibraryOptions};
use libnvc::request::{Capabilities, Policy, Request};
use libnvc::{Error, ErrorKind, Result};

/// Words of the library's options.
pub(crate) const OF_LIBRARY: &[(&str, LibraryOptions)] = &[
    ("load-kmods", LibraryOptions::LOAD_KMODS),
    (
        "no-create-imex-channels",
        LibraryOptions::NO_CREATE_IMEX_CHANNELS,
    ),
];

/// Words of the driver's options.
pub(crate) const OF_DRIVER: &[(&str, DriverOptions)] = &[
    ("no-glvnd", DriverOptions::NO_GLVND),
    ("no-uvm", DriverOptions::NO_UVM),
    ("no-modeset", DriverOptions::NO_MODESET),
    ("no-mps", DriverOptions::NO_MPS),
    ("no-persistenced", DriverOptions::NO_PERSISTENCED),
    ("no-fabricmanager", DriverOptions::NO_FABRICMANAGER),
    ("no-gsp-firmware", DriverOptions::NO_GSP_FIRMWARE),
];

bitflags! {
    /// How to reach a container, and what it gets.
    ///
    /// The words for video and display include the capabilities they need. Bit 4 was never assigned.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct ContainerOptions: u32 {
        /// Reach the container through the caller's /proc.
        const SUPERVISED = 1 << 0;
        /// Reach the container through the /proc in its own root.
        const STANDALONE = 1 << 1;
        /// Do not change the device cgroup.
        const NO_CGROUPS = 1 << 2;
        /// Do not mount device nodes.
        const NO_DEVBIND = 1 << 3;
        const UTILITY = 1 << 5;
        const COMPUTE = 1 << 6;
        const NGX = 1 << 7;
        const VIDEO = 1 << 8;
        const GRAPHICS = 1 << 9;
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

    /// The options of a container without explicit options.
    pub(crate) const DEFAULT_WORDS: &str = "standalone no-cgroups no-devbind utility";

    /// Parses the set that `words` name, and checks it for contradictions.
    ///
    /// # Errors
    /// `invalid option: <word>`, `too many options`, `invalid mode of operation` unless exactly one of `supervised` and
    /// `standalone` is given, `only one cuda-compat-mode can be specified at a time`.
    pub(crate) fn parse(words: &str) -> Result<Self> {
        let options: Self = libnvc::options::parse(words, Self::WORDS)?;
        if options.contains(Self::SUPERVISED) == options.contains(Self::STANDALONE) {
            return Err(invalid("invalid mode of operation"));
        }
        options.cuda_compat()?;
        Ok(options)
    }

    /// Returns the container's request; later calls name the devices.
    pub(crate) fn request(self) -> Result<Request> {
        let words = [
            // The programs' bit: video includes the compute libraries, but does not request the rest of compute.
            (Self::UTILITY_BINS, Capabilities::UTILITY),
            (Self::COMPUTE_BINS, Capabilities::COMPUTE),
            (Self::NGX, Capabilities::NGX),
            (Self::VIDEO, Capabilities::VIDEO),
            (Self::GRAPHICS, Capabilities::GRAPHICS),
            (Self::DISPLAY, Capabilities::DISPLAY),
            (Self::COMPAT32, Capabilities::COMPAT32),
        ];
        let asked = words.into_iter().filter(|(bit, _)| self.contains(*bit));
        Ok(Request {
            capabilities: asked.map(|(_, capability)| capability).collect(),
            policy: Policy {
                device_nodes: !self.contains(Self::NO_DEVBIND),
                device_rules: !self.contains(Self::NO_CGROUPS),
                cuda_compat: self.cuda_compat()?,
                ..Policy::default()
            },
            ..Request::default()
        })
    }

    /// Returns the use of the image's CUDA compatibility libraries; `Disabled` has precedence, `Mount` is the default.
    fn cuda_compat(self) -> Result<CudaCompatMode> {
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

fn invalid(text: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Upstream's command line was compiled with these values.
    #[test]
    fn numbers_are_part_of_the_abi() {
        for (words, number) in [
            ("supervised", 0x1),
            ("standalone", 0x2),
            ("supervised no-cgroups", 0x5),
            ("supervised no-devbind", 0x9),
            ("supervised utility", 0x821),
            ("supervised compute", 0x1041),
            ("supervised ngx", 0x81),
            ("supervised video", 0x141),
            ("supervised graphics", 0x201),
            ("supervised display", 0x601),
            ("supervised compat32", 0x2001),
            ("supervised no-cntlibs", 0x4001),
            ("supervised cuda-compat-mode=disabled", 0x4001),
            ("supervised cuda-compat-mode=ldconfig", 0x8001),
            ("supervised cuda-compat-mode=mount", 0x1_0001),
        ] {
            let options = ContainerOptions::parse(words).unwrap();
            assert_eq!(options.bits(), number, "{words}");
        }
    }

    #[test]
    fn words_make_requests() {
        let words = "  supervised  video display utility utility";
        let request = ContainerOptions::parse(words).unwrap().request().unwrap();
        let asked = Capabilities::VIDEO
            | Capabilities::DISPLAY
            | Capabilities::UTILITY
            | Capabilities::GRAPHICS;
        assert_eq!(request.capabilities, asked);
        assert!(request.policy.device_nodes && request.policy.device_rules);
        let default = ContainerOptions::parse(ContainerOptions::DEFAULT_WORDS).unwrap();
        let policy = default.request().unwrap().policy;
        assert!(!policy.device_nodes && !policy.device_rules);
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
        let mode = options.unwrap().cuda_compat().unwrap();
        assert_eq!(mode, CudaCompatMode::Disabled);
    }
}
