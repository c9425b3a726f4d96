//! Finds the sockets and directories by which containers reach the driver's daemons.
//!
//! MPS's directory lies in /tmp and may be mounted writable. Any user, or a container with a volume of /tmp, can put a
//! symlink there; following it would expose an arbitrary host directory to containers, so it is refused.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use log::{debug, info, warn};
use nix::errno::Errno;
use nix::sys::stat::SFlag;

use crate::capability::Capability;
use crate::directory::open_child;
use crate::error::errno_text;
use crate::host::realpath::RealPaths;
use crate::host::{DriverFile, DriverRoot, FileClass};
use crate::inroot::{self, Walk};
use crate::options::DriverOptions;
use crate::path::HostPath;

const PERSISTENCED: &str = "/var/run/nvidia-persistenced/socket";
const FABRICMANAGER: &str = "/var/run/nvidia-fabricmanager/socket";
const MPS: &str = "/tmp/nvidia-mps";

/// Returns the existing sockets and directories, links resolved; `mps` is the caller's `CUDA_MPS_PIPE_DIRECTORY`.
pub(crate) fn find(
    root: &DriverRoot,
    mps: Option<&Path>,
    options: DriverOptions,
) -> Vec<DriverFile> {
    let socket = SFlag::S_IFSOCK;
    let mps = mps.unwrap_or(Path::new(MPS));
    let places = [
        (
            DriverOptions::NO_PERSISTENCED,
            Path::new(PERSISTENCED),
            socket,
            Capability::Utility,
        ),
        (
            DriverOptions::NO_FABRICMANAGER,
            Path::new(FABRICMANAGER),
            socket,
            Capability::Utility,
        ),
        (
            DriverOptions::NO_MPS,
            mps,
            SFlag::S_IFDIR,
            Capability::Compute,
        ),
    ];
    let mut paths = RealPaths::new(root);
    let wanted = places.into_iter().filter(|(no, ..)| !options.contains(*no));
    wanted
        .filter_map(|(_, path, expected, capability)| {
            let path = HostPath::new(path);
            let found = match expected {
                SFlag::S_IFDIR => unforged(root, &path),
                _ => paths.resolve_with_kind(&path),
            };
            let real = usable(root, &path, expected, found)?;
            debug!("selecting {real}");
            Some(DriverFile::new(real, FileClass::Socket).of(Some(capability)))
        })
        .collect()
}

/// Returns the real path of a file of the expected type; logs why another one is skipped.
fn usable(
    root: &DriverRoot,
    path: &HostPath,
    expected: SFlag,
    found: Result<(HostPath, SFlag), Errno>,
) -> Option<HostPath> {
    let skip = |path: &HostPath, why: &str| {
        warn!("skipping {}: {why}", root.join(path).display());
    };
    match found {
        Ok((real, kind)) if kind == expected => return Some(real),
        Ok((real, _)) if expected == SFlag::S_IFDIR => skip(&real, "it is not a directory"),
        Ok((real, _)) => skip(&real, "it is not a socket"),
        // Another user's daemon is of no use, so treat it as absent.
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES) => info!("missing ipc {path}"),
        Err(Errno::ELOOP) => skip(
            path,
            "a link that other users could have created leads to it",
        ),
        Err(errno) => skip(path, &errno_text(errno)),
    }
    None
}

/// Returns the real path of a file in the driver root, and its type; `ELOOP` if a link in the path is in, or below, a
/// directory where other users than the caller and root can create links.
fn unforged(root: &DriverRoot, path: &HostPath) -> Result<(HostPath, SFlag), Errno> {
    let top = root.resolve_directory(&HostPath::new("/"))?;
    let mut walk = Walk::begin(Place::new(top, HostPath::new("/"), false)?, path.as_path());
    while let Some(name) = walk.next_name() {
        let current = walk.directory();
        let fd = open_child(current.fd.as_fd(), &name)?;
        let found = Place::new(fd, current.real.join(&name), current.is_open)?;
        match found.kind {
            SFlag::S_IFLNK if current.is_open => return Err(Errno::ELOOP),
            SFlag::S_IFLNK => walk.follow(found.fd.as_fd())?,
            _ => walk.enter(found),
        }
    }
    let last = walk.end();
    Ok((last.real, last.kind))
}

