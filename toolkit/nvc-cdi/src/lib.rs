//! Reads, checks, merges and writes CDI specifications.
//!
//! Data flow: a file's bytes become a tree of values (JSON or YAML), the tree becomes a [`Spec`], the specification is
//! [validated](validate), and a [`Registry`] of all files lists the existing devices. For output, a [`Spec`] becomes
//! [text](emit) and then a [file](file). Reading follows the Go reference library, which engines use: it rejects the
//! same inputs, and accepts the same spellings of numbers and booleans.
//!
//! [`edits`] puts what specifications say into a container's config.json, as engines do; [`nodes`] describes the nodes of
//! the host that they name.
#![forbid(unsafe_code)]

pub mod compare;
pub mod edits;
pub mod emit;
pub mod file;
pub mod names;
pub mod nodes;
pub mod registry;
pub mod transform;
pub mod validate;
pub mod version;

mod decode;
mod model;
mod scalar;
mod yaml;

pub use model::{
    CHARACTER, Device, DeviceNode, Edits, Hook, IntelRdt, Mount, NetDevice, STANDARD_DIRECTORIES,
    Spec,
};
pub use registry::Registry;

use libnvc::{Error, ErrorKind, Result};
use nvc_oci::unique;
use serde_json::Value;

/// Size limit of a specification. One for 64 GPUs with seven MIG devices each has 3 MiB.
pub const MAX_SIZE: usize = 32 << 20;

/// Reads a specification, JSON or YAML, without validating it: [`validate::spec`] does that.
pub fn parse(text: &[u8]) -> Result<Spec> {
    decode::spec(tree(text)?)
}

/// Parses a text. Text that looks like JSON is parsed as JSON first, which is faster.
fn tree(text: &[u8]) -> Result<Value> {
    if text.len() > MAX_SIZE {
        let size = text.len();
        return Err(malformed(format!("{size} bytes are more than {MAX_SIZE}")));
    }
    let text = std::str::from_utf8(text).map_err(|error| malformed(error.to_string()))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim_start().starts_with('{')
        && let Ok(value) = unique::parse(text)
    {
        return Ok(value);
    }
    yaml::parse(text)
}

/// Describes a text that breaks a rule.
fn malformed(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Malformed, text)
}

#[cfg(test)]
mod tests;
