//! Takes exact snapshots of directory trees: what must not change at all, or what must come back.
//!
//! [`Tree`](crate::tree::Tree) is for a person to read; this one enters nothing of a procfs but what is mounted in it, and can
//! tell whether something was touched and put back.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use nix::sys::statfs::{PROC_SUPER_MAGIC, SYSFS_MAGIC, statfs};

use crate::files::extended_attributes;

/// How closely is looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// At names, types, modes, owners, link texts, numbers of devices, contents and extended attributes.
    AtWhatIsThere,
    /// At inode numbers, numbers of links and times of change too.
    ForTraces,
}

/// A tree: paths and, as text, what is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot(BTreeMap<PathBuf, String>);

impl Snapshot {
    /// All at and below `root`, as this thread sees it.
    ///
    /// # Errors
    /// Something cannot be read.
    pub fn of(root: &Path, look: Look) -> io::Result<Self> {
        let mut snapshot = Self(BTreeMap::new());
        snapshot.add(root, Path::new(""), look)?;
        Ok(snapshot)
    }

    fn add(&mut self, root: &Path, path: &Path, look: Look) -> io::Result<()> {
        let full = root.join(path);
        let stat = fs::symlink_metadata(&full)?;
        let text = describe(&full, &stat, look).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", full.display()))
        })?;
        self.0.insert(path.to_owned(), text);
        if !stat.is_dir() {
            return Ok(());
        }
        if is_kernels(&full)? {
            // A procfs that a runtime prepared has a tmpfs there.
            let driver = path.join("driver");
            return match is_kernels(&root.join(&driver)) {
                Ok(false) => self.add(root, &driver, look),
                _ => Ok(()),
            };
        }
        for entry in fs::read_dir(&full)? {
            self.add(root, &path.join(entry?.file_name()), look)?;
        }
        Ok(())
    }

    /// Paths and texts of what `self` has, lacks and has otherwise than `before`: what was there, what is.
    pub fn changes_since<'a>(
        &'a self,
        before: &'a Self,
    ) -> Vec<(&'a Path, Option<&'a str>, Option<&'a str>)> {
        let paths = self.0.keys().chain(before.0.keys());
        let paths: std::collections::BTreeSet<_> = paths.collect();
        let both = |path: &PathBuf| {
            let text = |tree: &'a Self| tree.0.get(path).map(String::as_str);
            (text(before), text(self))
        };
        let changed = paths.into_iter().map(|path| (path.as_path(), both(path)));
        changed
            .filter(|(_, (was, is))| was != is)
            .map(|(path, (was, is))| (path, was, is))
            .collect()
    }
}

fn describe(path: &Path, stat: &fs::Metadata, look: Look) -> io::Result<String> {
    let (mode, uid, gid) = (stat.mode(), stat.uid(), stat.gid());
    let mut text = format!("{mode:06o} {uid}:{gid}");
    if stat.is_symlink() {
        text += &format!(" -> {}", fs::read_link(path)?.display());
    } else if stat.is_file() {
        let mut hasher = DefaultHasher::new();
        fs::read(path)?.hash(&mut hasher);
        text += &format!(" {} bytes {:x}", stat.len(), hasher.finish());
    } else if !stat.is_dir() {
        text += &format!(" device {:x}", stat.rdev());
    }
    for (name, value) in extended_attributes(path)? {
        text += &format!(" {name}={}", String::from_utf8_lossy(&value));
    }
    if look == Look::ForTraces {
        let inode = (stat.dev(), stat.ino(), stat.nlink());
        let changed = (
            stat.mtime(),
            stat.mtime_nsec(),
            stat.ctime(),
            stat.ctime_nsec(),
        );
        text += &format!(" {inode:?} {changed:?}");
    }
    Ok(text)
}

/// Whether a directory shows processes or the machine.
fn is_kernels(path: &Path) -> io::Result<bool> {
    let kind = statfs(path)?.filesystem_type();
    Ok(kind == PROC_SUPER_MAGIC || kind == SYSFS_MAGIC)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn traces_are_seen_when_all_is_put_back() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a/file");
        crate::files::file(&path, "text", 0o644).unwrap();
        let look = |look| Snapshot::of(root.path(), look).unwrap();
        let (what, traces) = (look(Look::AtWhatIsThere), look(Look::ForTraces));
        crate::files::mode(&path, 0o600).unwrap();
        assert_eq!(look(Look::AtWhatIsThere).changes_since(&what).len(), 1);
        crate::files::mode(&path, 0o644).unwrap();
        assert_eq!(look(Look::AtWhatIsThere).changes_since(&what), []);
        let now = look(Look::ForTraces);
        let changes = now.changes_since(&traces);
        assert_eq!(changes.len(), 1);
        assert_eq!(changes[0].0, Path::new("a/file"));
        fs::remove_file(&path).unwrap();
        let now = look(Look::AtWhatIsThere);
        assert!(matches!(now.changes_since(&what)[..], [(_, Some(_), None)]));
    }
}
