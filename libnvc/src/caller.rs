//! Reads the environment of the process that calls the library.

#![forbid(unsafe_code)]

use std::ffi::OsString;

/// Returns a variable that says how the driver is found or what is logged; None if the environment is an image's.
///
/// LXC starts its hooks with the variables of the container, and those of an image from a registry are among them. They
/// would choose directories and files of the host.
pub fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|_| is_trusted())
}

/// Returns false in a hook of LXC, which sets this variable itself.
pub fn is_trusted() -> bool {
    std::env::var_os("LXC_HOOK_TYPE").is_none()
}
