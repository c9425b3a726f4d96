//! Looks up device nodes of the host.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use libnvc::host::{CharDrivers, DeviceNumber, numbers};

use crate::cause;
use crate::cdi::{CHARACTER, DeviceNode, Edits};
use crate::oci::edits::HostNode;
use crate::oci::paths::clean;

/// Describes the node at a path; a symlink is an error.
///
/// # Errors
/// There is no node.
pub fn look_up(path: &Path) -> Result<HostNode, String> {
    let facts = fs::symlink_metadata(path)
        .map_err(|error| format!("failed to stat {}: {}", path.display(), cause::text(&error)))?;
    node_of(&facts).ok_or_else(|| format!("{} is not a device node", path.display()))
}

fn node_of(facts: &fs::Metadata) -> Option<HostNode> {
    let of = facts.file_type();
    let kind = match () {
        () if of.is_char_device() => 'c',
        () if of.is_block_device() => 'b',
        () if of.is_fifo() => 'p',
        () => return None,
    };
    let number = facts.rdev();
    Some(HostNode {
        kind,
        major: rustix::fs::major(number).into(),
        minor: rustix::fs::minor(number).into(),
        mode: facts.mode() & 0o777,
    })
}

/// Checks that a node of a specification is the device that its name on the host says, or else its name in the container.
/// Other names can be those of any device.
///
/// # Errors
/// The path, and why it is another device.
pub fn check(node: &DeviceNode, found: HostNode, drivers: &CharDrivers) -> Result<(), String> {
    let mut names = [&node.host_path, &node.path].into_iter();
    let Some(name) = names.find(|name| numbers::is_known(&clean(name))) else {
        return Ok(());
    };
    named(name, found, drivers).map_err(|why| format!("{name} {why}"))
}

fn named(name: &str, found: HostNode, drivers: &CharDrivers) -> Result<(), String> {
    if found.kind != 'c' {
        return Err("is not a character device".into());
    }
    drivers.check(&clean(name), number_of(found))
}

fn number_of(node: HostNode) -> DeviceNumber {
    // The kernel's numbers are smaller.
    let [major, minor] =
        [node.major, node.minor].map(|number| u32::try_from(number).unwrap_or(u32::MAX));
    DeviceNumber { major, minor }
}

/// A tree with a `/dev`, and options for describing its nodes.
#[derive(Clone, Debug)]
pub struct Nodes {
    /// Root of the tree; `/` for the host's.
    pub root: PathBuf,
    /// Add a node's group to the process if not every user may access the node.
    pub groups: bool,
    /// The drivers whose devices the nodes must be.
    pub drivers: CharDrivers,
}

impl Nodes {
    /// Describes a tree with devices of this machine's drivers.
    pub fn new(root: PathBuf, groups: bool) -> Self {
        let drivers = CharDrivers::discover();
        Self {
            root,
            groups,
            drivers,
        }
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
        paths.retain(|path| match self.look_up_ours(path) {
            Ok(()) => true,
            Err(why) => {
                refused.push(why);
                false
            }
        });
        paths
    }

    /// Checks that a device is of a known kind or driver.
    fn look_up_ours(&self, path: &str) -> Result<(), String> {
        let number = number_of(self.look_up(path)?);
        let is_nvidias = || {
            path.rsplit_once('/')
                .is_some_and(|(directory, _)| directory == "/dev")
                && self.drivers.is_nvidias(number)
        };
        match numbers::is_known(path) || is_nvidias() {
            true => Ok(()),
            false => Err(format!(
                "{path} is {number}, which is neither a device of that name nor of a driver of NVIDIA's"
            )),
        }
    }

    /// Describes the device at a path of the tree; a symlink is an error.
    ///
    /// # Errors
    /// The path, and why it is not the device that its name says.
    pub fn look_up(&self, path: &str) -> Result<HostNode, String> {
        Ok(self.examine(path)?.0)
    }

