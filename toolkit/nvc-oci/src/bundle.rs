//! Reads a bundle's config.json and replaces it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::Mode;
use nvc_hostfile::draft::{Like, put};

/// Size limit of config.json: annotations of a megabyte are real, a hundred times that is an error or an attack.
pub const MAX_SIZE: usize = 16 << 20;

/// Reads a config.json.
///
/// # Errors
/// It cannot be opened or read, is too long, or is no file: a pipe could be read only once, and the low-level runtime
/// would find nothing in it.
pub fn read(file: &Path) -> io::Result<Vec<u8>> {
    // Before it is opened, which waits for the writer of a fifo.
    let found = fs::metadata(file)?;
    if !found.is_file() && !found.is_dir() {
        return Err(io::Error::other("it is not a regular file"));
    }
    nvc_hostfile::bounded(File::open(file)?, MAX_SIZE)
}

/// Replaces a config.json: readers see the old file or the new one, never a partial one.
///
/// The new file has the old one's owner, mode and SELinux label. If the directory entry cannot be replaced (a mount
/// point, a read-only directory), the file is overwritten. Nothing is synced: after a crash of the machine no container
/// needs the file.
///
/// # Errors
/// The file cannot be written either way, or its name still leads to the old one.
pub fn replace(file: &Path, text: &[u8]) -> io::Result<()> {
    let name = file;
    // A symlink stays: its target is replaced.
    let file = fs::canonicalize(name)?;
    match exchange(&file, text) {
        Err(error) if cannot_be_exchanged(&error) => overwrite(&file, text),
        done => done,
    }?;
    // The name of an open file, /dev/stdin: the low-level runtime would start the container without its GPUs.
    let identity = |file: &Path| fs::metadata(file).map(|file| (file.dev(), file.ino()));
    if identity(name)? != identity(&file)? {
        return Err(io::Error::other("it is the name of an open file"));
    }
    Ok(())
}

fn cannot_be_exchanged(error: &io::Error) -> bool {
    let numbers = [
        Errno::EBUSY,
        Errno::EXDEV,
        Errno::EROFS,
        Errno::EACCES,
        Errno::EPERM,
    ];
    error
        .raw_os_error()
        .map(Errno::from_raw)
        .is_some_and(|number| numbers.contains(&number))
}

fn exchange(file: &Path, text: &[u8]) -> io::Result<()> {
    let (Some(directory), Some(name)) = (file.parent(), file.file_name()) else {
        return Err(Errno::EISDIR.into());
    };
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let directory = open(directory, flags, Mode::empty())?;
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let old = File::from(openat(&directory, name, flags, Mode::empty())?);
    let mut like = Like::label_of(&old);
    like.durable = false;
    put(directory.as_fd(), name, text, &like)
}

fn overwrite(file: &Path, text: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(file)?;
    // Written before it is truncated, so that a full disk does not leave an empty file.
    file.write_all(text)?;
    file.set_len(text.len() as u64)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_new_file_has_the_old_ones_mode_and_links_stay() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real.json"), dir.path().join("config.json"));
        fs::write(&real, "old").unwrap();
        fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("real.json", &link).unwrap();
        replace(&link, b"new").unwrap();
        assert_eq!(fs::read(&real).unwrap(), b"new");
        assert_eq!(fs::metadata(&real).unwrap().mode() & 0o7777, 0o640);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn overwriting_truncates() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.json");
        fs::write(&file, "a long text").unwrap();
        overwrite(&file, b"short").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"short");
    }

    #[test]
    fn a_file_that_is_too_long_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.json");
        File::create(&file)
            .unwrap()
            .set_len(MAX_SIZE as u64 + 1)
            .unwrap();
        assert!(read(&file).unwrap_err().to_string().contains("16 MiB"));
        File::create(&file)
            .unwrap()
            .set_len(MAX_SIZE as u64)
            .unwrap();
        assert_eq!(read(&file).unwrap().len(), MAX_SIZE);
    }
}
