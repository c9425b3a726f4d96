//! Locks that processes take by a file: those of this driver, and NVIDIA's.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};

/// What is said of a shorter wait would be of no use: NVIDIA's driver has a lock for seconds, too.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(5);

/// Opens the file of a lock for root alone, since whoever may open it could have the lock for ever.
///
/// # Errors
/// The system's.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(path)?;
    if file.metadata()?.mode() & 0o077 != 0 {
        // That of another user stays as it is.
        let _ = file.set_permissions(Permissions::from_mode(0o600));
    }
    Ok(file)
}

/// Waits for a lock. One that lasts says so, once.
///
/// # Errors
/// The system's.
pub(crate) fn wait(mut file: File, path: &Path) -> io::Result<Flock<File>> {
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((back, _)) => file = back,
        }
        sleep(PAUSE);
    }
    log::info!(
        "Waiting for {}, which another process has locked",
        path.display()
    );
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| errno.into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn nobody_else_may_open_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let mode = || fs::metadata(&path).unwrap().mode() & 0o777;
        let held = wait(open(&path).unwrap(), &path).unwrap();
        assert_eq!(mode(), 0o600);
        // As another program made it.
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let other = open(&path).unwrap();
        assert_eq!(mode(), 0o600);
        assert!(Flock::lock(other, FlockArg::LockExclusiveNonblock).is_err());
        drop(held);
        wait(open(&path).unwrap(), &path).unwrap();
    }
}
