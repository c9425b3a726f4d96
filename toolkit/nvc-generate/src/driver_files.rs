//! Derives the driver's version from its file names, without querying the driver.

use std::path::Path;

use libnvc::host::{DriverRoot, search};
use libnvc::{Error, ErrorKind, Result};

/// Returns the version in the name of the CUDA library, or of the management library.
///
/// # Errors
/// Neither exists.
pub fn version(root: &Path) -> Result<String> {
    let found = DriverRoot::open(root).ok();
    let found = found.and_then(|root| search::version(&root, &[]));
    let missing = |library: &str| {
        format!("failed to locate \"{library}\": {library}*.*: not found; {library}*.*: not found")
    };
    found.ok_or_else(|| {
        let text = ["libcuda.so.", "libnvidia-ml.so."].map(missing).join("; ");
        Error::new(ErrorKind::NotFound, text)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_name_ends_with_the_version() {
        let root = tempfile::tempdir().unwrap();
        let lib = root.path().join("usr/lib/x86_64-linux-gnu");
        fs::create_dir_all(&lib).unwrap();
        assert!(
            version(root.path())
                .unwrap_err()
                .message()
                .contains("libnvidia-ml.so.")
        );
        for name in ["libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1.real"] {
            fs::write(lib.join(name), "").unwrap();
        }
        assert_eq!(version(root.path()).unwrap(), "1.real");
        fs::write(lib.join("libcuda.so.570.86.10"), "").unwrap();
        assert_eq!(version(root.path()).unwrap(), "570.86.10");
    }
}
