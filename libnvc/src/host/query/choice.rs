//! Chooses between executing a library's query program and forking the calling process.
//!
//! A separate program is better, because it sees nothing of the caller's memory. But exec limits a process to its
//! bounding set, and callers that narrow theirs before they initialise the library, as upstream's command line does,
//! leave the program without the capabilities to change its root and user. The program is also missing if only the
//! library was copied to the machine. A fork has neither problem, but only works in a process with one thread.
//!
//! A container in the host's pid namespace can trace the program from exec until it has made itself undumpable, about a
//! millisecond later, if it has all of the program's capabilities. If the bounding set leaves no other capabilities, a
//! fork is better too.

use std::path::{Path, PathBuf};

use super::{CREATION, LIBRARY};
use crate::error::{Error, ErrorKind, Result};
use crate::host::Identity;
use crate::sys::capabilities::{Capabilities, SYS_ADMIN, SYS_MODULE, Set, is_ambient, only};
use crate::sys::nvml::is_loaded;
use crate::sys::process::is_alone;

/// The root and identity that a query process must be able to change to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessContext<'a> {
    /// Its root.
    pub(crate) root: &'a Path,
    /// Its user and group.
    pub(crate) user: Identity,
}

/// How to start a query process.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Start<'a> {
    Execute(&'a Path),
    Copy,
}

/// The capabilities that a query process may need.
const NAMES: [(u32, &str); 3] = [
    (SETGID, "CAP_SETGID"),
    (SETUID, "CAP_SETUID"),
    (SYS_CHROOT, "CAP_SYS_CHROOT"),
];
const SETGID: u32 = 6;
const SETUID: u32 = 7;
const SYS_CHROOT: u32 = 18;

/// Chooses for a library that has or has not found its program.
///
/// # Errors
/// The process has threads, and either the program was not found, or `process creation failed: the bounding set lacks
/// …`.
pub(super) fn choose<'a>(
    program: &'a Result<PathBuf>,
    wanted: &ProcessContext<'_>,
) -> Result<Start<'a>> {
    let lost = needed(wanted) & lost_by_execution();
    match program {
        Ok(path) if lost == 0 && (is_closed_at_once() || !is_alone() || is_loaded(LIBRARY)) => {
            Ok(Start::Execute(path))
        }
        _ if is_alone() => copy(is_loaded(LIBRARY)),
        Ok(_) => Err(narrowed(lost)),
        Err(error) => {
            let advice = "install nvc-query, or initialise the library before the process has more than one thread";
            Err(error.clone().hint(advice))
        }
    }
}

/// Chooses a fork, unless it would use an NVML that the caller has already loaded, from another root and with closed
/// descriptors.
fn copy(nvml_is_loaded: bool) -> Result<Start<'static>> {
    if !nvml_is_loaded {
        return Ok(Start::Copy);
    }
    let error = Error::new(ErrorKind::DriverUnavailable, CREATION);
    let error = error.with_cause(format!("this process has loaded {LIBRARY} itself"));
    Err(error.hint(
        "initialise the library before loading NVML; or install nvc-query, and initialise it before narrowing the \
         bounding set",
    ))
}

/// Returns the capabilities that a query process needs for this identity and root.
fn needed(wanted: &ProcessContext<'_>) -> Set {
    let ids = |ids: nix::Result<[u32; 3]>, id| ids.is_ok_and(|ids| ids == [id; 3]);
    let users = nix::unistd::getresuid()
        .map(|ids| [ids.real, ids.effective, ids.saved].map(nix::unistd::Uid::as_raw));
    let groups = nix::unistd::getresgid()
        .map(|ids| [ids.real, ids.effective, ids.saved].map(nix::unistd::Gid::as_raw));
    let mut needed = 0;
    for (capability, is_needed) in [
        (SYS_CHROOT, wanted.root != Path::new("/")),
        (SETUID, !ids(users, wanted.user.uid)),
        (SETGID, !ids(groups, wanted.user.gid)),
    ] {
        if is_needed {
            needed |= only(capability);
        }
    }
    needed
}

