//! Finds the sockets and directories by which containers reach the driver's daemons, for every program and mode.
//!
//! A daemon may run as a user of its own, who owns its directory, and MPS's directory lies in /tmp. Other users, or a
//! container with a volume of /tmp, could put a symlink there; following it would expose any socket or directory of the
//! host to containers, so it is refused.

use std::path::Path;

use log::{debug, info, warn};
use nix::errno::Errno;
use nix::sys::stat::SFlag;
use serde::{Deserialize, Serialize};

use crate::capability::Capability;
use crate::error::errno_text;
use crate::host::{DriverFile, DriverRoot, FORGED, FileClass};
use crate::options::DriverOptions;
use crate::path::HostPath;

/// The directories of sockets; one is usually a link to the other.
const RUN: [&str; 2] = ["/var/run", "/run"];
const MPS: &str = "/tmp/nvidia-mps";

/// A daemon of the driver with a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Daemon {
    /// nvidia-persistenced.
    Persistenced,
    /// nv-fabricmanager.
    Fabricmanager,
}

impl Daemon {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Persistenced, Self::Fabricmanager];

    /// Returns its word, as in `--no-persistenced`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Persistenced => "persistenced",
            Self::Fabricmanager => "fabricmanager",
        }
    }

    fn option(self) -> DriverOptions {
        match self {
            Self::Persistenced => DriverOptions::NO_PERSISTENCED,
            Self::Fabricmanager => DriverOptions::NO_FABRICMANAGER,
        }
    }
}

/// Returns the existing sockets and directories, links resolved; `mps` is the caller's `CUDA_MPS_PIPE_DIRECTORY`.
pub(crate) fn find(
    root: &DriverRoot,
    mps: Option<&Path>,
    options: DriverOptions,
) -> Vec<DriverFile> {
    let wanted = Daemon::ALL.into_iter();
    let wanted = wanted.filter(|daemon| !options.contains(daemon.option()));
    let mut found = sockets(root, wanted);
    if !options.contains(DriverOptions::NO_MPS) {
        let path = HostPath::new(mps.unwrap_or(Path::new(MPS)));
        let directory = usable(root, &[path], SFlag::S_IFDIR);
        found.extend(directory.map(|real| file(real, Capability::Compute)));
    }
    found
}

/// Returns the existing sockets of some daemons, links resolved.
pub(crate) fn sockets(
    root: &DriverRoot,
    daemons: impl IntoIterator<Item = Daemon>,
) -> Vec<DriverFile> {
    let socket = |daemon: Daemon| {
        let name = format!("nvidia-{}/socket", daemon.word());
        let places = RUN.map(|run| HostPath::new(run).join(&name));
        let real = usable(root, &places, SFlag::S_IFSOCK)?;
        Some(file(real, Capability::Utility))
    };
    daemons.into_iter().filter_map(socket).collect()
}

fn file(real: HostPath, capability: Capability) -> DriverFile {
    debug!("selecting {real}");
    DriverFile::new(real, FileClass::Socket).of(Some(capability))
}

/// Returns the real path of the first file of the expected type; logs why others are skipped.
fn usable(root: &DriverRoot, places: &[HostPath], expected: SFlag) -> Option<HostPath> {
    places
        .iter()
        .find_map(|path| usable_at(root, path, expected))
}

fn usable_at(root: &DriverRoot, path: &HostPath, expected: SFlag) -> Option<HostPath> {
    let skip = |path: &HostPath, why: &str| {
        warn!("skipping {}: {why}", root.join(path).display());
    };
    match root.unforged(path) {
        Ok(found) if found.kind == expected => return Some(found.real),
        Ok(found) if expected == SFlag::S_IFDIR => skip(&found.real, "it is not a directory"),
        Ok(found) => skip(&found.real, "it is not a socket"),
        // Another user's daemon is of no use, so treat it as absent.
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES) => info!("missing ipc {path}"),
        Err(Errno::ELOOP) => skip(path, FORGED),
        Err(errno) => skip(path, &errno_text(errno)),
    }
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;
    use crate::inroot;
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

    /// The mode of a directory with an access list does not say who may write.
    #[test]
    fn links_in_a_directory_with_an_access_list_are_not_followed() {
        use crate::sys::xattr;
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        for path in ["mps", "links"] {
            std::fs::create_dir(at(path)).unwrap();
        }
        std::os::unix::fs::symlink("/mps", at("links/mps")).unwrap();
        std::fs::set_permissions(at("links"), PermissionsExt::from_mode(0o775)).unwrap();
        let root = DriverRoot::open(dir.path()).unwrap();
        let find = || find(&root, Some(Path::new("/links/mps")), DriverOptions::empty());
        let is_roots = inroot::stat(std::fs::File::open(at("links")).unwrap().as_fd())
            .is_ok_and(|stat| stat.st_gid == 0);
        assert_eq!(find().len(), usize::from(is_roots));
        // The owner, user 1000, the group, the mask, all others.
        let entries = [
            (1, 7, u32::MAX),
            (2, 7, 1000),
            (4, 5, u32::MAX),
            (16, 7, u32::MAX),
            (32, 5, u32::MAX),
        ];
        let mut list = 2_u32.to_le_bytes().to_vec();
        for (kind, permissions, id) in entries {
            list.extend([kind, 0, permissions, 0]);
            list.extend(id.to_le_bytes());
        }
        let links = std::fs::File::open(at("links")).unwrap();
        xattr::set(links, xattr::ACCESS_LIST, &list).unwrap();
        assert!(find().is_empty());
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
        ] {
            assert!(find(path).is_empty(), "{path:?}");
        }
        assert_eq!(find(Some("/tmp/own/below")), ["/tmp/own/below"]);
        // Nobody else can exchange a directory in a sticky one, as Nix's store is.
        assert_eq!(find(Some("/tmp/own/link/pipe")), ["/etc/pipe"]);
        for (tmp, own) in [(0o777, 0o755), (0o1777, 0o777)] {
            chmod("tmp", tmp);
            chmod("tmp/own", own);
            for path in ["/tmp/own/link", "/tmp/own/link/pipe"] {
                assert!(find(Some(path)).is_empty(), "{path} {tmp:o} {own:o}");
            }
        }
        // An administrator's link.
        assert_eq!(find(Some("/var/mps/pipe")), ["/etc/pipe"]);
        assert_eq!(find(Some("/var/own")), ["/tmp/own"]);
        assert_eq!(find(Some("/var/own/../../etc")), ["/etc"]);
        for path in ["/var/near", "/var/loop", "/var/mps/missing"] {
            assert!(find(Some(path)).is_empty(), "{path}");
        }
    }
}
