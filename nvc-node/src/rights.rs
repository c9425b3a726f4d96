//! Gives up what a side of the program does not need, before it starts a thread or reads what others sent.
//!
//! The container is privileged, since the device cgroup of any other hides the GPUs, and NVIDIA's chart has one container:
//! so the division is made here. A container that was given less cannot make namespaces; it is told once, and served.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use libnvc::{Error, ErrorKind, Result};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{chdir, chroot, pivot_root};
use nvc_program::privileges::{self, Capability};

/// What the machine side keeps. A query changes its root and its user, and ends by a signal of another user. Nodes are
/// made, and belong to whom the driver says. The last one grants nothing: other containers lack it, so that their root
/// cannot trace a query (libnvc, `sys::capabilities`).
const MACHINE: [Capability; 7] = [
    Capability::CAP_SYS_CHROOT,
    Capability::CAP_SETUID,
    Capability::CAP_SETGID,
    Capability::CAP_KILL,
    Capability::CAP_MKNOD,
    Capability::CAP_CHOWN,
    Capability::CAP_WAKE_ALARM,
];

/// A directory of every container, which the tree of the cluster side replaces.
const PLACE: &str = "/dev";

/// Confines the machine side: no network, none of the hidden directories. It ends with the thread that started it.
///
/// # Errors
/// The system's.
pub(crate) fn machine_side(hidden: &[PathBuf]) -> Result<()> {
    let confine = || -> Result<(), Errno> {
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        if divided(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWIPC)? {
            for path in hidden.iter().filter(|path| path.is_dir()) {
                empty(path)?;
            }
        }
        Ok(())
    };
    confine().map_err(|errno| failed(&errno))?;
    keep(&MACHINE)
}

/// Confines the cluster side: it sees nothing but some directories and files, read-only, has no capability, and may make
/// no call of the system that those need who have some.
///
/// # Errors
/// The system's.
pub(crate) fn cluster_side(shown: &[PathBuf]) -> Result<()> {
    if divided(CloneFlags::CLONE_NEWIPC).map_err(|errno| failed(&errno))? {
        show_only(shown).map_err(|error| failed(&error))?;
    } else {
        log::warn!(
            "this container may make no namespaces: both parts of the driver see all that it has"
        );
    }
    keep(&[])?;
    if let Err(errno) = libnvc::speak_only() {
        log::warn!("the side that speaks with the cluster may make all system calls: {errno}");
    }
    Ok(())
}

/// Moves to a mount namespace, and others, of its own. Mounts of the host still arrive, such as a driver's. Returns false
/// if this container may not.
fn divided(others: CloneFlags) -> Result<bool, Errno> {
    let made = unshare(CloneFlags::CLONE_NEWNS | others)
        .and_then(|()| set(Path::new("/"), MsFlags::MS_REC | MsFlags::MS_SLAVE));
    match made {
        Ok(()) => Ok(true),
        Err(Errno::EPERM | Errno::EACCES) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Makes a tree of some directories and files the root. Nothing in it can be written, executed, or opened as a device.
fn show_only(shown: &[PathBuf]) -> io::Result<()> {
    let new = Path::new(PLACE);
    empty(new)?;
    let read_only = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY | harmless();
    for path in shown.iter().filter(|path| path.exists()) {
        let target = new.join(path.strip_prefix("/").unwrap_or(path));
        if path.is_dir() {
            fs::create_dir_all(&target)?;
        } else if !target.exists() {
            fs::create_dir_all(target.parent().unwrap_or(new))?;
            File::create(&target)?;
        }
        moved(path, &target, MsFlags::MS_BIND)?;
        set(&target, read_only)?;
    }
    set(new, read_only)?;
    chdir(new)?;
    if pivot_root(".", ".").is_ok() {
        // The old root lies on the new one.
        umount2(".", MntFlags::MNT_DETACH)?;
    } else {
        // The root is no mount point, or that of the boot. It stays, out of reach without SYS_CHROOT.
        moved(Path::new("."), Path::new("/"), MsFlags::MS_MOVE)?;
        chroot(".")?;
    }
    chdir("/")?;
    Ok(())
}

/// Covers a directory with an empty one.
fn empty(path: &Path) -> Result<(), Errno> {
    mount(
        Some("tmpfs"),
        path,
        Some("tmpfs"),
        harmless(),
        Some("mode=755,size=64k"),
    )
}

fn harmless() -> MsFlags {
    MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC
}

fn moved(from: &Path, to: &Path, flags: MsFlags) -> Result<(), Errno> {
    mount(Some(from), to, None::<&str>, flags, None::<&str>)
}

fn set(path: &Path, flags: MsFlags) -> Result<(), Errno> {
    mount(None::<&str>, path, None::<&str>, flags, None::<&str>)
}

/// Keeps some capabilities, for good, and hides this process from others that have as few.
fn keep(kept: &[Capability]) -> Result<()> {
    for capability in caps::runtime::thread_all_supported() {
        if !kept.contains(&capability) {
            // Without SETPCAP they stay; no_new_privs does as much.
            let _ = caps::drop(None, caps::CapSet::Bounding, capability);
        }
    }
    let hidden = prctl::set_no_new_privs().and_then(|()| prctl::set_dumpable(false));
    hidden.map_err(|errno| failed(&errno))?;
    privileges::keep_only(kept).map_err(|error| failed(&error))
}

fn failed(cause: &dyn std::fmt::Display) -> Error {
    let text = "rights cannot be given up";
    Error::new(ErrorKind::System, text).with_cause(cause.to_string())
}
