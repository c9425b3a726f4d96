//! Finds device nodes in a `/dev` of the host, and describes them as intents.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use libnvc::host::{CharDrivers, NodeOwner, numbers};
use libnvc::plan::{Device, Intent, What};
use libnvc::{ContainerPath, Error, ErrorKind, HostPath, Result};
use nvc_cdi::nodes::HostNode;
use nvc_hostfile::cause;

/// Limit of reasons why nodes of one directory are left out: each becomes a warning.
const MAX_REASONS: usize = 8;

/// A tree with a `/dev`, and options for describing its nodes.
#[derive(Clone, Debug)]
pub struct Nodes {
    /// Root of the tree; `/` for the host's.
    pub root: PathBuf,
    /// The drivers whose devices the nodes must be.
    pub drivers: CharDrivers,
}

impl Nodes {
    /// Describes a tree with devices of this machine's drivers.
    pub fn new(root: PathBuf) -> Self {
        let drivers = CharDrivers::discover();
        Self { root, drivers }
    }

    /// Returns the sorted paths of devices in a directory with matching names. Adds the reasons why others are left out
    /// to `refused`. Anybody who can write there chooses the names, so names of no known kind are left out, except
    /// devices of NVIDIA's drivers directly in /dev.
    pub fn matching(
        &self,
        directory: &str,
        fits: impl Fn(&str) -> bool,
        refused: &mut Vec<String>,
    ) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.on_host(directory)) else {
            return Vec::new();
        };
        let names = entries.flatten().map(|entry| entry.file_name());
        let names = names.map(|name| name.to_string_lossy().into_owned());
        let mut paths: Vec<String> = names
            .filter(|name| fits(name))
            .map(|name| format!("{directory}/{name}"))
            .filter(|path| !self.on_host(path).is_dir())
            .collect();
        paths.sort();
        let mut reasons = 0;
        paths.retain(|path| {
            let Err(error) = self.look_up_ours(path) else {
                return true;
            };
            if reasons < MAX_REASONS {
                refused.push(error.message());
            }
            reasons += 1;
            false
        });
        if reasons > MAX_REASONS {
            let more = reasons - MAX_REASONS;
            refused.push(format!(
                "{directory} has {more} more nodes that are left out"
            ));
        }
        paths
    }

    /// Checks that a device is of a known kind or driver.
    fn look_up_ours(&self, path: &str) -> Result<()> {
        let number = self.look_up(path)?.number();
        let is_nvidias = || {
            path.rsplit_once('/')
                .is_some_and(|(directory, _)| directory == "/dev")
                && self.drivers.is_nvidias(number)
        };
        if numbers::is_known(path) || is_nvidias() {
            Ok(())
        } else {
            Err(malformed(format!(
                "{path} is {number}, which is neither a device of that name nor of a driver of NVIDIA's"
            )))
        }
    }

    /// Describes the device at a path of the tree; a symlink is an error.
    ///
    /// # Errors
    /// There is no such device, or it is another device than its name says.
    pub fn look_up(&self, path: &str) -> Result<HostNode> {
        Ok(self.examine(path)?.0)
    }

    /// Returns the intent for a device of the tree.
    ///
    /// # Errors
    /// Those of [`look_up`](Self::look_up).
    pub fn device(&self, path: &str) -> Result<Intent> {
        let (node, owner) = self.examine(path)?;
        Ok(Intent::required(What::Device(Device {
            source: HostPath::new(self.on_host(path)),
            number: node.number(),
            owner: Some(owner),
            at: ContainerPath::new(path),
            bind: true,
            allow: true,
        })))
    }

    /// Returns a node and its owner.
    fn examine(&self, path: &str) -> Result<(HostNode, NodeOwner)> {
        let facts =
            fs::symlink_metadata(self.on_host(path)).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => {
                    Error::new(ErrorKind::NotFound, format!("{path} is missing"))
                }
                _ => Error::fault(ErrorKind::System, path, cause::text(&error)),
            })?;
        let node = HostNode::of(&facts).filter(|node| node.kind == 'c');
        let node = node.ok_or_else(|| malformed(format!("{path} is not a character device")))?;
        node.check_name(path, &self.drivers)?;
        let owner = NodeOwner {
            mode: node.mode,
            uid: facts.uid(),
            gid: facts.gid(),
        };
        Ok((node, owner))
    }

    fn on_host(&self, path: &str) -> PathBuf {
        let relative = path.strip_prefix('/').unwrap_or(path);
        self.root.join(relative)
    }
}

