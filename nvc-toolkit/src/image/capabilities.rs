//! Reads which parts of the driver a container asks for.

use std::collections::BTreeSet;
use std::fmt;

use super::{Environment, Error, legacy};

const VARIABLE: &str = "NVIDIA_DRIVER_CAPABILITIES";

/// A set of driver capabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(u8);

/// In alphabetical order, which is that of nvidia-container-cli's options.
const NAMES: [&str; 7] = [
    "compat32", "compute", "display", "graphics", "ngx", "utility", "video",
];

impl Capabilities {
    /// No capability.
    pub const NONE: Self = Self(0);
    /// Every capability.
    pub const ALL: Self = Self(0x7f);

    /// The capability of this name.
    pub fn named(name: &str) -> Option<Self> {
        let index = NAMES.iter().position(|known| *known == name)?;
        Some(Self(1 << index))
    }

    /// Both sets.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// What both sets have.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether all of `other` is in the set.
    pub fn contains(self, other: Self) -> bool {
        self.and(other) == other
    }

    /// The names, in alphabetical order.
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

/// The set that a configuration supports; exactly `all` is every capability, nothing is none.
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

/// The capabilities that a container gets, of those that are supported.
///
/// # Errors
/// One is asked for that is not supported.
pub fn of(environment: &Environment, supported: Capabilities) -> Result<Capabilities, Error> {
    let ordinary = Capabilities(0b10_0010); // compute and utility
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

/// Whether a container asks for pictures in words; no default counts.
pub fn asks_for_graphics(environment: &Environment) -> bool {
    let text = environment.get(VARIABLE).unwrap_or_default();
    words(text).any(|word| matches!(word, "all" | "graphics" | "display"))
}

/// The known capabilities of a list, and the unknown words in it.
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
