//! Returns the library's version.

use std::ffi::{c_char, c_uint};

/// The version of the library.
#[repr(C)]
#[derive(Debug)]
pub struct nvc_version {
    /// Major version, which is the ABI's.
    pub major: c_uint,
    /// Minor version.
    pub minor: c_uint,
    /// Patch level.
    pub patch: c_uint,
    /// The whole version as text.
    pub string: *const c_char,
}

// SAFETY: it is immutable, and the text it points to is constant.
unsafe impl Sync for nvc_version {}

static VERSION: nvc_version = nvc_version {
    major: number(env!("CARGO_PKG_VERSION_MAJOR")),
    minor: number(env!("CARGO_PKG_VERSION_MINOR")),
    patch: number(env!("CARGO_PKG_VERSION_PATCH")),
    string: concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast(),
};

const fn number(text: &str) -> c_uint {
    match c_uint::from_str_radix(text, 10) {
        Ok(number) => number,
        Err(_) => panic!("cargo's versions are numbers"),
    }
}

/// Returns the version of the loaded library, which may be newer than this header (NVC_VERSION).
///
/// Never NULL. The record is constant and belongs to the library. May be called by any thread at any time.
#[unsafe(no_mangle)]
pub extern "C" fn nvc_version() -> *const nvc_version {
    &raw const VERSION
}
