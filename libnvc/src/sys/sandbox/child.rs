//! Enters the sandbox step by step, and executes the program.
//!
//! The order matters: mounts need the capabilities that are dropped afterwards, a change of user clears the death
//! signal and the ambient capabilities, and the system-call filter comes last because it allows little more than the
//! exec.

use std::convert::Infallible;
use std::ffi::c_uint;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, fstat, mkdirat};
use nix::sys::statvfs::statvfs;
use nix::unistd::{
    chdir, chroot, dup2_stderr, dup2_stdin, dup2_stdout, fchdir, pivot_root, read, write,
};

use super::{NAME, Sandbox, volumes};
use crate::sys::capabilities::{
    Capabilities, DAC_OVERRIDE, SYS_ADMIN, Set, keep_bounding, only, raise_ambient, shield,
};
use crate::sys::descriptors::close_range;
use crate::sys::mount::{
    MountAttributes, attach, clone_mount, remount, set_attributes, set_attributes_to,
};
use crate::sys::process::exit_now;
use crate::sys::seccomp::install;

/// What the child was doing when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Step {
    Streams,
    Enter,
    Namespaces,
    Private,
    Copy,
    Attach,
    Pivot,
    Volumes,
    Mask,
    Limits,
    User,
    UserNamespace,
    Capabilities,
    DeathSignal,
    Filter,
    Execute,
}

/// The steps in their order, and what they do.
const STEPS: [(Step, &str); 16] = [
    (Step::Streams, "setting up its streams"),
    (Step::Enter, "entering the container's root"),
    (Step::Namespaces, "making its namespaces"),
    (Step::Private, "making its mounts private"),
    (Step::Copy, "copying the container's mounts"),
    (Step::Attach, "attaching the container's root"),
    (Step::Pivot, "changing the root"),
    (Step::Volumes, "making the container's volumes read-only"),
    (Step::Mask, "masking /proc, /sys and /dev"),
    (Step::Limits, "limiting its resources"),
    (Step::User, "becoming the container's owner"),
    (
        Step::UserNamespace,
        "entering the container's user namespace",
    ),
    (Step::Capabilities, "setting its capabilities"),
    (Step::DeathSignal, "setting its death signal"),
    (Step::Filter, "filtering its system calls"),
    (Step::Execute, "executing it"),
];

impl Step {
    /// Returns what the step does, for a message.
    pub(crate) fn words(self) -> &'static str {
        STEPS.get(self as usize).map_or("", |(_, words)| words)
    }
}

/// A step that failed, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SandboxFailure {
    pub(crate) step: Step,
    pub(crate) errno: Errno,
}

impl SandboxFailure {
    /// Bytes of a failure on the report pipe; below PIPE_BUF, so the write is atomic.
    pub(crate) const SIZE: usize = 5;

    fn to_bytes(self) -> [u8; Self::SIZE] {
        let [a, b, c, d] = (self.errno as i32).to_ne_bytes();
        [self.step as u8, a, b, c, d]
    }

    /// Parses a report; None unless it is whole and known.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let &[step, a, b, c, d] = bytes else {
            return None;
        };
        Some(Self {
            step: STEPS.get(usize::from(step))?.0,
            errno: Errno::from_raw(i32::from_ne_bytes([a, b, c, d])),
        })
    }
}

/// Adds the step to a failure.
trait At<T> {
    fn at(self, step: Step) -> Result<T, SandboxFailure>;
}

impl<T> At<T> for Result<T, Errno> {
    fn at(self, step: Step) -> Result<T, SandboxFailure> {
        self.map_err(|errno| SandboxFailure { step, errno })
    }
}

/// Executes the program, or reports why it could not; allocates nothing.
pub(super) fn run(sandbox: &Sandbox<'_>, arguments: &[*const libc::c_char]) -> ! {
    // A panic must not unwind into the copy of the caller's stack, which would undo the caller's work.
    let _end = EndWhenDropped;
    let Err(failure) = wall_in(sandbox, arguments);
    // If this fails, the parent only sees the exit status.
    let _ = write(sandbox.report, &failure.to_bytes());
    exit_now(1)
}

struct EndWhenDropped;

impl Drop for EndWhenDropped {
    fn drop(&mut self) {
        exit_now(1);
    }
}