/// A component of a path.
struct Place {
    fd: OwnedFd,
    real: HostPath,
    kind: SFlag,
    /// True if other users can change entries below.
    is_open: bool,
}

impl Place {
    fn new(fd: OwnedFd, real: HostPath, above_is_open: bool) -> Result<Self, Errno> {
        let stat = inroot::stat(fd.as_fd())?;
        let is_ours = stat.st_uid == 0 || stat.st_uid == nix::unistd::geteuid().as_raw();
        Ok(Self {
            fd,
            real,
            kind: inroot::kind(&stat),
            is_open: above_is_open || !is_ours || stat.st_mode & 0o002 != 0,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn reports_real_paths() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        for path in [
            "run/nvidia-persistenced",
            "run/nvidia-fabricmanager",
            "tmp/nvidia-mps",
            "mps",
            "var",
        ] {
            std::fs::create_dir_all(at(path)).unwrap();
        }
        std::os::unix::fs::symlink("/run", at("var/run")).unwrap();
        let _daemon = UnixListener::bind(at("run/nvidia-persistenced/socket")).unwrap();
        let root = DriverRoot::open(dir.path()).unwrap();
        let find = |mps: Option<&str>, options| {
            let found = find(&root, mps.map(Path::new), options);
            found
                .iter()
                .map(|file| file.path.to_string())
                .collect::<Vec<_>>()
        };
        let all = DriverOptions::empty();
        let socket = "/run/nvidia-persistenced/socket";
        assert_eq!(find(None, all), [socket, "/tmp/nvidia-mps"]);
        assert_eq!(find(Some("/mps"), all), [socket, "/mps"]);
        assert_eq!(find(None, DriverOptions::NO_MPS), [socket]);
        assert_eq!(
            find(None, DriverOptions::NO_PERSISTENCED),
            ["/tmp/nvidia-mps"]
        );
        // Regular files in place of a socket and a directory.
        std::fs::write(at("run/nvidia-fabricmanager/socket"), "").unwrap();
        std::fs::write(at("file"), "").unwrap();
        assert_eq!(find(Some("/file"), all), [socket]);
    }

    #[test]
    fn links_of_other_users_are_not_followed() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        let chmod = |path: &str, mode| {
            std::fs::set_permissions(at(path), PermissionsExt::from_mode(mode)).unwrap();
        };
        for path in ["tmp/own/below", "etc/pipe", "var"] {
            std::fs::create_dir_all(at(path)).unwrap();
        }
        for (target, link) in [
            ("/etc", "tmp/nvidia-mps"),
            ("own", "tmp/near"),
            ("/etc", "tmp/own/link"),
            ("/etc", "var/mps"),
            ("../tmp/own/below/..", "var/own"),
            ("/tmp/near", "var/near"),
            ("loop", "var/loop"),
        ] {
            std::os::unix::fs::symlink(target, at(link)).unwrap();
        }
        let root = DriverRoot::open(dir.path()).unwrap();
        let find = |mps: Option<&str>| {
            let found = find(&root, mps.map(Path::new), DriverOptions::empty());
            let names = found.iter().map(|file| file.path.to_string());
            names.collect::<Vec<_>>()
        };
        chmod("tmp", 0o755);
        assert_eq!(find(None), ["/etc"]);
        chmod("tmp", 0o1777);
        for path in [
            None,
            Some("/tmp/near"),
            Some("/tmp/near/below"),
            Some("/tmp/nvidia-mps/pipe"),
            Some("/tmp/own/link"),
            Some("/tmp/own/link/pipe"),
        ] {
            assert!(find(path).is_empty(), "{path:?}");
        }
        assert_eq!(find(Some("/tmp/own/below")), ["/tmp/own/below"]);
        // An administrator's link.
        assert_eq!(find(Some("/var/mps/pipe")), ["/etc/pipe"]);
        assert_eq!(find(Some("/var/own")), ["/tmp/own"]);
        assert_eq!(find(Some("/var/own/../../etc")), ["/etc"]);
        for path in ["/var/near", "/var/loop", "/var/mps/missing"] {
            assert!(find(Some(path)).is_empty(), "{path}");
        }
    }
}
