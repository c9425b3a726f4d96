//! Tells who can reach a filesystem: asks the mount namespace of each process.

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, readlinkat};
use nix::sys::stat::{Mode, major, minor};

use crate::{directory, mountinfo, read_file};

/// Limit of entries of /proc, the kernel's limit of process ids.
const MAX_PROCESSES: usize = 1 << 22;

/// Time limit: any user can have many namespaces with long tables.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Returns true if a filesystem is mounted in the caller's mount namespace alone, and all processes there are root's but
/// those that the caller has started: NVML's. `descriptors` is this thread's `/proc/thread-self/fd`.
///
/// An engine such as Apptainer makes the container's /dev in a tmpfs of its own session, and mounts that in a namespace
/// of its own: nobody else has a path to it, and who could enter the namespace is root. What the namespace has inherited,
/// a volume of several containers or a directory of the host, is mounted where they or the engine run, too: one of their
/// processes shows it, at the latest the first of a /proc that hides the others.
pub(in crate::apply) fn by_root_alone(
    device: u64,
    descriptors: BorrowedFd<'_>,
) -> Result<bool, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let proc = openat(descriptors, "../../../..", flags, Mode::empty())?;
    let link = |name: &str| readlinkat(&proc, name);
    let (caller, own) = (link("self")?, link("thread-self/ns/mnt")?);
    let caller = caller.to_string_lossy().into_owned();
    let mut known = HashSet::new();
    let mut has_first = false;
    let begin = Instant::now();
    for name in directory::names(proc.as_fd(), MAX_PROCESSES, |_| true)? {
        let Some(pid) = name.to_str().filter(|name| name.parse::<u32>().is_ok()) else {
            continue;
        };
        if begin.elapsed() > TIMEOUT {
            return Ok(false);
        }
        has_first |= pid == "1";
        let examined = (|| {
            let status = Status::read(proc.as_fd(), pid)?;
            if pid == caller || status.parent == caller {
                return Ok(true);
            }
            // They may be hidden, unlike the table.
            let namespace = link(&format!("{pid}/ns/mnt")).ok();
            if namespace.as_ref() == Some(&own) {
                return Ok(pid != "1" && status.is_roots);
            }
            // A process sees only the mounts below its root.
            let root = link(&format!("{pid}/root")).ok();
            if namespace.is_some() && root.is_some() && !known.insert((namespace, root)) {
                return Ok(true);
            }
            let table = read(proc.as_fd(), &format!("{pid}/mountinfo"))?;
            Ok(!mountinfo::shows(
                &table,
                (major(device), minor(device)),
                None,
            ))
        })();
        match examined {
            Ok(true) => {}
            // It has ended: a zombie has no mount table.
            Err(Errno::ENOENT | Errno::ESRCH | Errno::EINVAL) => {}
            Ok(false) => return Ok(false),
            Err(errno) => {
                log::debug!("process {pid} cannot be examined: {errno}");
                return Ok(false);
            }
        }
    }
    // A /proc that hides others' processes (hidepid) shows none.
    Ok(has_first)
}

/// What is known of a process.
struct Status {
    parent: String,
    /// Its user ids are all root's.
    is_roots: bool,
}

impl Status {
    fn read(proc: BorrowedFd<'_>, pid: &str) -> Result<Self, Errno> {
        let text = read(proc, &format!("{pid}/status"))?;
        let line = |name: &[u8]| read_file::line_of(&text, name).ok_or(Errno::EIO);
        let users = line(b"Uid:")?;
        Ok(Self {
            parent: line(b"PPid:")?.to_owned(),
            is_roots: users.split_whitespace().all(|user| user == "0"),
        })
    }
}

fn read(proc: BorrowedFd<'_>, name: &str) -> Result<Vec<u8>, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    let file = openat(proc, name, flags, Mode::empty())?;
    read_file::read_all(File::from(file))
}