fn wall_in(
    sandbox: &Sandbox<'_>,
    arguments: &[*const libc::c_char],
) -> Result<Infallible, SandboxFailure> {
    let _ = prctl::set_name(NAME);
    // Until it executes, this process holds a copy of the caller's memory, which containers with pid=host must not
    // trace.
    let _ = prctl::set_dumpable(false);
    dup2_stdin(sandbox.input).at(Step::Streams)?;
    dup2_stdout(sandbox.output).at(Step::Streams)?;
    dup2_stderr(sandbox.output).at(Step::Streams)?;

    // The working directory carries over into the new mount namespace; a descriptor would stay in the old one, where
    // this process cannot mount.
    fchdir(sandbox.rootfs).at(Step::Enter)?;
    let namespaces = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS;
    unshare(namespaces).at(Step::Namespaces)?;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount_at(None, c"/", None, private, None).at(Step::Private)?;
    enter_root(sandbox)?;
    mask(c"/proc", MsFlags::MS_RDONLY)?;
    mask(c"/sys", MsFlags::MS_RDONLY)?;
    name_program(sandbox)?;
    chdir(c"/").at(Step::Pivot)?;

    if !close_range(3, c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) {
        super::close_on_execution_one_by_one();
    }
    super::set_umask(0o022);
    become_owner(sandbox)?;
    limit_resources()?;
    // After the user: changing it clears the signal.
    prctl::set_pdeathsig(Signal::SIGKILL).at(Step::DeathSignal)?;
    end_if_alone(sandbox)?;
    install(sandbox.filter).at(Step::Filter)?;
    // SAFETY: spawn builds the list from CStrings that outlive it, and ends it with a null pointer.
    let errno = unsafe { super::execute(sandbox.program, arguments) };
    Err(errno).at(Step::Execute)
}

/// Ends this process if the calling thread died before the death signal was set.
///
/// getppid(2) does not help: in a new pid namespace it returns 0. Nor does a pipe whose other end the caller holds:
/// another thread of a killed caller can hold it for a while after the calling thread has sent its death signals.
fn end_if_alone(sandbox: &Sandbox<'_>) -> Result<(), SandboxFailure> {
    if is_alive(sandbox.caller).at(Step::DeathSignal)? {
        return Ok(());
    }
    exit_now(1)
}

/// Returns true if a thread, given by its `stat` file, has not yet sent death signals: its flags lack PF_EXITING, which
/// the kernel sets long before (proc_pid_stat(5), include/linux/sched.h).
fn is_alive(stat: BorrowedFd<'_>) -> Result<bool, Errno> {
    const PF_EXITING: u64 = 4;
    let mut text = [0; 256];
    let text = match read(stat, &mut text) {
        Ok(length) => text.get(..length).unwrap_or_default(),
        Err(Errno::ESRCH) => return Ok(false),
        Err(errno) => return Err(errno),
    };
    Ok(flags(text).ok_or(Errno::EBADMSG)? & PF_EXITING == 0)
}

/// Returns the kernel's flags in the text of a `stat`.
fn flags(stat: &[u8]) -> Option<u64> {
    // The name, in parentheses, may contain anything. After it: state, parent, group, session, terminal, its group,
    // flags.
    let after_name = stat.rsplit(|&byte| byte == b')').next()?;
    let word = after_name.split(|&byte| byte == b' ').nth(7)?;
    str::from_utf8(word).ok()?.parse().ok()
}

fn mount_at(
    source: Option<&std::ffi::CStr>,
    target: &std::ffi::CStr,
    kind: Option<&std::ffi::CStr>,
    flags: MsFlags,
    data: Option<&std::ffi::CStr>,
) -> Result<(), Errno> {
    mount(source, target, kind, flags, data)
}

/// Makes the working directory the root, detaches the old root, and restricts the new one.
fn enter_root(sandbox: &Sandbox<'_>) -> Result<(), SandboxFailure> {
    if sandbox.pivot {
        // The old root ends up stacked on the new one, where `.` finds it: pivot_root(2), NOTES.
        let pivot = || pivot_root(c".", c".");
        // Most containers' roots are mount points, which saves copying the tree again. pivot_root fails if the root is
        // not a mount point, if it is the first mount of its namespace, or if a user namespace has locked it to its
        // parent.
        if pivot().is_err() {
            cover_root(sandbox)?;
            pivot().at(Step::Pivot)?;
        }
        umount2(c".", MntFlags::MNT_DETACH).at(Step::Pivot)?;
    } else {
        cover_root(sandbox)?;
        // The old root stays below the new one, unreachable without a descriptor and without CAP_SYS_CHROOT.
        chroot(c".").at(Step::Pivot)?;
    }
    restrict_root(sandbox)
}

