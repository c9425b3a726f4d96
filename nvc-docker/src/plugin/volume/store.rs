//! Creates, mounts and removes volumes.
//!
//! A volume exists if its directory does. It is mounted when a container starts, and stays so until docker removes it,
//! which counts its users, or a container gets that of another driver. A running container has its own mounts.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use libnvc::{Error, ErrorKind, Result};
use nix::fcntl::{Flock, FlockArg};
use nix::libc::O_NOFOLLOW;
use nvc_oci::paths;

use super::contents;
use super::tree::{self, State};
use crate::driver_volume::{VOLUME, is_version};
use crate::log_line::log_text;

/// The file that only a plugin can lock.
const LOCK: &str = ".lock";

/// The volumes below a directory.
#[derive(Debug)]
pub(super) struct Store {
    root: PathBuf,
    /// Held while the plugin runs: two plugins would unmount each other's volumes.
    lock: Option<Flock<File>>,
}

impl Store {
    /// Opens the volumes below a directory, which need not exist.
    ///
    /// # Errors
    /// If another plugin uses the directory.
    pub(super) fn open(root: &Path) -> Result<Self> {
        let mut store = Self {
            root: paths::clean(&root.to_string_lossy()).into(),
            lock: None,
        };
        if store.root.is_dir() {
            store.take_lock()?;
        }
        Ok(store)
    }

    /// Creates a volume; an existing one stays.
    pub(super) fn create(&mut self, version: &str) -> Result<()> {
        let path = self.path(version);
        let made = DirBuilder::new().recursive(true).mode(0o755).create(&path);
        made.map_err(|error| failed("create", &path, &error))?;
        self.take_lock()
    }

    /// Returns a volume's path, if it exists.
    pub(super) fn find(&self, version: &str) -> Option<String> {
        let path = self.path(version);
        path.is_dir().then(|| path.to_string_lossy().into_owned())
    }

    /// Returns the volumes.
    pub(super) fn list(&self) -> Result<Vec<(String, String)>> {
        let directory = self.root.join(VOLUME);
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed("read", &directory, &error)),
        };
        let mut versions: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| is_version(name))
            .collect();
        versions.sort();
        Ok(versions
            .into_iter()
            .filter_map(|version| Some((version.clone(), self.find(&version)?)))
            .collect())
    }

    /// Mounts a volume, if it exists, and unmounts those of other drivers.
    pub(super) fn mount(&mut self, version: &str) -> Result<Option<String>> {
        let Some(shown) = self.find(version) else {
            return Ok(None);
        };
        self.take_lock()?;
        for (other, _) in self.list()?.iter().filter(|(other, _)| other != version) {
            self.unmount(other)?;
        }
        let path = self.path(version);
        let wanted = contents::find(version)?;
        match tree::state(&path, &wanted) {
            State::Whole => {}
            State::Outdated | State::Unfinished => {
                log_text(&format!(
                    "Renewing the volume at {shown}: the driver's files have changed"
                ));
                self.unmount(version)?;
                tree::mount(&path, &wanted)?;
            }
            State::NotMounted => tree::mount(&path, &wanted)?,
        }
        Ok(Some(shown))
    }

    fn unmount(&self, version: &str) -> Result<()> {
        let path = self.path(version);
        tree::unmount_all(&path).map_err(|error| failed("unmount", &path, &error))
    }

    /// Removes a volume; a missing one counts as removed.
    pub(super) fn remove(&mut self, version: &str) -> Result<()> {
        let path = self.path(version);
        if !path.is_dir() {
            return Ok(());
        }
        self.unmount(version)?;
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed("remove", &path, &error))
            }
            _ => Ok(()),
        }
    }

    fn path(&self, version: &str) -> PathBuf {
        self.root.join(VOLUME).join(version)
    }

    fn take_lock(&mut self) -> Result<()> {
        if self.lock.is_some() {
            return Ok(());
        }
        // Not the directory: every user of the machine can open and lock that.
        let path = self.root.join(LOCK);
        let mut options = File::options();
        options.write(true).create(true).mode(0o600);
        let file = options.custom_flags(O_NOFOLLOW).open(&path);
        let file = file.map_err(|error| failed("open", &path, &error))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => {
                self.lock = Some(lock);
                Ok(())
            }
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => Err(Error::new(
                ErrorKind::System,
                format!(
                    "another nvidia-docker-plugin keeps the volumes at {}",
                    self.root.display()
                ),
            )
            .hint("stop that one, or choose another directory with -d")),
            Err((_, errno)) => Err(failed("lock", &path, &errno.into())),
        }
    }
}

fn failed(operation: &str, path: &Path, error: &io::Error) -> Error {
    Error::new(
        ErrorKind::System,
        format!("{operation} {}: {error}", path.display()),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn only_another_plugin_keeps_the_volumes() {
        let dir = tempfile::tempdir().unwrap();
        let any_users = File::open(dir.path()).unwrap();
        let held = Flock::lock(any_users, FlockArg::LockExclusiveNonblock).unwrap();
        let first = Store::open(dir.path()).unwrap();
        let error = Store::open(dir.path()).unwrap_err().message();
        assert!(error.contains("another nvidia-docker-plugin"), "{error}");
        let mode = fs::metadata(dir.path().join(LOCK)).unwrap().permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);
        drop((first, held));
        Store::open(dir.path()).unwrap();
    }

    #[test]
    fn volumes_come_and_go() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("volumes");
        let mut store = Store::open(&root).unwrap();
        assert_eq!(store.list().unwrap(), []);
        assert_eq!(store.find("375.66"), None);
        store.create("375.66").unwrap();
        store.create("375.66").unwrap();
        let path = store.find("375.66").unwrap();
        assert!(path.ends_with("volumes/nvidia_driver/375.66"));
        fs::create_dir(root.join("nvidia_driver/junk")).unwrap();
        assert_eq!(store.list().unwrap(), [("375.66".to_owned(), path.clone())]);
        // Files left by upstream's plugin are removed too.
        fs::create_dir(root.join("nvidia_driver/375.66/bin")).unwrap();
        fs::write(root.join("nvidia_driver/375.66/bin/x"), "").unwrap();
        store.remove("375.66").unwrap();
        store.remove("375.66").unwrap();
        assert_eq!(store.find("375.66"), None);
        assert!(root.join("nvidia_driver/junk").exists());
    }

    #[test]
    fn two_plugins_do_not_share_volumes() {
        let directory = tempfile::tempdir().unwrap();
        let first = Store::open(directory.path()).unwrap();
        let failure = Store::open(directory.path()).unwrap_err();
        assert!(
            failure
                .message()
                .starts_with("another nvidia-docker-plugin keeps")
        );
        drop(first);
        Store::open(directory.path()).unwrap();
    }

    #[test]
    fn a_file_in_place_of_the_directory() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("file");
        fs::write(&root, "").unwrap();
        let mut store = Store::open(&root).unwrap();
        assert!(store.create("1.0").is_err());
        assert!(store.list().is_err());
        assert_eq!(store.find("1.0"), None);
        store.remove("1.0").unwrap();
    }
}