/// Returns the capabilities that this process is permitted, but that a program it executes would lack.
fn lost_by_execution() -> Set {
    let Ok(own) = Capabilities::read() else {
        return 0;
    };
    let root = nix::unistd::geteuid().is_root();
    let survives = |capability| {
        if root {
            own.pass_on(capability)
        } else {
            is_ambient(capability)
        }
    };
    let lost = NAMES
        .into_iter()
        .filter(|&(capability, _)| own.permitted & only(capability) != 0 && !survives(capability));
    lost.fold(0, |set, (capability, _)| set | only(capability))
}

/// Returns true if a program that this process executes has capabilities that a container's root lacks, from its first
/// instruction on. An unprivileged program is as traceable as this process.
fn is_closed_at_once() -> bool {
    let own = Capabilities::read().unwrap_or_default();
    let has = |capability| own.pass_on(capability);
    !nix::unistd::geteuid().is_root() || BEYOND_CONTAINERS.into_iter().any(has)
}

/// Capabilities that runtimes do not grant by default: CAP_SYS_ADMIN, five other CAP_SYS_*, and the shields.
const BEYOND_CONTAINERS: [u32; 8] = [SYS_ADMIN, SYS_MODULE, 17, 19, 22, 24, 35, 36];

fn narrowed(lost: Set) -> Error {
    let names: Vec<_> = NAMES
        .into_iter()
        .filter(|&(capability, _)| lost & only(capability) != 0)
        .map(|(_, name)| name)
        .collect();
    // The cause contains the way out, because C callers see nothing else.
    let cause = format!(
        "the bounding set lacks {}: initialise the library before narrowing it, or before starting threads",
        names.join(", ")
    );
    Error::new(ErrorKind::DriverUnavailable, CREATION).with_cause(cause)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn processes_with_threads_are_executed_or_refused() {
        let (uid, gid) = (
            nix::unistd::getuid().as_raw(),
            nix::unistd::getgid().as_raw(),
        );
        let wanted = |root: &'static str, uid| ProcessContext {
            root: Path::new(root),
            user: Identity { uid, gid },
        };
        // Test programs have threads.
        let found = Ok(PathBuf::from("/x/nvc-query"));
        let execute = Start::Execute(Path::new("/x/nvc-query"));
        assert_eq!(choose(&found, &wanted("/", uid)).unwrap(), execute);
        let missing = Err(Error::new(ErrorKind::DriverUnavailable, "it is in none"));
        let error = choose(&missing, &wanted("/", uid)).unwrap_err();
        assert_eq!(error.message(), "it is in none");
        assert!(error.advice().unwrap().contains("one thread"));
        assert_eq!(copy(false).unwrap(), Start::Copy);
        let message = copy(true).unwrap_err().message();
        assert!(message.ends_with("has loaded libnvidia-ml.so.1 itself"));

        assert_eq!(needed(&wanted("/", uid)), 0);
        assert_eq!(needed(&wanted("/driver", uid)), only(SYS_CHROOT));
        let both = only(SYS_CHROOT) | only(SETUID);
        assert_eq!(needed(&wanted("/driver", uid + 1)), both);
    }

    /// The bounding set is per thread, and each test runs on its own thread.
    #[test]
    fn a_narrow_bounding_set_has_a_name() {
        let permitted = Capabilities::read().unwrap().permitted;
        let all = NAMES.into_iter().fold(0, |set, (n, _)| set | only(n));
        if !nix::unistd::geteuid().is_root() || permitted & all != all {
            return;
        }
        assert_eq!(lost_by_execution(), 0);
        for (capability, _) in NAMES {
            crate::sys::capabilities::drop_bounding(capability).unwrap();
        }
        assert_eq!(lost_by_execution(), all);
        let found = Ok(PathBuf::from("/x/nvc-query"));
        let wanted = ProcessContext {
            root: Path::new("/driver"),
            user: Identity { uid: 0, gid: 65534 },
        };
        assert_eq!(
            choose(&found, &wanted).unwrap_err().message(),
            "process creation failed: the bounding set lacks CAP_SETGID, CAP_SYS_CHROOT: initialise the library before \
             narrowing it, or before starting threads"
        );
    }
}