/// Covers the root directory with the working directory and all its submounts, and changes into it.
fn cover_root(sandbox: &Sandbox<'_>) -> Result<(), SandboxFailure> {
    let tree = match clone_mount(AT_FDCWD, libc::AT_RECURSIVE) {
        Ok(tree) => tree,
        // Before Linux 5.2, or under a runtime's filter that answers EPERM to unknown calls.
        Err(Errno::ENOSYS | Errno::EPERM) => return cover_root_by_name(sandbox),
        Err(errno) => return Err(errno).at(Step::Copy),
    };
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
    let root = openat(AT_FDCWD, c"/", flags, Mode::empty()).at(Step::Attach)?;
    match attach(tree.as_fd(), root.as_fd()) {
        // Under a sandbox that forbids only this call.
        Err(Errno::ENOSYS | Errno::EPERM) => return cover_root_by_name(sandbox),
        done => done.at(Step::Attach)?,
    }
    fchdir(&tree).at(Step::Attach)
}

/// Does the same by mount(2), which cannot name a position in a stack of mounts.
fn cover_root_by_name(sandbox: &Sandbox<'_>) -> Result<(), SandboxFailure> {
    let wanted = fstat(sandbox.rootfs).at(Step::Attach)?;
    let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount_at(Some(c"."), c"/", None, bind, None).at(Step::Attach)?;
    // `/` is still the directory under the new mount; `/..` resolves to the topmost mount.
    chdir(c"/..").at(Step::Attach)?;
    let here = nix::sys::stat::stat(c".").at(Step::Attach)?;
    if (here.st_dev, here.st_ino) != (wanted.st_dev, wanted.st_ino) {
        return Err(Errno::EXDEV).at(Step::Attach);
    }
    Ok(())
}

/// Restricts the root, which is the working directory, and all its submounts.
///
/// Device nodes and set-id bits of the image have no effect in the sandbox, and its programs cannot run unless one is
/// to be executed. Submounts belong to the host, and the program must not change them.
fn restrict_root(sandbox: &Sandbox<'_>) -> Result<(), SandboxFailure> {
    let (none, read_only) = (MountAttributes::empty(), MountAttributes::RDONLY);
    let has = MountAttributes::from(statvfs(c".").at(Step::Volumes)?.flags());
    let mut attributes = MountAttributes::NODEV | MountAttributes::NOSUID;
    if !sandbox.image_programs {
        attributes |= MountAttributes::NOEXEC;
    }
    let of_volumes = if sandbox.writes_volumes {
        none
    } else {
        read_only
    };
    let of_all = attributes | of_volumes;
    match set_attributes_to(libc::AT_RECURSIVE, AT_FDCWD, of_all, none, None) {
        // Before Linux 5.12.
        Err(Errno::ENOSYS | Errno::EPERM) => {
            // It would fail without the locked ones.
            remount(c".", has | attributes).at(Step::Attach)?;
            if sandbox.writes_volumes {
                return Ok(());
            }
            return volumes::make_read_only(sandbox.descriptors).at(Step::Volumes);
        }
        done => done.at(Step::Copy)?,
    }
    // The root itself stays as it was.
    let cleared = of_volumes.difference(has);
    if !cleared.is_empty() {
        set_attributes(AT_FDCWD, none, cleared, None).at(Step::Volumes)?;
    }
    Ok(())
}

/// Mounts an empty read-only directory over a directory of the root, to hide kernel interfaces from the program.
///
/// Leaves the working directory there, because mount(2) takes names and `.` is the descriptor's name there. Returns a
/// reference to the covered directory, or None if there is none.
fn mask(name: &std::ffi::CStr, read_only: MsFlags) -> Result<Option<OwnedFd>, SandboxFailure> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let directory = match openat(AT_FDCWD, name, flags, Mode::empty()) {
        Ok(directory) => directory,
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => return Ok(None),
        Err(errno) => return Err(errno).at(Step::Mask),
    };
    fchdir(&directory).at(Step::Mask)?;
    // Writable for its owner: the caller may lack CAP_DAC_OVERRIDE, and the mount becomes read-only.
    let data = Some(c"mode=755");
    let flags = MASK | read_only;
    mount_at(Some(c"tmpfs"), c".", Some(c"tmpfs"), flags, data).at(Step::Mask)?;
    Ok(Some(directory))
}

