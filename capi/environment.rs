//! Reads environment variables as a library must.

use std::ffi::{CStr, OsString, c_char};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use libnvc::caller;

use crate::memory::text;

unsafe extern "C" {
    fn secure_getenv(name: *const c_char) -> *const c_char;
}

/// Returns an environment variable, unless the program has privileges that its caller lacks, or the variables are an
/// image's.
pub(crate) fn environment(name: &CStr) -> Option<OsString> {
    if !caller::is_trusted() {
        return None;
    }
    // SAFETY: a NUL-terminated name.
    let value = unsafe { secure_getenv(name.as_ptr()) };
    // SAFETY: NULL or a string, copied immediately; changing the environment in another thread at the same time would
    // violate getenv(3)'s own rule.
    let found = unsafe { text(value) }?;
    Some(OsString::from_vec(found.as_bytes().to_vec()))
}
