//! Exposes internals to fuzz targets: runs all parsers of foreign bytes, and checks invariants of their results.
//!
//! Not part of the crate's interface.

use crate::{cuda_version, device_id, driver_volume, plugin, wrapper};

/// Passes bytes to every parser.
///
/// # Panics
/// An invariant is violated.
pub fn parse(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    // Any result is fine.
    let _ = cuda_version::CudaVersion::parse(&text);
    for id in device_id::items(&text) {
        let _ = device_id::find(id, &[]);
    }
    if let Ok(version) = driver_volume::version(&text) {
        assert!(!version.contains('/'), "{version}");
        assert!(!driver_volume::is_version(version) || !version.contains(".."));
    }
    wrapper::parse(bytes, &text);
    plugin::parse(bytes, &text);
}
