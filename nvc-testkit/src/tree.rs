//! Takes snapshots of directory trees and compares them.
//!
//! What must not change where nothing may change is all of this: names, types, modes, owners, sizes, link texts,
//! device numbers, contents, extended attributes. Times are left out: looking at a file changes one.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use crate::files::extended_attributes;

/// A tree: paths without a leading slash, and what is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree(BTreeMap<PathBuf, Entry>);

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// `f`, `d`, `l`, `c`, `b`, `p` or `s`.
    pub kind: char,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes of a file; 0 of everything else.
    pub size: u64,
    /// Device number of a node.
    pub device: u64,
    /// Text of a link.
    pub link: Option<PathBuf>,
    /// Hash of a file's content.
    content: Option<u64>,
    /// Extended attributes, sorted: names and hashes.
    attributes: Vec<(String, u64)>,
}

impl Tree {
    /// All below `root`; a procfs or sysfs mounted there is not entered, but `proc/driver` is.
    ///
    /// # Errors
    /// Something cannot be read.
    pub fn of(root: &Path) -> io::Result<Self> {
        let mut tree = Self(BTreeMap::new());
        tree.add(root, Path::new(""))?;
        Ok(tree)
    }

    /// The same as process `pid` sees it.
    ///
    /// # Errors
    /// Something cannot be read, or the process is gone.
    pub fn seen_by(pid: u32, root: &Path) -> io::Result<Self> {
        let seen = Path::new("/proc").join(pid.to_string()).join("root");
        Self::of(&crate::files::below(&seen, root))
    }

    fn add(&mut self, root: &Path, directory: &Path) -> io::Result<()> {
        for entry in fs::read_dir(root.join(directory))? {
            let entry = entry?;
            let path = directory.join(entry.file_name());
            if is_kernels(&path) {
                continue;
            }
            let found = Entry::of(&entry.path())?;
            let enter = found.kind == 'd';
            self.0.insert(path.clone(), found);
            if enter {
                self.add(root, &path)?;
            }
        }
        Ok(())
    }

    /// What is at a path.
    pub fn get(&self, path: impl AsRef<Path>) -> Option<&Entry> {
        let path = path.as_ref();
        self.0.get(path.strip_prefix("/").unwrap_or(path))
    }

    /// Lines `+ entry`, `- entry` and `~ entry (was entry)` for what `self` has, lacks and has otherwise than `before`.
    pub fn changes_since(&self, before: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        for (path, entry) in &self.0 {
            let path_text = path.display();
            match before.0.get(path) {
                None => lines.push(format!("+ {path_text} {entry}")),
                Some(old) if old != entry => {
                    lines.push(format!("~ {path_text} {entry} (was {old})"));
                }
                Some(_) => {}
            }
        }
        for (path, entry) in &before.0 {
            if !self.0.contains_key(path) {
                lines.push(format!("- {} {entry}", path.display()));
            }
        }
        lines
    }
}

/// Paths of a root where a procfs or sysfs shows other processes and the machine.
fn is_kernels(path: &Path) -> bool {
    let mut components = path.iter();
    let (first, second) = (components.next(), components.next());
    let is = |part: Option<&std::ffi::OsStr>, text: &str| part.is_some_and(|part| part == text);
    second.is_some() && (is(first, "sys") || (is(first, "proc") && !is(second, "driver")))
}

impl Entry {
    /// What is at a path, links not followed.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of(path: &Path) -> io::Result<Self> {
        let stat = fs::symlink_metadata(path)?;
        let kind = stat.file_type();
        let letter = match kind {
            _ if kind.is_file() => 'f',
            _ if kind.is_dir() => 'd',
            _ if kind.is_symlink() => 'l',
            _ if kind.is_char_device() => 'c',
            _ if kind.is_block_device() => 'b',
            _ if kind.is_fifo() => 'p',
            _ => 's',
        };
        Ok(Self {
            kind: letter,
            mode: stat.mode() & 0o7777,
            uid: stat.uid(),
            gid: stat.gid(),
            size: if letter == 'f' { stat.size() } else { 0 },
            device: if "cb".contains(letter) {
                stat.rdev()
            } else {
                0
            },
            link: kind.is_symlink().then(|| fs::read_link(path)).transpose()?,
            content: kind
                .is_file()
                .then(|| fs::read(path).map(|b| hash(&b)))
                .transpose()?,
            attributes: extended_attributes(path)?
                .into_iter()
                .map(|(name, value)| (name, hash(&value)))
                .collect(),
        })
    }
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            mode,
            uid,
            gid,
            size,
            ..
        } = self;
        write!(f, "{kind} {mode:04o} {uid}:{gid}")?;
        match (&self.link, kind) {
            (Some(link), _) => write!(f, " -> {}", link.display()),
            (None, 'f') => write!(f, " {size}"),
            (None, 'c' | 'b') => {
                let (major, minor) = (
                    nix::sys::stat::major(self.device),
                    nix::sys::stat::minor(self.device),
                );
                write!(f, " {major}:{minor}")
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::files;

    #[test]
    fn every_sort_of_change_shows() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let at = |name: &str| root.join(name);
        files::file(&at("same"), "x", 0o644).unwrap();
        files::file(&at("content"), "abc", 0o644).unwrap();
        files::file(&at("mode"), "", 0o644).unwrap();
        files::file(&at("gone"), "", 0o644).unwrap();
        files::link(&at("link"), "a").unwrap();
        files::file(&at("proc/1/x"), "", 0o644).unwrap();
        let before = Tree::of(root).unwrap();
        assert!(before.get("proc/1").is_none());
        assert_eq!(before.changes_since(&before), [""; 0]);

        fs::write(at("content"), "abd").unwrap();
        files::mode(&at("mode"), 0o600).unwrap();
        fs::remove_file(at("gone")).unwrap();
        fs::remove_file(at("link")).unwrap();
        files::link(&at("link"), "b").unwrap();
        files::file(&at("proc/driver/nvidia/new"), "", 0o444).unwrap();
        let lines = Tree::of(root).unwrap().changes_since(&before);
        let starts: Vec<_> = lines
            .iter()
            .map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(
            starts,
            [
                "~ content",
                "~ link",
                "~ mode",
                "+ proc/driver",
                "+ proc/driver/nvidia",
                "+ proc/driver/nvidia/new",
                "- gone"
            ]
        );
    }
}
