//! Parses a Jetson's file lists.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The lists for every container; others are for images that request all.
const ORDINARY: [&str; 3] = ["devices.csv", "drivers.csv", "l4t.csv"];

/// The longest list.
const MAX_SIZE: usize = 4 << 20;

/// Type of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A device node.
    Device,
    Directory,
    /// A library or another file.
    Library,
    /// A symbolic link.
    Link,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub kind: Kind,
    /// The path, which may be a shell pattern.
    pub path: String,
}

/// Parses the entries of a list in order; ignores malformed lines.
pub fn parse(text: &str) -> Vec<Entry> {
    text.lines().filter_map(entry).collect()
}

/// Reads the entries of a list.
///
/// # Errors
/// The file cannot be read.
pub fn read(file: &Path) -> io::Result<Vec<Entry>> {
    let text = nvc_hostfile::bounded(fs::File::open(file)?, MAX_SIZE)?;
    Ok(parse(&String::from_utf8_lossy(&text)))
}

fn entry(line: &str) -> Option<Entry> {
    let (kind, path) = line.split_once(',')?;
    let kind = match kind.trim() {
        "dev" => Kind::Device,
        "dir" => Kind::Directory,
        "lib" => Kind::Library,
        "sym" => Kind::Link,
        _ => return None,
    };
    let path = path.trim();
    let is_path = path.starts_with('/') && !path.contains([',', '\0']);
    is_path.then(|| Entry {
        kind,
        path: path.to_owned(),
    })
}

/// Returns the sorted list files in a directory, only the ordinary ones unless `all`. Empty if the directory is
/// missing.
///
/// # Errors
/// The directory cannot be read.
pub fn in_directory(directory: &Path, all: bool) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        done => done?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.ends_with(".csv") && (all || ORDINARY.contains(&name.as_ref())) && path.is_file() {
            found.push(path.clone());
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_another_form_are_left_out() {
        let text = "dev, /dev/nvmap\n# lib, /x\nlib /x\n\nlib,/a.so\r\nsym , /l \nfrob, /x\nlib, relative\ndir, /d, /e\ndir,/d";
        let entries: Vec<_> = parse(text).into_iter().map(|e| (e.kind, e.path)).collect();
        let expected = [
            (Kind::Device, "/dev/nvmap"),
            (Kind::Library, "/a.so"),
            (Kind::Link, "/l"),
            (Kind::Directory, "/d"),
        ];
        assert_eq!(
            entries,
            expected.map(|(kind, path)| (kind, path.to_owned()))
        );
    }

    #[test]
    fn only_ordinary_lists_are_taken() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["l4t.csv", "drivers.csv", "extra.csv", "drivers.txt"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let names = |all| -> Vec<String> {
            let found = in_directory(dir.path(), all).unwrap();
            let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
            found.iter().map(name).collect()
        };
        assert_eq!(names(false), ["drivers.csv", "l4t.csv"]);
        assert_eq!(names(true), ["drivers.csv", "extra.csv", "l4t.csv"]);
        assert!(
            in_directory(Path::new("/no/such"), true)
                .unwrap()
                .is_empty()
        );
    }
}
