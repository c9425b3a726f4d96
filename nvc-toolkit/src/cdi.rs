//! Reads, checks, merges and writes CDI specifications.
//!
//! The data's way: a file's bytes become a [`Node`] tree (JSON or YAML), the tree becomes a [`Spec`], the specification is
//! [validated](validate), and a [`Registry`] of all files says which devices exist. Going out, a [`Spec`] becomes
//! [text](emit) and then a [file](file). Reading follows the Go reference library, since that is what engines read with:
//! what it refuses, this refuses, and what it reads as a number or a boolean, this does too.

pub mod compare;
pub mod emit;
pub mod file;
pub mod names;
pub mod registry;
pub mod transform;
pub mod validate;
pub mod version;

mod decode;
mod json;
mod model;
mod node;
#[cfg(feature = "yaml")]
mod yaml;

pub use model::{
    Device, DeviceNode, Edits, Hook, IntelRdt, Mount, NetDevice, STANDARD_DIRECTORIES, Spec,
};
pub use registry::Registry;

use libnvc::{Error, ErrorKind, Result};
use node::Node;

/// The largest specification that is read. One for 64 GPUs with seven MIG devices each has 3 MiB.
pub const LARGEST: usize = 32 << 20;

/// Reads a specification, JSON or YAML, without validating it: [`validate::spec`] does that.
pub fn parse(text: &[u8]) -> Result<Spec> {
    decode::spec(tree(text)?).map_err(|text| Error::new(ErrorKind::Malformed, text))
}

#[cfg(feature = "engine")]
/// Checks that a text is JSON and that no object in it has a key twice; the error has line and column.
pub(crate) fn check_json(text: &str) -> Result<(), String> {
    json::parse(text).map(drop)
}

/// Reads a text as data. What begins like JSON is read as such first: it is the faster reader.
fn tree(text: &[u8]) -> Result<Node> {
    let malformed = |text: String| Error::new(ErrorKind::Malformed, text);
    if text.len() > LARGEST {
        let size = text.len();
        return Err(malformed(format!("{size} bytes are more than {LARGEST}")));
    }
    let text = std::str::from_utf8(text).map_err(|error| malformed(error.to_string()))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    #[cfg(feature = "yaml")]
    {
        if text.trim_start().starts_with('{')
            && let Ok(node) = json::parse(text)
        {
            return Ok(node);
        }
        yaml::parse(text).map_err(malformed)
    }
    #[cfg(not(feature = "yaml"))]
    json::parse(text).map_err(malformed)
}

#[cfg(test)]
mod tests;
