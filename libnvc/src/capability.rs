//! Defines the driver's capabilities: the parts of the driver that a container can request.
//!
//! Each file in the catalogue belongs to one of them or to none; a container requests a set. The words are those of
//! `NVIDIA_DRIVER_CAPABILITIES` and of the options of `nvidia-container-cli configure`.

#![forbid(unsafe_code)]

use bitflags::bitflags;
use serde::Serialize;

/// A part of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Capability {
    /// Libraries and programs for monitoring.
    Utility = Capabilities::UTILITY.bits(),
    /// CUDA and OpenCL.
    Compute = Capabilities::COMPUTE.bits(),
    /// DLSS and the like.
    Ngx = Capabilities::NGX.bits(),
    /// Video codecs.
    Video = Capabilities::VIDEO.bits(),
    /// OpenGL and Vulkan.
    Graphics = Capabilities::GRAPHICS.bits(),
    /// X11 displays.
    Display = Capabilities::DISPLAY.bits(),
}

bitflags! {
    /// The capabilities that a container requests.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Capabilities: u8 {
        /// [`Capability::Utility`]
        const UTILITY = 1 << 0;
        /// [`Capability::Compute`]
        const COMPUTE = 1 << 1;
        /// [`Capability::Ngx`]
        const NGX = 1 << 2;
        /// [`Capability::Video`]; includes the compute libraries.
        const VIDEO = 1 << 3;
        /// [`Capability::Graphics`]
        const GRAPHICS = 1 << 4;
        /// [`Capability::Display`]; includes the graphics libraries.
        const DISPLAY = 1 << 5;
        /// The 32-bit variants of the requested libraries.
        const COMPAT32 = 1 << 6;
    }
}

impl Capability {
    /// Returns its word.
    pub(crate) fn word(self) -> &'static str {
        let mut words = Capabilities::of(self).words();
        words.next().unwrap_or_default()
    }

    /// All of them.
    pub(crate) const ALL: [Self; 6] = [
        Self::Utility,
        Self::Compute,
        Self::Ngx,
        Self::Video,
        Self::Graphics,
        Self::Display,
    ];
}

impl std::fmt::Display for Capability {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(self.word())
    }
}

impl std::fmt::Display for Capabilities {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.words().collect::<Vec<_>>().join(","))
    }
}

/// In alphabetical order, the order of nvidia-container-cli's options.
const WORDS: [(&str, Capabilities); 7] = [
    ("compat32", Capabilities::COMPAT32),
    ("compute", Capabilities::COMPUTE),
    ("display", Capabilities::DISPLAY),
    ("graphics", Capabilities::GRAPHICS),
    ("ngx", Capabilities::NGX),
    ("utility", Capabilities::UTILITY),
    ("video", Capabilities::VIDEO),
];

impl Capabilities {
    /// Returns the set of one capability.
    pub(crate) fn of(capability: Capability) -> Self {
        Self::from_bits_truncate(capability as u8)
    }

    /// Returns the capability that a word names.
    pub fn from_word(word: &str) -> Option<Self> {
        let known = WORDS.into_iter().find(|(known, _)| *known == word);
        known.map(|(_, capability)| capability)
    }

    /// Returns the words, in alphabetical order.
    pub fn words(self) -> impl Iterator<Item = &'static str> {
        let known = WORDS.into_iter();
        known
            .filter(move |(_, capability)| self.contains(*capability))
            .map(|(word, _)| word)
    }

    /// Returns true if the container gets libraries, sockets and devices of a capability: video includes the compute
    /// libraries, display the graphics libraries.
    pub fn include(self, capability: Capability) -> bool {
        let needed_by = match capability {
            Capability::Compute => Self::COMPUTE | Self::VIDEO,
            Capability::Graphics => Self::GRAPHICS | Self::DISPLAY,
            other => Self::of(other),
        };
        self.intersects(needed_by)
    }

    /// Returns true if the container gets the programs of a capability: only those of capabilities in the set itself.
    pub(crate) fn include_programs(self, capability: Capability) -> bool {
        self.contains(Self::of(capability))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn video_and_display_bring_libraries_but_no_programs() {
        let video = Capabilities::VIDEO;
        assert!(video.include(Capability::Compute));
        assert!(!video.include_programs(Capability::Compute));
        assert!(!video.include(Capability::Graphics));
        assert!(Capabilities::DISPLAY.include(Capability::Graphics));
        assert!(!Capabilities::GRAPHICS.include(Capability::Display));
        assert!(Capabilities::COMPUTE.include_programs(Capability::Compute));
    }

    #[test]
    fn words_name_single_capabilities() {
        for capability in Capability::ALL {
            let named = Capabilities::from_word(capability.word());
            assert_eq!(named, Some(Capabilities::of(capability)));
        }
        assert_eq!(Capabilities::from_word("all"), None);
        let all = Capabilities::all().to_string();
        assert_eq!(all, "compat32,compute,display,graphics,ngx,utility,video");
    }
}
