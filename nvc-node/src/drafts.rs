//! Removes what a process left that was killed while it wrote a file.

use std::fs::{self, DirEntry};
use std::path::Path;
use std::time::Duration;

/// Longer than a small file is written.
pub(crate) const OLD: Duration = Duration::from_secs(60);

/// Removes a file's drafts of at least this age: a newer one may belong to a daemon that is writing. Who holds the file's
/// lock passes zero.
pub(crate) fn sweep(path: &Path, age: Duration) {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return;
    };
    let prefix = format!(".{}.", name.display());
    let is_left = |entry: &DirEntry| {
        let name = entry.file_name();
        let written = entry.metadata().and_then(|is| is.modified()).ok();
        let passed = written.and_then(|written| written.elapsed().ok());
        name.to_string_lossy().starts_with(&prefix) && passed.unwrap_or_default() >= age
    };
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in entries.filter(is_left) {
        // It only takes space.
        let _ = fs::remove_file(entry.path());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs::File;
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn drafts_of_others_who_may_write_stay() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        for name in ["a", ".a.old", ".a.new", ".b.old"] {
            let file = File::create(path(name)).unwrap();
            if name.ends_with("old") {
                file.set_modified(SystemTime::now() - 2 * OLD).unwrap();
            }
        }
        let is_there = |name: &&str| path(name).exists();
        sweep(&path("a"), OLD);
        let left = ["a", ".a.old", ".a.new", ".b.old"]
            .into_iter()
            .filter(is_there);
        assert_eq!(left.collect::<Vec<_>>(), ["a", ".a.new", ".b.old"]);
        sweep(&path("a"), Duration::ZERO);
        assert!(!path(".a.new").exists() && path("a").exists());
    }
}
