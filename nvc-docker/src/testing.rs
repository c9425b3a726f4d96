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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    const PARTS: &[&str] = &[
        "run",
        "-",
        "--",
        "=",
        "-it",
        "{",
        "}",
        "\"Name\":",
        "\"",
        "null",
        "[",
        "]",
        "HTTP/1.1 200 OK\r\n",
        "\r\n\r\n",
        "Content-Length: ",
        "Transfer-Encoding: chunked",
        "nvidia_driver_",
        "..",
        "/",
        "%",
        "%2",
        "+",
        "&dev=",
        "8.0",
        "ssh://",
        "@",
        ":",
        "[::1]",
        "9",
        "\u{0}",
        "é",
    ];

    proptest! {
        #[test]
        fn nothing_panics(parts in proptest::collection::vec(0..PARTS.len(), 0..12), bytes in any::<Vec<u8>>()) {
            let text: String = parts.iter().filter_map(|part| PARTS.get(*part).copied()).collect();
            super::parse(text.as_bytes());
            super::parse(&bytes);
            super::parse(&[text.as_bytes(), &bytes].concat());
        }
    }
}
