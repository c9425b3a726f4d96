//! Finds the real runtime among the configured candidates.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use nvc_hostfile::programs;

use crate::error::{Result, refused};

/// Returns the first candidate that exists.
pub(crate) fn find(candidates: &[String], path: Option<&OsStr>) -> Result<PathBuf> {
    if candidates.is_empty() {
        return Err(refused(
            "error locating runtime: at least one runtime candidate must be specified",
        ));
    }
    let directories = programs::directories(path);
    candidates
        .iter()
        .find_map(|candidate| locate(candidate, &directories))
        .ok_or_else(|| {
            let list = candidates.join(" ");
            refused(format!(
                "error locating runtime: no runtime binary found from candidate list: [{list}]"
            ))
            .hint("name the engine's runtime with its path in nvidia-container-runtime.runtimes of config.toml")
        })
}

fn locate(candidate: &str, directories: &[PathBuf]) -> Option<PathBuf> {
    if candidate.is_empty() {
        return None;
    }
    if candidate.contains('/') {
        let path = PathBuf::from(candidate);
        return programs::is_executable(&path).then_some(path);
    }
    // Relative entries of the search path are resolved in `/`: the current directory is the container's.
    let mut directories = directories.iter().map(|entry| Path::new("/").join(entry));
    directories.find_map(|directory| {
        let mut found = programs::matching(&directory.join(candidate)).into_iter();
        found.find(|path| programs::is_executable(path))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::find;

    #[test]
    fn the_first_that_can_be_executed_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for (name, mode) in [("runc", 0o755), ("runx", 0o755), ("no-such-x", 0o644)] {
            std::fs::write(path(name), "").unwrap();
            std::fs::set_permissions(path(name), std::fs::Permissions::from_mode(mode)).unwrap();
        }
        std::fs::create_dir(path("directory")).unwrap();
        std::os::unix::fs::symlink("nowhere", path("dangling")).unwrap();
        let located = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            find(&names, Some(dir.path().as_os_str())).map_err(|error| error.message())
        };
        assert_eq!(located(&["runc"]), Ok(path("runc")));
        assert_eq!(
            located(&["no-such-*", "directory", "dangling", "run?"]),
            Ok(path("runc"))
        );
        assert_eq!(located(&["r[t-z]*[xy]"]), Ok(path("runx")));
        let absolute = path("runx").display().to_string();
        assert_eq!(located(&["/nowhere/runc", &absolute]), Ok(path("runx")));
        assert_eq!(
            located(&["no-such-a", "/b"]).unwrap_err(),
            "error locating runtime: no runtime binary found from candidate list: [no-such-a /b]"
        );
        assert!(located(&[]).unwrap_err().contains("at least one"));
    }
}