const MASK: MsFlags = MsFlags::MS_NOSUID
    .union(MsFlags::MS_NODEV)
    .union(MsFlags::MS_NOEXEC);

/// Masks /dev, except for the program's configuration, if it has one there, and for the name that the kernel uses for a program executed by descriptor: /dev/fd/N.
///
/// TOMOYO, a security module enabled in Debian's kernels, looks that name up, and without it execveat(2) fails. The
/// program needs no devices. If the image has no /dev, nothing can be done about it.
fn name_program(sandbox: &Sandbox<'_>) -> Result<(), SandboxFailure> {
    let Some(below) = mask(c"/dev", MsFlags::empty())? else {
        return Ok(());
    };
    chdir(c"/dev").at(Step::Mask)?;
    let here = nix::sys::stat::stat(c".").at(Step::Mask)?;
    // A process in another mount namespace can rename a directory that is a mount point here.
    if here.st_dev == fstat(&below).at(Step::Mask)?.st_dev {
        return Err(Errno::EXDEV).at(Step::Mask);
    }
    let cwd = AT_FDCWD;
    mkdirat(cwd, c"fd", Mode::from_bits_truncate(0o755)).at(Step::Mask)?;
    chdir(c"fd").at(Step::Mask)?;
    let mut digits = [0; 12];
    let number = decimal(sandbox.program.as_raw_fd(), &mut digits);
    let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(cwd, number, flags, Mode::from_bits_truncate(0o444)).at(Step::Mask)?;
    chdir(c"..").at(Step::Mask)?;
    if let Some(text) = sandbox.configuration {
        let flags = flags | OFlag::O_WRONLY;
        let mode = Mode::from_bits_truncate(0o444);
        let file = openat(cwd, c"ld.so.conf", flags, mode).at(Step::Mask)?;
        // A file in memory takes all of it at once.
        write(file, text).at(Step::Mask)?;
    }
    remount(c".", MountAttributes::all()).at(Step::Mask)
}

