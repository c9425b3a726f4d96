//! Looks up device nodes of the host.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use crate::cause;
use crate::cdi::{DeviceNode, Edits};
use crate::oci::edits::HostNode;

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

/// A tree with a `/dev`, and options for describing its nodes.
#[derive(Clone, Debug)]
pub struct Nodes {
    /// Root of the tree; `/` for the host's.
    pub root: PathBuf,
    /// Add a node's group to the process if not every user may access the node.
    pub groups: bool,
}

impl Nodes {
    /// Returns the sorted paths of device nodes in a directory with matching names.
    pub fn matching(&self, directory: &str, fits: impl Fn(&str) -> bool) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.on_host(directory)) else {
            return Vec::new();
        };
        let mut found: Vec<String> = entries
            .flatten()
            .filter(|entry| fits(&entry.file_name().to_string_lossy()))
            .filter(|entry| look_up(&entry.path()).is_ok())
            .map(|entry| format!("{directory}/{}", entry.file_name().to_string_lossy()))
            .collect();
        found.sort();
        found
    }

    /// Describes the node at a path of the tree; a symlink is an error.
    ///
    /// # Errors
    /// There is no node.
    pub fn look_up(&self, path: &str) -> Result<HostNode, String> {
        look_up(&self.on_host(path))
    }

    /// Adds a node of the tree to edits.
    ///
    /// # Errors
    /// There is no node.
    pub fn add(&self, path: &str, edits: &mut Edits) -> io::Result<()> {
        let on_host = self.on_host(path);
        let facts = fs::symlink_metadata(&on_host)?;
        let no_node = || io::Error::other("not a device node");
        let node = node_of(&facts).ok_or_else(no_node)?;
        let gid = Some(facts.gid()).filter(|gid| *gid != 0);
        edits.device_nodes.push(DeviceNode {
            path: path.to_owned(),
            host_path: match on_host.to_string_lossy() {
                same if same == path => String::new(),
                other => other.into_owned(),
            },
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
    fn nodes_of_a_directory_are_sorted() {
        let nodes = Nodes {
            root: "/".into(),
            groups: true,
        };
        let found = nodes.matching("/dev", |name| name == "zero" || name == "null");
        assert_eq!(found, ["/dev/null", "/dev/zero"]);
        assert!(nodes.matching("/no-such", |_| true).is_empty());
        let mut edits = Edits::default();
        nodes.add("/dev/null", &mut edits).unwrap();
        assert!(nodes.add("/etc", &mut edits).is_err());
        assert_eq!(edits.device_nodes[0].host_path, "");
        assert_eq!(edits.device_nodes[0].file_mode, Some(0o666));
    }
}
