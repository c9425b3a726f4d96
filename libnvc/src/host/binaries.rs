//! Finds the driver's programs by searching `PATH` inside the driver root.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use log::{debug, info, warn};
use nix::errno::Errno;
use nix::sys::stat::SFlag;

use crate::error::{Error, ErrorKind, Result, errno_text};
use crate::host::realpath::RealPaths;
use crate::host::{DriverFile, DriverRoot, WslDriver, catalogue};
use crate::options::DriverOptions;
use crate::path::HostPath;

/// Returns the driver's programs that exist, as real paths, in catalogue order.
///
/// `path` is the value of the caller's `PATH`. Its directories are resolved in the driver root; an empty one is the
/// root itself. Under WSL2 the driver stores come first.
///
/// # Errors
/// `environment variable PATH not found`.
pub(crate) fn find(
    root: &DriverRoot,
    path: Option<&OsStr>,
    options: DriverOptions,
    wsl: &[WslDriver],
) -> Result<Vec<DriverFile>> {
    let path = checked(path)?;
    let patterns = catalogue::programs(options);
    let mut slots = vec![None; patterns.len()];
    let mut paths = RealPaths::new(root);
    // The last adapter's driver store wins, as with upstream.
    let stores = wsl.iter().rev().map(|driver| driver.store.clone());
    let directories = path.as_bytes().split(|&byte| byte == b':');
    for directory in stores.chain(directories.map(|text| HostPath::new(OsStr::from_bytes(text)))) {
        let missing = patterns.iter().zip(&mut slots);
        for (pattern, slot) in missing.filter(|(_, slot)| slot.is_none()) {
            let name = pattern.name;
            match paths.resolve_with_kind(&directory.join(name)) {
                Ok((real, SFlag::S_IFREG)) => {
                    debug!("selecting {real}");
                    *slot = Some(pattern.file(real));
                }
                Ok((real, _)) => {
                    let path = root.join(&real);
                    warn!("skipping {}: it is not a regular file", path.display());
                }
                // Errors that a shell skips too.
                Err(
                    errno @ (Errno::ENOENT
                    | Errno::ENOTDIR
                    | Errno::EACCES
                    | Errno::ELOOP
                    | Errno::ENAMETOOLONG),
                ) => debug!("no {name} in {directory}: {errno}"),
                Err(errno) => {
                    let path = root.join(&directory.join(name));
                    warn!("skipping {}: {}", path.display(), errno_text(errno));
                }
            }
        }
    }
    for (pattern, slot) in patterns.iter().zip(&slots) {
        if slot.is_none() {
            info!("missing program {}", pattern.name);
        }
    }
    Ok(slots.into_iter().flatten().collect())
}

/// Returns the value of `PATH`, which must be set even if no program is looked up: upstream's callers rely on the
/// error.
pub(super) fn checked(path: Option<&OsStr>) -> Result<&OsStr> {
    path.ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "environment variable PATH not found")
            .hint("set PATH to the directories of the driver's programs, e.g. /usr/bin")
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn tree() -> (tempfile::TempDir, DriverRoot) {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        for path in ["usr/bin", "opt/bin", "store"] {
            std::fs::create_dir_all(at(path)).unwrap();
        }
        for path in [
            "usr/bin/nvidia-smi",
            "opt/bin/nvidia-smi",
            "opt/bin/nvidia-cuda-mps-server",
            "nvidia-debugdump",
            "store/nvidia-smi",
        ] {
            std::fs::write(at(path), "").unwrap();
        }
        symlink("usr/bin", at("bin")).unwrap();
        symlink(
            "/opt/bin/nvidia-cuda-mps-server",
            at("usr/bin/nvidia-cuda-mps-control"),
        )
        .unwrap();
        let root = DriverRoot::open(dir.path()).unwrap();
        (dir, root)
    }

    fn search(root: &DriverRoot, path: &str, options: DriverOptions) -> Vec<String> {
        let found = find(root, Some(OsStr::new(path)), options, &[]).unwrap();
        found.iter().map(|file| file.path.to_string()).collect()
    }

    #[test]
    fn the_first_directory_wins() {
        let (_dir, root) = tree();
        let all = DriverOptions::empty();
        assert_eq!(
            search(&root, "/nowhere:/bin:/opt/bin", all),
            [
                "/usr/bin/nvidia-smi",
                "/opt/bin/nvidia-cuda-mps-server", // target of the control program's link
                "/opt/bin/nvidia-cuda-mps-server",
            ]
        );
        assert_eq!(
            search(&root, "/opt/bin:/usr/bin", all)[0],
            "/opt/bin/nvidia-smi"
        );
        assert_eq!(
            search(&root, "usr/bin/../bin:", DriverOptions::NO_MPS),
            ["/usr/bin/nvidia-smi", "/nvidia-debugdump"]
        );
        assert!(search(&root, "/usr/bin/nvidia-smi", all).is_empty());
    }

    #[test]
    fn other_things_than_files_are_passed_over() {
        let (dir, root) = tree();
        let program = dir.path().join("usr/bin/nvidia-smi");
        std::fs::remove_file(&program).unwrap();
        for make in [
            |path: &std::path::Path| std::fs::create_dir(path).unwrap(),
            |path: &std::path::Path| {
                std::fs::remove_dir(path).unwrap();
                nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
            },
        ] {
            make(&program);
            let found = search(&root, "/usr/bin:/opt/bin", DriverOptions::NO_MPS);
            assert_eq!(found, ["/opt/bin/nvidia-smi"]);
            assert_eq!(search(&root, "/usr/bin", DriverOptions::NO_MPS), [""; 0]);
        }
    }

    #[test]
    fn the_driver_store_comes_first() {
        let (_dir, root) = tree();
        let store = WslDriver {
            store: HostPath::new("/store"),
            components: Vec::new(),
        };
        let path = Some(OsStr::new("/usr/bin"));
        let found = find(&root, path, DriverOptions::NO_MPS, &[store]).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, HostPath::new("/store/nvidia-smi"));
    }

    #[test]
    fn path_must_be_set() {
        let (_dir, root) = tree();
        let error = find(&root, None, DriverOptions::empty(), &[]).unwrap_err();
        assert_eq!(error.message(), "environment variable PATH not found");
    }
}
