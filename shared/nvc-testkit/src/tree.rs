//! Takes snapshots of directory trees and compares them.
//!
//! A snapshot has everything that must stay the same: names, types, modes, owners, sizes, symlink targets, device
//! numbers, contents, extended attributes. [`Tree::with_traces`] also detects changes that were undone.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use nix::sys::statfs::{PROC_SUPER_MAGIC, SYSFS_MAGIC, statfs};

use crate::files::extended_attributes;

/// A tree: entries by path, without a leading slash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree(BTreeMap<PathBuf, Entry>);

/// An entry of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// `f`, `d`, `l`, `c`, `b`, `p` or `s`.
    pub kind: char,
    /// Permission bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Bytes of a file; 0 for other types.
    pub size: u64,
    /// Device number of a node.
    pub device: u64,
    /// Target of a link.
    pub link: Option<PathBuf>,
    /// Hash of a file's content.
    content: Option<u64>,
    /// Extended attributes, sorted: names and hashes.
    attributes: Vec<(String, u64)>,
    /// Evidence of undone changes, if requested.
    traces: Option<Traces>,
}

/// Device, inode number, link count and ctime and mtime of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Traces {
    inode: (u64, u64, u64),
    modified: (i64, i64),
    changed: (i64, i64),
}

/// A path at which two trees differ, with the old and the new entry.
pub type Difference<'a> = (&'a Path, Option<&'a Entry>, Option<&'a Entry>);

impl Tree {
    /// Reads everything at and below `root`. Does not enter a procfs or sysfs mounted there, except for mounts at
    /// `driver` in it, which runtimes make.
    ///
    /// # Errors
    /// Something cannot be read.
    pub fn of(root: &Path) -> io::Result<Self> {
        Self::look(root, false)
    }

    /// Does the same with inode numbers, link counts and times of change.
    ///
    /// # Errors
    /// Something cannot be read.
    pub fn with_traces(root: &Path) -> io::Result<Self> {
        Self::look(root, true)
    }

    fn look(root: &Path, traces: bool) -> io::Result<Self> {
        let mut tree = Self(BTreeMap::new());
        tree.add(root, Path::new(""), traces)?;
        Ok(tree)
    }

    /// Does the same as seen by process `pid`.
    ///
    /// # Errors
    /// Something cannot be read, or the process is gone.
    pub fn seen_by(pid: u32, root: &Path) -> io::Result<Self> {
        let seen = Path::new("/proc").join(pid.to_string()).join("root");
        Self::of(&crate::files::below(&seen, root))
    }

    fn add(&mut self, root: &Path, path: &Path, traces: bool) -> io::Result<()> {
        let full = root.join(path);
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", full.display()));
        let entry = Entry::of(&full, traces).map_err(named)?;
        let enter = entry.kind == 'd';
        self.0.insert(path.to_owned(), entry);
        if !enter {
            return Ok(());
        }
        if is_kernels(&full)? {
            let driver = path.join("driver");
            return match is_kernels(&root.join(&driver)) {
                Ok(false) => self.add(root, &driver, traces),
                _ => Ok(()),
            };
        }
        for entry in fs::read_dir(&full).map_err(named)? {
            self.add(root, &path.join(entry?.file_name()), traces)?;
        }
        Ok(())
    }

    /// Returns the entry at a path.
    pub fn get(&self, path: impl AsRef<Path>) -> Option<&Entry> {
        let path = path.as_ref();
        self.0.get(path.strip_prefix("/").unwrap_or(path))
    }

    /// Returns the entries by path.
    pub fn entries(&self) -> impl Iterator<Item = (&Path, &Entry)> {
        self.0.iter().map(|(path, entry)| (path.as_path(), entry))
    }

    /// Returns the differences to an earlier tree, by path.
    pub fn differences<'a>(&'a self, before: &'a Self) -> Vec<Difference<'a>> {
        let paths: BTreeSet<_> = self.0.keys().chain(before.0.keys()).collect();
        let both = |path: &'a PathBuf| (path.as_path(), before.0.get(path), self.0.get(path));
        let all = paths.into_iter().map(both);
        all.filter(|(_, was, is)| was != is).collect()
    }

    /// Returns lines `+ entry` and `~ entry (was entry)`, then `- entry`, for added, changed and removed entries.
    pub fn changes_since(&self, before: &Self) -> Vec<String> {
        let (mut lines, mut gone) = (Vec::new(), Vec::new());
        for (path, was, is) in self.differences(before) {
            let path = path.display();
            match (was, is) {
                (None, Some(is)) => lines.push(format!("+ {path} {is}")),
                (Some(was), Some(is)) => lines.push(format!("~ {path} {is} (was {was})")),
                (Some(was), None) => gone.push(format!("- {path} {was}")),
                (None, None) => {}
            }
        }
        lines.extend(gone);
        lines
    }
}

/// Returns true if a directory is on procfs or sysfs.
fn is_kernels(path: &Path) -> io::Result<bool> {
    let kind = statfs(path)?.filesystem_type();
    Ok(kind == PROC_SUPER_MAGIC || kind == SYSFS_MAGIC)
}

impl Entry {
    /// Reads the entry at a path, without following links.
    fn of(path: &Path, traces: bool) -> io::Result<Self> {
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
            traces: traces.then(|| Traces {
                inode: (stat.dev(), stat.ino(), stat.nlink()),
                modified: (stat.mtime(), stat.mtime_nsec()),
                changed: (stat.ctime(), stat.ctime_nsec()),
            }),
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
        }?;
        self.traces
            .map_or(Ok(()), |traces| write!(f, " {traces:?}"))
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
        let before = Tree::of(root).unwrap();
        assert_eq!(before.changes_since(&before), [""; 0]);

        fs::write(at("content"), "abd").unwrap();
        files::mode(&at("mode"), 0o600).unwrap();
        fs::remove_file(at("gone")).unwrap();
        fs::remove_file(at("link")).unwrap();
        files::link(&at("link"), "b").unwrap();
        files::file(&at("new/x"), "", 0o444).unwrap();
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
                "+ new",
                "+ new/x",
                "- gone"
            ]
        );
    }

    #[test]
    fn traces_are_seen_when_all_is_put_back() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a/file");
        files::file(&path, "text", 0o644).unwrap();
        let plain = Tree::of(root.path()).unwrap();
        let traces = Tree::with_traces(root.path()).unwrap();
        files::mode(&path, 0o600).unwrap();
        files::mode(&path, 0o644).unwrap();
        assert_eq!(Tree::of(root.path()).unwrap().differences(&plain), []);
        let now = Tree::with_traces(root.path()).unwrap();
        let paths: Vec<_> = now
            .differences(&traces)
            .iter()
            .map(|(path, ..)| *path)
            .collect();
        assert_eq!(paths, [Path::new("a/file")]);
    }

    #[test]
    fn a_procfs_is_not_entered() {
        let tree = Tree::of(Path::new("/proc")).unwrap();
        assert!(tree.get("").is_some() && tree.get("self").is_none());
    }
}
