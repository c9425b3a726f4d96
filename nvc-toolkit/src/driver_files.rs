//! Finds the driver's version by the names of its files, where the driver itself is not asked.

use std::fs;
use std::path::Path;

/// Where libraries are, in the order in which they are looked for.
pub(crate) const LIBRARY_DIRECTORIES: [&str; 11] = [
    "/",
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/lib64",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/lib/x86_64-linux-gnu/nvidia/current",
    "/lib/aarch64-linux-gnu/nvidia/current",
];

/// The version that the CUDA library's name ends with, or that of the management library.
///
/// # Errors
/// Neither is there.
pub fn version(root: &Path) -> Result<String, String> {
    let mut failures = Vec::new();
    for library in ["libcuda.so.", "libnvidia-ml.so."] {
        for directory in LIBRARY_DIRECTORIES.into_iter().chain(["/usr/lib"]) {
            let directory = root.join(&directory[1..]);
            if let Some(version) = version_in(&directory, library) {
                return Ok(version);
            }
        }
        failures.push(format!(
            "failed to locate {library:?}: {library}*.*: not found\n{library}*.*: not found"
        ));
    }
    Err(failures.join("\n"))
}

fn version_in(directory: &Path, library: &str) -> Option<String> {
    let mut versions: Vec<String> = fs::read_dir(directory)
        .ok()?
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let version = name.strip_prefix(library)?;
            let has_parts = version.split('.').filter(|part| !part.is_empty()).count() >= 2;
            (has_parts && entry.path().exists()).then(|| version.to_owned())
        })
        .collect();
    versions.sort();
    versions.pop()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_name_ends_with_the_version() {
        let root = tempfile::tempdir().unwrap();
        let lib = root.path().join("usr/lib/x86_64-linux-gnu");
        fs::create_dir_all(&lib).unwrap();
        assert!(
            version(root.path())
                .unwrap_err()
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
