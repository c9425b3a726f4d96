//! Builds this program's errors, which are libnvc's, with hints.

pub(crate) use libnvc::{Error, Result};

use libnvc::ErrorKind;

/// Describes an unsuitable configuration or request.
pub(crate) fn refused(text: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidArgument, text.to_string())
}
