//! Parses the requested parts of the driver.

use std::collections::BTreeSet;
use std::fmt;

use super::{Environment, Error, legacy};

const VARIABLE: &str = "NVIDIA_DRIVER_CAPABILITIES";

/// A set of driver capabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(u8);

/// In alphabetical order, the order of nvidia-container-cli's options.
const NAMES: [&str; 7] = [
    "compat32", "compute", "display", "graphics", "ngx", "utility", "video",
];

impl Capabilities {
    /// No capability.
    pub const NONE: Self = Self(0);
    /// Every capability.
    pub const ALL: Self = Self(0x7f);

    /// Returns the capability of this name.
    pub fn named(name: &str) -> Option<Self> {
        let index = NAMES.iter().position(|known| *known == name)?;
        Some(Self(1 << index))
    }

    /// Returns the union.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the intersection.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns true if the set includes `other`.
    pub fn contains(self, other: Self) -> bool {
        self.and(other) == other
    }

    /// Returns the names, in alphabetical order.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let bits = (0..).zip(NAMES);
        bits.filter(move |(bit, _)| self.0 & (1 << bit) != 0)
            .map(|(_, name)| name)
    }
}

impl fmt::Display for Capabilities {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.names().collect::<Vec<_>>().join(","))
    }
}

/// Parses the supported set of a configuration; exactly `all` is every capability, empty is none.
pub(super) fn supported(text: &str) -> Result<Capabilities, Error> {
    if text == "all" {
        return Ok(Capabilities::ALL);
    }
    let (set, unknown) = read(text);
    if unknown.is_empty() {
        Ok(set)
    } else {
        Err(Error::NoSuchCapability(join(&unknown)))
    }
}

/// Returns the supported capabilities that a container gets.
///
/// # Errors
/// A requested one is not supported.
pub fn of(environment: &Environment, supported: Capabilities) -> Result<Capabilities, Error> {
    let ordinary = Capabilities(0b10_0010); // compute, utility
    let text = match environment.get(VARIABLE) {
        None if legacy::is_legacy(environment) => return Ok(supported),
        None | Some("") => return Ok(ordinary.and(supported)),
        Some(text) => text,
    };
    if words(text).any(|word| word == "all") {
        return Ok(supported);
    }
    let (set, unknown) = read(text);
    if unknown.is_empty() && supported.contains(set) {
        return Ok(set);
    }
    let requested: BTreeSet<&str> = words(text).collect();
    Err(Error::Capabilities {
        requested: join(&requested),
        allowed: set.and(supported).to_string(),
    })
}

/// Returns true if a container requests graphics explicitly and they are supported; defaults do not count.
pub fn asks_for_graphics(environment: &Environment, supported: Capabilities) -> bool {
    let graphics = Capabilities(0b1100); // display, graphics
    let text = environment.get(VARIABLE).unwrap_or_default();
    let asked = match words(text).any(|word| word == "all") {
        true => Capabilities::ALL,
        false => read(text).0,
    };
    asked.and(supported).and(graphics) != Capabilities::NONE
}

/// Splits a list into known capabilities and unknown words.
fn read(text: &str) -> (Capabilities, BTreeSet<&str>) {
    let mut set = Capabilities::NONE;
    let mut unknown = BTreeSet::new();
    for word in words(text) {
        match Capabilities::named(word) {
            Some(capability) => set = set.with(capability),
            None => {
                unknown.insert(word);
            }
        }
    }
    (set, unknown)
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
}

fn join(words: &BTreeSet<&str>) -> String {
    words.iter().copied().collect::<Vec<_>>().join(",")
}