/// Formats a number into a buffer without allocating: this process may share its parent's memory.
fn decimal(number: i32, digits: &mut [u8; 12]) -> &std::ffi::CStr {
    let mut rest = number.unsigned_abs();
    let mut start = digits.len() - 1;
    for (at, digit) in digits.iter_mut().enumerate().rev().skip(1) {
        *digit = b'0' + u8::try_from(rest % 10).unwrap_or_default();
        start = at;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    let text = digits.get(start..).unwrap_or_default();
    std::ffi::CStr::from_bytes_until_nul(text).unwrap_or_default()
}

/// Drops all capabilities but those that the program keeps, and becomes the container's owner, in its user namespace if
/// it has one.
///
/// The program keeps CAP_DAC_OVERRIDE, because images have directories that their owner cannot write, and a shield:
/// exec makes it dumpable, and the shield is the only capability that a container's root lacks.
fn become_owner(sandbox: &Sandbox<'_>) -> Result<(), SandboxFailure> {
    let shield = shield();
    let shields = shield.map_or(0, only);
    let kept = only(DAC_OVERRIDE) | shields;
    // Without CAP_SETPCAP no_new_privs alone prevents an exec from gaining the rest of the set.
    keep_bounding(kept);
    if let Some((user, group)) = sandbox.owner {
        // Not SECBIT_NO_SETUID_FIXUP, which needs CAP_SETPCAP and would outlive the execution.
        prctl::set_keepcaps(true).at(Step::User)?;
        match super::set_groups(&[group]) {
            // /proc/self/setgroups of the user namespace says "deny": the groups cannot be dropped there.
            Ok(()) | Err(Errno::EPERM) => {}
            Err(errno) => return Err(errno).at(Step::User),
        }
        super::set_group(group).at(Step::User)?;
        super::set_user(user).at(Step::User)?;
        // With fs.suid_dumpable=1 the change of user reset it. Until now this process has all its capabilities.
        prctl::set_dumpable(false).at(Step::User)?;
    }
    if let Some(namespace) = sandbox.user_namespace {
        let entering = Capabilities {
            effective: only(SYS_ADMIN),
            permitted: only(SYS_ADMIN),
            inheritable: 0,
        };
        entering.set().at(Step::UserNamespace)?;
        setns(namespace, CloneFlags::CLONE_NEWUSER).at(Step::UserNamespace)?;
        // setns grants full sets, and may make the process dumpable.
        keep_bounding(kept);
        prctl::set_dumpable(false).at(Step::UserNamespace)?;
    }
    let is_ambient = sandbox.owner.is_some() || sandbox.user_namespace.is_some();
    // Without a shield the program is a file that its user cannot read. Executing such a file makes the process
    // undumpable, unless it has the capability to read it.
    let effective = shield.is_some();
    let overrides = match keep(kept, effective) {
        // If the caller lacks the capability, ldconfig writes only files that its user may write.
        Err(Errno::EPERM) => keep(shields, effective).map(|()| false),
        done => done.map(|()| true),
    };
    // Ambient, because exec by a non-root user drops all others.
    if overrides.at(Step::Capabilities)? && is_ambient {
        raise_ambient(DAC_OVERRIDE).at(Step::Capabilities)?;
    }
    if let Some(capability) = shield.filter(|_| is_ambient) {
        raise_ambient(capability).at(Step::Capabilities)?;
    }
    Ok(())
}

/// Keeps a set across execve(2); the exec makes it effective if it is not.
fn keep(set: Set, effective: bool) -> Result<(), Errno> {
    let capabilities = Capabilities {
        effective: if effective { set } else { 0 },
        permitted: set,
        inheritable: set,
    };
    capabilities.set()
}

/// Limits the damage that a corrupt or hostile library can make ldconfig do.
fn limit_resources() -> Result<(), SandboxFailure> {
    for (resource, limit) in [
        (Resource::RLIMIT_CPU, 10),
        (Resource::RLIMIT_AS, 2 << 30),
        (Resource::RLIMIT_NOFILE, 64),
        // Upstream's 1 or 2 MiB is less than a large image's cache.
        (Resource::RLIMIT_FSIZE, 64 << 20),
        // 1 and not 0: a pipe in core_pattern ignores every limit but 1 (core(5)).
        (Resource::RLIMIT_CORE, 1),
    ] {
        match setrlimit(resource, limit, limit) {
            // The caller's limit is lower still, and CAP_SYS_RESOURCE has been dropped.
            Ok(()) | Err(Errno::EPERM) => {}
            Err(errno) => return Err(errno).at(Step::Limits),
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Seek;

    use super::*;

    #[test]
    fn numbers_are_written() {
        for (number, text) in [(0, c"0"), (7, c"7"), (10, c"10"), (i32::MAX, c"2147483647")] {
            assert_eq!(decimal(number, &mut [0; 12]), text);
        }
    }

    #[test]
    fn a_caller_that_is_gone_is_noticed() {
        let (opened, stat) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let stat = std::fs::File::open("/proc/thread-self/stat").unwrap();
            opened.send(stat.try_clone().unwrap()).unwrap();
            ended.recv().unwrap();
        });
        let stat = stat.recv().unwrap();
        assert_eq!(is_alive(stat.as_fd()), Ok(true));
        (&stat).rewind().unwrap();
        end.send(()).unwrap();
        thread.join().unwrap();
        assert_eq!(is_alive(stat.as_fd()), Ok(false));
    }

    #[test]
    fn flags_of_a_thread_are_found() {
        let stat = |flags: &str| format!("12 (a) b (c) X 4 4) S 1 12 12 0 -1 {flags} 101 0\n");
        assert_eq!(flags(stat("4194564").as_bytes()), Some(4_194_564));
        for broken in ["", "12 (a) S 1 12", &stat("x")] {
            assert_eq!(flags(broken.as_bytes()), None, "{broken:?}");
        }
    }

    #[test]
    fn failures_survive_the_pipe() {
        for (number, (step, _)) in STEPS.into_iter().enumerate() {
            assert_eq!(step as usize, number);
            let failure = SandboxFailure {
                step,
                errno: Errno::EPERM,
            };
            assert_eq!(
                SandboxFailure::from_bytes(&failure.to_bytes()),
                Some(failure)
            );
        }
        for bytes in [&b""[..], b"\0\0\0\0", b"\xff\0\0\0\0", b"\0\0\0\0\0\0"] {
            assert_eq!(SandboxFailure::from_bytes(bytes), None, "{bytes:?}");
        }
    }
}