    /// Adds a device of the tree to edits.
    ///
    /// # Errors
    /// Those of [`look_up`](Self::look_up).
    pub fn add(&self, path: &str, edits: &mut Edits) -> Result<(), String> {
        let (node, gid) = self.examine(path)?;
        let gid = Some(gid).filter(|gid| *gid != 0);
        let on_host = self.on_host(path);
        edits.device_nodes.push(DeviceNode {
            path: path.to_owned(),
            host_path: match on_host.to_string_lossy() {
                same if same == path => String::new(),
                other => other.into_owned(),
            },
            kind: CHARACTER.into(),
            file_mode: Some(node.mode),
            permissions: "rwm".into(),
            gid,
            ..DeviceNode::default()
        });
        // Add the group of a node that others cannot access.
        let for_everybody = node.mode & 0o006 == 0o006;
        if let (Some(gid), true, false) = (gid, self.groups, for_everybody)
            && !edits.additional_gids.contains(&gid)
        {
            edits.additional_gids.push(gid);
        }
        Ok(())
    }

    /// Returns a node and its group.
    fn examine(&self, path: &str) -> Result<(HostNode, u32), String> {
        let facts =
            fs::symlink_metadata(self.on_host(path)).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => format!("{path} is missing"),
                _ => format!("{path}: {}", cause::text(&error)),
            })?;
        let node = node_of(&facts).filter(|node| node.kind == 'c');
        let node = node.ok_or_else(|| format!("{path} is not a character device"))?;
        let checked = named(path, node, &self.drivers);
        checked.map_err(|why| format!("{path} {why}"))?;
        Ok((node, facts.gid()))
    }

    fn on_host(&self, path: &str) -> PathBuf {
        let relative = path.strip_prefix('/').unwrap_or(path);
        self.root.join(relative)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_described() {
        let null = look_up(Path::new("/dev/null")).unwrap();
        assert_eq!((null.kind, null.major, null.minor), ('c', 1, 3));
        assert!(look_up(Path::new("/etc")).is_err());
        let missing = look_up(Path::new("/dev/no-such"));
        assert_eq!(
            missing,
            Err("failed to stat /dev/no-such: no such file or directory".into())
        );
    }

    #[test]
    fn devices_of_a_directory_are_sorted() {
        // Each of this machine's drivers is one of NVIDIA's here.
        let mut nodes = Nodes::new("/".into(), true);
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
        let mut edits = Edits::default();
        nodes.add("/dev/null", &mut edits).unwrap();
        assert!(nodes.add("/etc", &mut edits).is_err());
        let node = &edits.device_nodes[0];
        assert_eq!((node.host_path.as_str(), node.kind.as_str()), ("", "c"));
        assert_eq!(node.file_mode, Some(0o666));
    }

    /// What a container with the host's /dev can put there.
    #[test]
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
            // Without the privilege there is nothing to test.
            let Ok(()) = mknod(&path, kind, mode, makedev(major, minor)) else {
                return;
            };
        }
        let nodes = Nodes {
            root: dir.path().into(),
            groups: false,
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
    }

    #[test]
    fn a_name_is_that_of_the_cleaned_path() {
        let drivers = CharDrivers::of("Character devices:\n195 nvidia\n", "");
        let found = |major| HostNode {
            kind: 'c',
            major,
            minor: 0,
            mode: 0o666,
        };
        for path in [
            "/dev/nvidia0",
            "/dev//nvidia0",
            "/dev/./nvidia0",
            "/dev/x/../nvidia0",
            "/dev/nvidia0/",
        ] {
            for host_path in [path, "/elsewhere/thing"] {
                let node = DeviceNode {
                    path: path.into(),
                    host_path: host_path.into(),
                    ..DeviceNode::default()
                };
                assert_eq!(check(&node, found(195), &drivers), Ok(()), "{path}");
                assert!(check(&node, found(1), &drivers).is_err(), "{path}");
            }
        }
    }
}
