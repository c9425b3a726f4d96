//! Finds processes in a unit's cgroup that are not the container's.
//!
//! An entry in `DeviceAllow` counts for all processes of a unit, as long as the unit lasts. So entries are added only
//! to a unit that is the container's alone: the scope that an engine has made, or the service of systemd-nspawn. The
//! cgroup's content decides, because a name proves nothing: any service can start a container below itself.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, readlinkat};
use nix::sys::stat::Mode;

use crate::container::ContainerProcess;
use crate::inroot;
use crate::{directory, read_file};

/// A unit with more groups or processes counts as shared, because reading all of them would take too long.
const MAX_GROUPS: usize = 1 << 10;
const MAX_PROCESSES: usize = 1 << 14;
const MAX_DEPTH: usize = 32;
/// Limit of the length of a chain of parents.
const MAX_PARENTS: usize = 1 << 6;

/// The place of a unit's cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::apply) enum Place {
    /// It is the container's own.
    Own,
    /// It is the parent of the container's own.
    Parent,
}

/// What a unit's cgroup contains apart from the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::apply) enum Others {
    Nothing,
    /// A process that is not the container's.
    Process(i32),
    /// More than is read.
    TooMany,
}

/// Finds a process of a unit that is not the container's; `cgroup` is the container's own group.
///
/// If the unit's group is the container's own, all its processes must be the container's. If it is the parent, the
/// container's group is taken as it is, and the only other processes may be the container's ancestors in groups beside
/// it: systemd-nspawn and lxc-start move themselves there. A manager that stays in the unit's group itself is another
/// process, as are all that it starts.
pub(in crate::apply) fn others(
    cgroup: BorrowedFd<'_>,
    place: Place,
    process: &ContainerProcess,
) -> Result<Others, Errno> {
    let family = Family::of(process)?;
    let mut search = Search::default();
    match place {
        Place::Own => search.below(cgroup, MAX_DEPTH, &|pid| family.has(pid))?,
        Place::Parent => {
            let parent = open(cgroup, "..")?;
            let own = inroot::identity_of(cgroup)?;
            let ancestors = family.ancestors();
            search.processes(parent.as_fd(), &|_| false)?;
            each_child(parent.as_fd(), |child| {
                if inroot::identity_of(child)? == own {
                    return Ok(());
                }
                search.below(child, MAX_DEPTH, &|pid| ancestors.contains(&pid))
            })?;
        }
    }
    Ok(search.found())
}

/// A search for other processes.
#[derive(Default)]
struct Search {
    groups: usize,
    processes: usize,
    other: Option<i32>,
}

impl Search {
    fn found(&self) -> Others {
        match self.other {
            Some(pid) => Others::Process(pid),
            None if self.is_too_much() => Others::TooMany,
            None => Others::Nothing,
        }
    }

    fn is_too_much(&self) -> bool {
        self.groups > MAX_GROUPS || self.processes > MAX_PROCESSES
    }

    fn is_over(&self) -> bool {
        self.other.is_some() || self.is_too_much()
    }

    /// Searches a group and those below it. One descriptor per level is open.
    fn below(
        &mut self,
        group: BorrowedFd<'_>,
        depth: usize,
        is_known: &dyn Fn(i32) -> bool,
    ) -> Result<(), Errno> {
        self.groups += if depth == 0 { MAX_GROUPS } else { 1 };
        if self.is_over() {
            return Ok(());
        }
        self.processes(group, is_known)?;
        each_child(group, |child| self.below(child, depth - 1, is_known))
    }

    /// Searches one group.
    fn processes(
        &mut self,
        group: BorrowedFd<'_>,
        is_known: &dyn Fn(i32) -> bool,
    ) -> Result<(), Errno> {
        let text = match read(group, "cgroup.procs") {
            // It has been removed, or its threads belong to processes that a group above lists.
            Err(Errno::ENOENT | Errno::ENODEV | Errno::EOPNOTSUPP) => return Ok(()),
            text => text?,
        };
        for line in text.split(|byte| *byte == b'\n').filter(|l| !l.is_empty()) {
            self.processes += 1;
            if self.is_over() {
                break;
            }
            // The kernel writes 0 for a process that this pid namespace does not have.
            let pid = number(line).unwrap_or(0);
            if !is_known(pid) && is_alive(pid) {
                self.other = Some(pid);
            }
        }
        Ok(())
    }
}

