//! Reads a bundle's config.json and replaces it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// Size limit of config.json: annotations of a megabyte are real, a hundred times that is an error or an attack.
pub const LONGEST: u64 = 16 << 20;

/// Reads a config.json.
///
/// # Errors
/// It cannot be opened or read, or is too long.
pub fn read(file: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let opened = File::open(file)?;
    let size = opened.metadata()?.len();
    bytes.reserve(usize::try_from(size.min(LONGEST)).unwrap_or(0));
    opened.take(LONGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST {
        let text = format!("it is larger than {} MiB", LONGEST >> 20);
        return Err(io::Error::other(text));
    }
    Ok(bytes)
}

/// Replaces a config.json: readers see the old file or the new one, never a partial one.
///
/// The new file has the old one's owner, mode and SELinux label. If the directory entry cannot be replaced (a mount
/// point, a read-only directory), the file is overwritten. Nothing is synced: after a crash of the machine no container
/// needs the file.
///
/// # Errors
/// The file cannot be written either way.
pub fn replace(file: &Path, text: &[u8]) -> io::Result<()> {
    // A symlink stays: its target is replaced.
    let file = fs::canonicalize(file)?;
    match exchange(&file, text) {
        Err(error) if cannot_be_exchanged(&error) => overwrite(&file, text),
        done => done,
    }
}

fn cannot_be_exchanged(error: &io::Error) -> bool {
    let numbers = [
        Errno::BUSY,
        Errno::XDEV,
        Errno::ROFS,
        Errno::ACCESS,
        Errno::PERM,
    ];
    Errno::from_io_error(error).is_some_and(|number| numbers.contains(&number))
}

fn exchange(file: &Path, text: &[u8]) -> io::Result<()> {
    let old = File::open(file)?;
    let temporary = Temporary::create(file)?;
    let new = &temporary.file;
    let facts = old.metadata()?;
    // The owner first, because changing it clears mode bits.
    let there = new.metadata()?;
    if (there.uid(), there.gid()) != (facts.uid(), facts.gid()) {
        std::os::unix::fs::fchown(new, Some(facts.uid()), Some(facts.gid()))?;
    }
    new.set_permissions(fs::Permissions::from_mode(facts.mode() & 0o7777))?;
    copy_label(&old, new)?;
    (&temporary.file).write_all(text)?;
    temporary.rename(file)
}

fn overwrite(file: &Path, text: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(file)?;
    // Written before it is truncated, so that a full disk does not leave an empty file.
    file.write_all(text)?;
    file.set_len(text.len() as u64)
}

/// Copies the old file's label to the new one, if files have labels.
fn copy_label(old: &File, new: &File) -> io::Result<()> {
    const NAME: &str = "security.selinux";
    let mut label = vec![0; 256];
    let length = match rustix::fs::fgetxattr(old, NAME, &mut label) {
        Ok(length) => length,
        Err(Errno::NODATA | Errno::OPNOTSUPP) => return Ok(()),
        Err(number) => return Err(number.into()),
    };
    label.truncate(length);
    match rustix::fs::fsetxattr(new, NAME, &label, rustix::fs::XattrFlags::empty()) {
        // Without SELinux in the kernel, a label that comes from an image cannot be set.
        Err(Errno::OPNOTSUPP) | Ok(()) => Ok(()),
        Err(number) => Err(number.into()),
    }
}

/// A new file beside the old one; removed on drop unless it has replaced the old one.
struct Temporary {
    file: File,
    path: PathBuf,
    renamed: bool,
}

impl Temporary {
    fn create(beside: &Path) -> io::Result<Self> {
        let name = format!(".config.json.nvidia-{}", std::process::id());
        let path = beside.with_file_name(name);
        let create = || {
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path)
        };
        let file = match create() {
            // Left by a killed process with the same pid.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                fs::remove_file(&path)?;
                create()?
            }
            done => done?,
        };
        let renamed = false;
        Ok(Self {
            file,
            path,
            renamed,
        })
    }

    fn rename(mut self, to: &Path) -> io::Result<()> {
        fs::rename(&self.path, to)?;
        self.renamed = true;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed {
            // It is ours; if it cannot be removed, it could not be created.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
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
        File::create(&file).unwrap().set_len(LONGEST + 1).unwrap();
        assert!(read(&file).unwrap_err().to_string().contains("16 MiB"));
        File::create(&file).unwrap().set_len(LONGEST).unwrap();
        assert_eq!(read(&file).unwrap().len() as u64, LONGEST);
    }
}
