//! Parses the requested parts of the driver.

use libnvc::request::{Capabilities, Capability};

use super::{Environment, Error, legacy};

const VARIABLE: &str = "NVIDIA_DRIVER_CAPABILITIES";

/// Parses the supported set of a configuration; exactly `all` means every capability, an empty one means none.
pub(super) fn supported(text: &str) -> Result<Capabilities, Error> {
    if text == "all" {
        return Ok(Capabilities::all());
    }
    let (set, unknown) = read(text);
    if unknown.is_empty() {
        Ok(set)
    } else {
        Err(Error::NoSuchCapability(join(unknown)))
    }
}

/// Returns the supported capabilities that a container gets.
///
/// # Errors
/// A requested one is not supported.
pub fn of(environment: &Environment, supported: Capabilities) -> Result<Capabilities, Error> {
    let ordinary = Capabilities::COMPUTE | Capabilities::UTILITY;
    let text = match environment.get(VARIABLE) {
        None if legacy::is_legacy(environment) => return Ok(supported),
        None | Some("") => return Ok(ordinary & supported),
        Some(text) => text,
    };
    if words(text).any(|word| word == "all") {
        return Ok(supported);
    }
    let (set, unknown) = read(text);
    if unknown.is_empty() && supported.contains(set) {
        return Ok(set);
    }
    Err(Error::Capabilities {
        requested: join(words(text).collect()),
        allowed: (set & supported).to_string(),
    })
}

/// Returns true if a container requests graphics explicitly and they are supported; defaults do not count.
pub fn asks_for_graphics(environment: &Environment, supported: Capabilities) -> bool {
    (asked(environment) & supported).include(Capability::Graphics)
}

/// Returns what a container requests explicitly, supported or not.
pub fn asked(environment: &Environment) -> Capabilities {
    let text = environment.get(VARIABLE).unwrap_or_default();
    if words(text).any(|word| word == "all") {
        Capabilities::all()
    } else {
        read(text).0
    }
}

/// Splits a list into known capabilities and unknown words.
fn read(text: &str) -> (Capabilities, Vec<&str>) {
    let mut set = Capabilities::empty();
    let mut unknown = Vec::new();
    for word in words(text) {
        match Capabilities::from_word(word) {
            Some(capability) => set |= capability,
            None => unknown.push(word),
        }
    }
    (set, unknown)
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
}

/// Joins the words in alphabetical order, each once.
fn join(mut words: Vec<&str>) -> String {
    words.sort();
    words.dedup();
    words.join(",")
}