/// Calls `each` with the groups directly below one.
fn each_child(
    group: BorrowedFd<'_>,
    mut each: impl FnMut(BorrowedFd<'_>) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let mut names = Vec::new();
    {
        let readable = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let listing = openat(group, ".", readable, Mode::empty())?;
        // A group has some dozens of files.
        let mut most = 64 * MAX_GROUPS;
        directory::list(listing.as_fd(), &mut most, |entry| {
            if entry.kind == libc::DT_DIR && entry.name != "." && entry.name != ".." {
                names.push(entry.name.to_owned());
            }
        })?;
    }
    for name in names {
        match open(group, name.as_os_str()) {
            // It has been removed.
            Err(Errno::ENOENT) => {}
            child => each(child?.as_fd())?,
        }
    }
    Ok(())
}

/// The container's processes.
struct Family {
    /// Its first process, as far as we know.
    first: i32,
    /// Namespaces of that process that are not the caller's.
    namespaces: Vec<(&'static str, OsString)>,
}

impl Family {
    fn of(process: &ContainerProcess) -> Result<Self, Errno> {
        let directory = process.directory().ok_or(Errno::ESRCH)?;
        let status = process.read("status").map_err(|_| Errno::ESRCH)?;
        let mut namespaces = Vec::new();
        for name in ["ns/pid", "ns/mnt"] {
            let text = readlinkat(directory, name)?;
            if text != nix::fcntl::readlink(format!("/proc/thread-self/{name}").as_str())? {
                namespaces.push((name, text));
            }
        }
        let first = field(&status, b"Pid:").ok_or(Errno::ESRCH)?;
        Ok(Self { first, namespaces })
    }

    /// Returns true for a process that shares one of the container's namespaces, or that descends from its first one.
    fn has(&self, pid: i32) -> bool {
        let shares = |(name, text): &(&str, OsString)| {
            nix::fcntl::readlink(format!("/proc/{pid}/{name}").as_str()).is_ok_and(|it| it == *text)
        };
        self.namespaces.iter().any(shares) || parents(pid).any(|pid| pid == self.first)
    }

    /// Returns the ancestors of the first process.
    fn ancestors(&self) -> Vec<i32> {
        parents(self.first).skip(1).collect()
    }
}

/// Returns a process and its ancestors.
fn parents(pid: i32) -> impl Iterator<Item = i32> {
    let parent = |pid: &i32| field(&status(*pid)?, b"PPid:");
    let chain = std::iter::successors((pid > 0).then_some(pid), move |pid| {
        parent(pid).filter(|pid| *pid > 0)
    });
    chain.take(MAX_PARENTS)
}

fn status(pid: i32) -> Option<Vec<u8>> {
    read_file::read_path(format!("/proc/{pid}/status")).ok()
}

/// Returns true if a process still exists, or if it cannot be seen.
fn is_alive(pid: i32) -> bool {
    pid == 0 || status(pid).is_some()
}

/// Returns the number in a line of a process's status.
fn field(status: &[u8], name: &[u8]) -> Option<i32> {
    read_file::line_of(status, name)?.parse().ok()
}

fn number(text: &[u8]) -> Option<i32> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

/// Opens a directory of the hierarchy by reference.
fn open(group: BorrowedFd<'_>, name: &(impl nix::NixPath + ?Sized)) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(group, name, flags, Mode::empty())
}

fn read(group: BorrowedFd<'_>, name: &str) -> Result<Vec<u8>, Errno> {
    let file = openat(
        group,
        name,
        OFlag::O_RDONLY | OFlag::O_CLOEXEC,
        Mode::empty(),
    )?;
    // A line has at most eleven bytes; one more process than the limit is enough to notice it.
    read_file::read(File::from(file), 11 * (MAX_PROCESSES as u64 + 1))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn parents_begin_with_the_process_and_end_with_the_first() {
        let own = i32::try_from(std::process::id()).unwrap();
        let chain: Vec<_> = parents(own).collect();
        assert_eq!(chain[..2], [own, nix::unistd::getppid().as_raw()]);
        assert_eq!(parents(0).count(), 0);
        // No process has this number.
        assert_eq!(parents(i32::MAX).count(), 1);
        assert!(is_alive(own) && is_alive(0) && !is_alive(i32::MAX));
    }

    #[test]
    fn a_field_is_a_whole_name() {
        let status = b"Name:\tPid: 7\nTgid:\t5\nPid:\t5\nPPid:\t1\n";
        assert_eq!(field(status, b"Pid:"), Some(5));
        assert_eq!(field(status, b"PPid:"), Some(1));
        assert_eq!(field(status, b"NSpid:"), None);
        assert_eq!(field(b"Pid:\tx\n", b"Pid:"), None);
    }
}
