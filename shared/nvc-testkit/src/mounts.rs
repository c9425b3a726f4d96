//! Reads mount tables and compares them.

use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use nix::mount::{MntFlags, umount2};

/// A line of a mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// `major:minor` of the file system.
    pub device: String,
    /// Mounted directory of the filesystem.
    pub root: PathBuf,
    /// Mount point, as seen by the reader of the table.
    pub point: PathBuf,
    /// Options of the mount, sorted.
    pub options: Vec<String>,
    /// `shared`, `master`, … without peer group numbers.
    pub propagation: Vec<String>,
    /// Type of the file system.
    pub fs_type: String,
    /// The source, as reported by the filesystem.
    pub source: String,
    /// Options of the file system.
    pub super_options: Vec<String>,
}

/// Returns the mount table of a process, `self` or a pid.
///
/// # Errors
/// The process is gone.
pub fn of(process: impl fmt::Display) -> io::Result<Vec<Mount>> {
    let text = fs::read_to_string(format!("/proc/{process}/mountinfo"))?;
    Ok(text.lines().filter_map(parse).collect())
}

/// Returns the mount table of a process with mount ids, in the kernel's order.
///
/// # Errors
/// The process is gone.
pub fn numbered(process: impl fmt::Display) -> io::Result<Vec<(u64, Mount)>> {
    let text = fs::read_to_string(format!("/proc/{process}/mountinfo"))?;
    let number = |line: &str| line.split(' ').next()?.parse().ok();
    let lines = text.lines();
    Ok(lines
        .filter_map(|line| Some((number(line)?, parse(line)?)))
        .collect())
}

/// Returns the mounts at or below a path, in order of mounting.
pub fn below<'a>(table: &'a [Mount], path: &'a Path) -> impl DoubleEndedIterator<Item = &'a Mount> {
    table
        .iter()
        .filter(move |mount| mount.point.starts_with(path))
}

/// Returns the mounts with more occurrences in `after` than in `before`, and the reverse.
pub fn delta(before: &[Mount], after: &[Mount]) -> (Vec<Mount>, Vec<Mount>) {
    let mut gone = before.to_vec();
    let mut new = Vec::new();
    for mount in after {
        match gone.iter().position(|old| old == mount) {
            Some(place) => drop(gone.remove(place)),
            None => new.push(mount.clone()),
        }
    }
    (new, gone)
}

/// Detaches all mounts below a directory in this process's namespace, so that removing the directory cannot reach into
/// other filesystems.
///
/// # Errors
/// The table cannot be read or a mount cannot be detached.
pub fn detach_below(directory: &Path) -> io::Result<()> {
    for mount in below(&of("self")?, directory).rev() {
        if mount.point != directory {
            umount2(
                &mount.point,
                MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW,
            )?;
        }
    }
    Ok(())
}

fn parse(line: &str) -> Option<Mount> {
    let (mount, file_system) = line.split_once(" - ")?;
    let mount: Vec<&str> = mount.split(' ').collect();
    let mut file_system = file_system.split(' ');
    let words = |text: &str| {
        let mut words: Vec<_> = text.split(',').map(str::to_owned).collect();
        words.sort();
        words
    };
    let tags = mount.get(6..)?.iter();
    Some(Mount {
        device: (*mount.get(2)?).to_owned(),
        root: unescape(mount.get(3)?),
        point: unescape(mount.get(4)?),
        options: words(mount.get(5)?),
        propagation: tags
            .map(|tag| tag.split(':').next().unwrap_or_default().to_owned())
            .collect(),
        fs_type: file_system.next()?.to_owned(),
        source: file_system.next()?.to_owned(),
        super_options: words(file_system.next()?),
    })
}

/// Decodes the octal escapes of blank, tab, newline and backslash.
fn unescape(text: &str) -> PathBuf {
    let text = [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ]
    .iter()
    .fold(text.to_owned(), |text, (code, character)| {
        text.replace(code, character)
    });
    text.into()
}

impl Mount {
    /// Returns true if the mount has an option.
    pub fn has(&self, option: &str) -> bool {
        self.options.iter().any(|own| own == option)
    }
}

impl fmt::Display for Mount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (point, root) = (self.point.display(), self.root.display());
        let options = self.options.join(",");
        let propagation = self.propagation.join(",");
        write!(f, "{point} {} {root} {options} {propagation}", self.fs_type)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const LINE: &str = "36 35 98:0 /mnt1 /a\\040b rw,noatime shared:1 master:2 - ext3 /dev/root rw,errors=continue";

    #[test]
    fn lines_are_parsed() {
        let mount = parse(LINE).unwrap();
        assert_eq!(mount.point, Path::new("/a b"));
        assert_eq!(mount.propagation, ["shared", "master"]);
        assert!(mount.has("noatime") && !mount.has("noexec"));
        assert_eq!(mount.super_options, ["errors=continue", "rw"]);
        assert_eq!(parse("36 35 98:0"), None);
        assert!(
            of("self")
                .unwrap()
                .iter()
                .any(|m| m.point == Path::new("/proc"))
        );
    }

    #[test]
    fn stacked_mounts_count() {
        let one = vec![parse(LINE).unwrap()];
        let two = [one.clone(), one.clone()].concat();
        assert_eq!(delta(&one, &two), (one.clone(), vec![]));
        assert_eq!(delta(&two, &one), (vec![], one));
    }
}
