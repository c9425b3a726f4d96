//! Mounts a volume: a tmpfs with a read-only bind mount for each of the driver's files.
//!
//! The tmpfs becomes read-only last, which distinguishes a complete volume from an interrupted one.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, symlink};
use std::path::Path;

use libnvc::{Error, ErrorKind, Result};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount as mount_at, umount2};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use nix::sys::statvfs::{FsFlags, statvfs};

use super::contents::{Entry, What};

/// Room for file and link names; there is no content.
const TMPFS_OPTIONS: &str = "mode=755,size=1m,nr_inodes=4k";

/// Limit of mounts on one directory that are unmounted one by one.
const MAX_LAYERS: usize = 64;

/// The state of a volume's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    NotMounted,
    /// An interrupted mount, or not ours.
    Unfinished,
    /// Complete, but of files that have been replaced.
    Outdated,
    Whole,
}

/// Compares the mounts at a directory with the wanted ones; without wanted ones, any complete volume matches.
pub(super) fn state(path: &Path, wanted: &[Entry]) -> State {
    let parent = path.parent().unwrap_or(path);
    let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev());
    match (device(path), device(parent)) {
        (Ok(own), Ok(other)) if own != other => {}
        _ => return State::NotMounted,
    }
    let is_tmpfs = statfs(path).is_ok_and(|found| found.filesystem_type() == TMPFS_MAGIC);
    let is_read_only = statvfs(path).is_ok_and(|found| found.flags().contains(FsFlags::ST_RDONLY));
    if !is_tmpfs || !is_read_only {
        return State::Unfinished;
    }
    let is_same = |entry: &Entry| {
        let target = path.join(&entry.place);
        match &entry.what {
            What::File(source) => match (fs::metadata(source), fs::metadata(&target)) {
                (Ok(source), Ok(target)) => {
                    (source.dev(), source.ino()) == (target.dev(), target.ino())
                }
                _ => false,
            },
            What::Link(to) => fs::read_link(&target).is_ok_and(|found| found == Path::new(to)),
        }
    };
    if wanted.iter().all(is_same) {
        State::Whole
    } else {
        State::Outdated
    }
}

/// Mounts a volume; on failure nothing stays mounted.
pub(super) fn mount(path: &Path, entries: &[Entry]) -> Result<()> {
    let restricted = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount_at(
        Some("nvidia-docker"),
        path,
        Some("tmpfs"),
        restricted,
        Some(TMPFS_OPTIONS),
    )
    .map_err(|errno| not_mounted(path, errno))?;
    let filled = fill(path, entries).and_then(|()| {
        let read_only = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY | restricted;
        mount_at(None::<&str>, path, None::<&str>, read_only, None::<&str>)
            .map_err(|errno| not_mounted(path, errno))
    });
    filled.inspect_err(|_| {
        // The first failure is reported; leftovers are found at the next mount.
        let _ = unmount_all(path);
    })
}

fn fill(path: &Path, entries: &[Entry]) -> Result<()> {
    let failed = |what: &Path, error: io::Error| {
        Error::new(ErrorKind::System, format!("{}: {error}", what.display()))
    };
    for directory in ["bin", "lib", "lib64"] {
        let directory = path.join(directory);
        let made = DirBuilder::new().mode(0o755).create(&directory);
        made.map_err(|error| failed(&directory, error))?;
    }
    for entry in entries {
        let target = path.join(&entry.place);
        match &entry.what {
            What::File(source) => {
                File::create_new(&target).map_err(|error| failed(&target, error))?;
                bind(source, &target)?;
            }
            What::Link(to) => symlink(to, &target).map_err(|error| failed(&target, error))?,
        }
    }
    Ok(())
}

/// Binds a file, without rights that the driver's files do not need.
fn bind(source: &Path, target: &Path) -> Result<()> {
    let failed = |errno: Errno| not_mounted(source, errno);
    mount_at(
        Some(source),
        target,
        None::<&str>,
        MsFlags::MS_BIND,
        None::<&str>,
    )
    .map_err(failed)?;
    let restricted = MsFlags::MS_REMOUNT
        | MsFlags::MS_BIND
        | MsFlags::MS_RDONLY
        | MsFlags::MS_NOSUID
        | MsFlags::MS_NODEV;
    mount_at(None::<&str>, target, None::<&str>, restricted, None::<&str>).map_err(failed)
}

/// Unmounts everything at a directory. Containers keep their mounts of it.
pub(super) fn unmount_all(path: &Path) -> io::Result<()> {
    for _ in 0..MAX_LAYERS {
        match umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) => {}
            // Nothing is mounted there, or the directory does not exist.
            Err(Errno::EINVAL | Errno::ENOENT) => return Ok(()),
            // Without the capability we cannot have mounted anything.
            Err(Errno::EPERM) if state(path, &[]) == State::NotMounted => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn not_mounted(path: &Path, errno: Errno) -> Error {
    let failure = Error::new(
        ErrorKind::System,
        format!("mount {}: {errno}", path.display()),
    );
    match errno {
        Errno::EPERM => {
            failure.hint("the plugin needs CAP_SYS_ADMIN in the machine's mount namespace")
        }
        _ => failure,
    }
}