fn malformed(text: String) -> Error {
    Error::new(ErrorKind::Malformed, text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn devices_of_a_directory_are_sorted() {
        // Each of this machine's drivers is one of NVIDIA's here.
        let mut nodes = Nodes::new("/".into());
        nodes.drivers = CharDrivers::of("Character devices:\n  1 nvidia-mem\n", "");
        let mut refused = Vec::new();
        let wanted = |name: &str| ["zero", "null", "shm", "core", "tty"].contains(&name);
        let found = nodes.matching("/dev", wanted, &mut refused);
        assert_eq!(found, ["/dev/null", "/dev/zero"]);
        let why =
            "/dev/tty is 5:0, which is neither a device of that name nor of a driver of NVIDIA's";
        assert_eq!(refused.last().map(String::as_str), Some(why));
        assert!(
            nodes
                .matching("/no-such", |_| true, &mut refused)
                .is_empty()
        );
        assert!(nodes.device("/etc").is_err());
        let What::Device(device) = nodes.device("/dev/null").unwrap().what else {
            panic!("no device");
        };
        assert_eq!(device.source, HostPath::new("/dev/null"));
        assert_eq!(device.owner.unwrap().mode, 0o666);
    }

    /// What a container with the host's /dev can put there.
    #[test]
    #[ignore = "needs root"]
    fn only_devices_of_their_driver_are_found() {
        use nix::sys::stat::{Mode, SFlag, makedev, mknod};

        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("dev/nvidia-caps")).unwrap();
        fs::write(dir.path().join("dev/nvidia-fs8"), "").unwrap();
        std::os::unix::fs::symlink("nvidia-fs0", dir.path().join("dev/nvidia-fs9")).unwrap();
        for (name, kind, major, minor) in [
            ("nvidia-fs0", SFlag::S_IFCHR, 511, 0),
            ("nvidia-fs1", SFlag::S_IFBLK, 511, 1),
            ("nvidia-fs2", SFlag::S_IFIFO, 0, 0),
            ("nvidia-fs3", SFlag::S_IFCHR, 195, 3),
            ("nvidia-fs4", SFlag::S_IFCHR, 511, 3),
            // A driver that we do not know, and /dev/mem, by names of no known kind.
            ("nvidia-new", SFlag::S_IFCHR, 510, 0),
            ("nvidia-mem", SFlag::S_IFCHR, 1, 1),
            ("nvidia-caps/nvidia-cap1", SFlag::S_IFCHR, 234, 1),
            ("nvidia-caps/nvidia-capX", SFlag::S_IFCHR, 1, 1),
            ("nvidia-caps/nvidia-capY", SFlag::S_IFCHR, 234, 2),
        ] {
            let (path, mode) = (
                dir.path().join("dev").join(name),
                Mode::from_bits_truncate(0o666),
            );
            mknod(&path, kind, mode, makedev(major, minor)).unwrap();
        }
        let nodes = Nodes {
            root: dir.path().into(),
            drivers: CharDrivers::of(
                "Character devices:\n  1 mem\n195 nvidia\n234 nvidia-caps\n510 nvidia-new\n511 nvidia-fs\n",
                "",
            ),
        };
        let mut refused = Vec::new();
        let found = nodes.matching("/dev", |_| true, &mut refused);
        assert_eq!(found, ["/dev/nvidia-fs0", "/dev/nvidia-new"]);
        assert_eq!(
            refused,
            [
                "/dev/nvidia-fs1 is not a character device",
                "/dev/nvidia-fs2 is not a character device",
                "/dev/nvidia-fs3 is 195:3, and the driver's major number is 511",
                "/dev/nvidia-fs4 is 511:3, and its minor number should be 4",
                "/dev/nvidia-fs8 is not a character device",
                "/dev/nvidia-fs9 is not a character device",
                "/dev/nvidia-mem is 1:1, which is neither a device of that name nor of a driver of NVIDIA's",
            ]
        );
        refused.clear();
        let found = nodes.matching("/dev/nvidia-caps", |_| true, &mut refused);
        assert_eq!(found, ["/dev/nvidia-caps/nvidia-cap1"]);
        let left_out =
            ["X is 1:1", "Y is 234:2"].map(|name| format!("/dev/nvidia-caps/nvidia-cap{name}"));
        assert_eq!(refused.len(), 2);
        assert!(
            refused
                .iter()
                .zip(left_out)
                .all(|(why, start)| why.starts_with(&start))
        );
        // Lists of files choose the names.
        assert!(nodes.look_up("/dev/nvidia-mem").is_ok());
        // Nobody reads thousands of warnings.
        for number in 0..100 {
            fs::write(dir.path().join(format!("dev/nvidia-caps/{number}")), "").unwrap();
        }
        refused.clear();
        let found = nodes.matching("/dev/nvidia-caps", |_| true, &mut refused);
        assert_eq!(found, ["/dev/nvidia-caps/nvidia-cap1"]);
        assert_eq!(refused.len(), MAX_REASONS + 1);
        let more = 102 - MAX_REASONS;
        let last = format!("/dev/nvidia-caps has {more} more nodes that are left out");
        assert_eq!(refused.last(), Some(&last));
    }
}
