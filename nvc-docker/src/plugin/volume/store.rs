//! Records which volumes exist, which are mounted, and their users.
//!
//! A volume exists if its directory does; it is mounted while a container uses it. Users are saved to a file, so that a
//! restarted plugin continues where the last one stopped. The file is not critical: unmounting too early does not harm
//! a running container, which has its own mounts.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};

use libnvc::{Error, ErrorKind, Result};
use nix::fcntl::{Flock, FlockArg};
use nix::libc::O_NOFOLLOW;

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
    /// Users of mounted volumes, by version, with their mount counts.
    users: BTreeMap<String, BTreeMap<String, u32>>,
}

impl Store {
    /// Opens the volumes below a directory, which need not exist, in the state in which they were left.
    ///
    /// # Errors
    /// If another plugin uses the directory.
    pub(super) fn open(root: &Path) -> Result<Self> {
        let mut store = Self {
            root: cleaned(root),
            lock: None,
            users: BTreeMap::new(),
        };
        if store.root.is_dir() {
            store.take_lock()?;
            store.recover();
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

    /// Mounts a volume for a user, if it exists.
    pub(super) fn mount(&mut self, version: &str, user: &str) -> Result<Option<String>> {
        let Some(shown) = self.find(version) else {
            return Ok(None);
        };
        self.take_lock()?;
        let path = self.path(version);
        let wanted = contents::find(version)?;
        match tree::state(&path, &wanted) {
            State::Whole => {}
            State::Outdated | State::Unfinished => {
                log_text(&format!(
                    "Renewing the volume at {shown}: the driver's files have changed"
                ));
                tree::unmount_all(&path).map_err(|error| failed("unmount", &path, &error))?;
                tree::mount(&path, &wanted)?;
            }
            State::NotMounted => tree::mount(&path, &wanted)?,
        }
        let count = self
            .users
            .entry(version.to_owned())
            .or_default()
            .entry(user.to_owned())
            .or_default();
        // Docker uses one id per container; without an id only the number of mounts is known.
        *count = if user.is_empty() {
            count.saturating_add(1)
        } else {
            1
        };
        self.remember(version);
        Ok(Some(shown))
    }

    /// Removes a user from a volume; without users it is unmounted.
    pub(super) fn unmount(&mut self, version: &str, user: &str) -> Result<()> {
        if let Some(users) = self.users.get_mut(version) {
            match users.get_mut(user) {
                Some(count) if *count > 1 => *count -= 1,
                _ => drop(users.remove(user)),
            }
            if users.is_empty() {
                self.users.remove(version);
            }
        }
        if !self.users.contains_key(version) {
            let path = self.path(version);
            tree::unmount_all(&path).map_err(|error| failed("unmount", &path, &error))?;
        }
        self.remember(version);
        Ok(())
    }

    /// Removes a volume; a missing one counts as removed.
    pub(super) fn remove(&mut self, version: &str) -> Result<()> {
        let path = self.path(version);
        if !path.is_dir() {
            return Ok(());
        }
        tree::unmount_all(&path).map_err(|error| failed("unmount", &path, &error))?;
        self.users.remove(version);
        self.remember(version);
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

    /// Returns the file with the users of a volume.
    fn users_file(&self, version: &str) -> PathBuf {
        self.root.join(VOLUME).join(format!(".{version}.users"))
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

    /// Recovers the state left by the last plugin: users of complete mounts are kept, incomplete mounts are unmounted.
    fn recover(&mut self) {
        let versions = self.list().unwrap_or_default();
        for (version, _) in versions {
            let path = self.path(&version);
            match tree::state(&path, &[]) {
                State::NotMounted => drop(fs::remove_file(self.users_file(&version))),
                State::Unfinished => {
                    if let Err(error) = tree::unmount_all(&path) {
                        log_text(&format!("Warning: {}: {error}", path.display()));
                    }
                }
                State::Whole | State::Outdated => {
                    let text = fs::read(self.users_file(&version)).unwrap_or_default();
                    let users = serde_json::from_slice(&text).unwrap_or_default();
                    self.users.insert(version, users);
                }
            }
        }
        self.users.retain(|_, users| !users.is_empty());
    }

    /// Saves the users of a volume. A full disk must not prevent a container from starting.
    fn remember(&self, version: &str) {
        let file = self.users_file(version);
        let written = match self.users.get(version) {
            None => match fs::remove_file(&file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(failed("remove", &file, &error))
                }
                _ => Ok(()),
            },
            Some(users) => {
                let text = serde_json::to_vec(users).unwrap_or_default();
                nvc_hostfile::create(&file, &text, 0o644)
            }
        };
        if let Err(error) = written {
            log_text(&format!(
                "Warning: {}; a plugin that is started again will not know who uses the volume",
                error.message()
            ));
        }
    }
}

fn failed(operation: &str, path: &Path, error: &io::Error) -> Error {
    Error::new(
        ErrorKind::System,
        format!("{operation} {}: {error}", path.display()),
    )
}

/// Returns a path without empty parts, `.` and `..`, lexically.
fn cleaned(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if clean.file_name().is_some() => drop(clean.pop()),
            Component::ParentDir if clean.has_root() => {}
            part => clean.push(part),
        }
    }
    clean
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
    fn paths_are_cleaned() {
        for (path, clean) in [
            ("//a/./b/", "/a/b"),
            ("/a/../b", "/b"),
            ("/../a", "/a"),
            ("a/b/..", "a"),
            ("../a", "../a"),
        ] {
            assert_eq!(cleaned(Path::new(path)), Path::new(clean), "{path}");
        }
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
