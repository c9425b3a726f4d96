//! Finds the sockets and directories through which containers talk to the driver's daemons.

use std::path::Path;

use log::{debug, info, warn};
use nix::errno::Errno;
use nix::sys::stat::SFlag;

use crate::capability::Capability;
use crate::error::errno_text;
use crate::host::realpath::RealPaths;
use crate::host::{DriverFile, DriverRoot, FileClass};
use crate::options::DriverOptions;
use crate::path::HostPath;

const PERSISTENCED: &str = "/var/run/nvidia-persistenced/socket";
const FABRICMANAGER: &str = "/var/run/nvidia-fabricmanager/socket";
const MPS: &str = "/tmp/nvidia-mps";

/// What is there, with links resolved; `mps` is the value of the caller's `CUDA_MPS_PIPE_DIRECTORY`.
pub fn find(root: &DriverRoot, mps: Option<&Path>, options: DriverOptions) -> Vec<DriverFile> {
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
            match paths.resolve_with_kind(&path) {
                Ok((real, kind)) if kind == expected => {
                    debug!("selecting {real}");
                    return Some(DriverFile::new(real, FileClass::Socket).of(Some(capability)));
                }
                Ok((real, _)) => {
                    let what = match expected {
                        SFlag::S_IFDIR => "directory",
                        _ => "socket",
                    };
                    warn!(
                        "skipping {}: it is not a {what}",
                        root.join(&real).display()
                    );
                }
                // Another user's daemon is as good as none.
                Err(Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES) => {
                    info!("missing ipc {path}");
                }
                Err(errno) => {
                    let path = root.join(&path);
                    warn!("skipping {}: {}", path.display(), errno_text(errno));
                }
            }
            None
        })
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn reports_what_is_there_resolved() {
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
        // Files in the place of a socket or a directory.
        std::fs::write(at("run/nvidia-fabricmanager/socket"), "").unwrap();
        std::fs::write(at("file"), "").unwrap();
        assert_eq!(find(Some("/file"), all), [socket]);
    }
}
