//! Clones the process that becomes ldconfig, and wraps the raw calls it makes before execve(2).
//!
//! The child is a copy of one thread of a process that may have many, so a lock held by another thread stays locked in
//! it. Between clone and exec the child therefore allocates nothing, logs nothing and cannot panic. All its input is in
//! a [`Sandbox`], prepared beforehand. System calls are made directly if the C library's function would do more than
//! the call (`set*id` there changes every thread, fork runs handlers).

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::unistd::Pid;

use crate::sys::seccomp::Instruction;

mod child;
mod volumes;

pub(crate) use child::{SandboxFailure, Step};

/// A file that the program alone sees, if the root has a directory /dev.
pub(crate) const CONFIGURATION: &CStr = c"/dev/ld.so.conf";

/// Input of the child. All descriptors are above 2, so that setting up the standard streams overwrites none.
#[derive(Debug)]
pub(crate) struct Sandbox<'a> {
    /// The container's root, opened in the calling thread's mount namespace.
    pub(crate) rootfs: BorrowedFd<'a>,
    /// The program; a sealed copy, or the image's own file.
    pub(crate) program: BorrowedFd<'a>,
    /// Its arguments, with its name first.
    pub(crate) arguments: &'a [CString],
    /// Standard input.
    pub(crate) input: BorrowedFd<'a>,
    /// Standard output and standard error.
    pub(crate) output: BorrowedFd<'a>,
    /// Write end of the pipe for a [`SandboxFailure`] before the exec.
    pub(crate) report: BorrowedFd<'a>,
    /// The calling thread's `/proc/PID/task/TID/stat`, by which the child notices that the caller has died.
    pub(crate) caller: BorrowedFd<'a>,
    /// Content of the file [`CONFIGURATION`], if the program gets one.
    pub(crate) configuration: Option<&'a [u8]>,
    /// Filter of the system calls it may make.
    pub(crate) filter: &'a [Instruction],
    /// Leave the old root by pivot_root(2) instead of only covering it.
    pub(crate) pivot: bool,
    /// Allow executing the image's files.
    pub(crate) image_programs: bool,
    /// User and group to change to, unless they are the caller's.
    pub(crate) owner: Option<(u32, u32)>,
    /// The container's user namespace, if it has one; the capability then applies only there.
    pub(crate) user_namespace: Option<BorrowedFd<'a>>,
    /// Keep submounts, which are the container's volumes, as writable as they are outside.
    pub(crate) writes_volumes: bool,
    /// A directory `/proc/PID/task/TID/fd` of the caller's /proc.
    pub(crate) descriptors: BorrowedFd<'a>,
}

/// A child process.
#[derive(Debug)]
pub(crate) struct SandboxedProcess {
    /// Its pid; valid until it has been waited for.
    pub(crate) pid: Pid,
    /// A pidfd, readable once the child has ended; None before Linux 5.2.
    pub(crate) fd: Option<OwnedFd>,
}

/// Starts the program in its sandbox; the child reports failures on `sandbox.report`.
pub(crate) fn spawn(sandbox: &Sandbox<'_>) -> Result<SandboxedProcess, Errno> {
    let mut arguments: Vec<*const libc::c_char> =
        sandbox.arguments.iter().map(|text| text.as_ptr()).collect();
    arguments.push(ptr::null());

    // Only the pid namespace must be entered by clone; the child unshares the others itself, from inside the root.
    let flags = libc::CLONE_NEWPID | libc::CLONE_PIDFD | libc::SIGCHLD;
    let mut pidfd: libc::c_int = -1;
    // Blocked in the child for good, because no handler of the caller may run there. ldconfig waits for no signal, and
    // signals for faults and limits cannot be blocked.
    let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let pid = fork(sandbox, &arguments, flags, &mut pidfd);
    mask.thread_set_mask()?;
    Ok(SandboxedProcess {
        pid: Pid::from_raw(pid?),
        // Kernels that do not know CLONE_PIDFD ignore it.
        fd: owned(pidfd),
    })
}

/// Starts the child as a fork of the calling thread.
fn fork(
    sandbox: &Sandbox<'_>,
    arguments: &[*const libc::c_char],
    flags: libc::c_int,
    pidfd: &mut libc::c_int,
) -> Result<libc::pid_t, Errno> {
    // SAFETY: clone without CLONE_VM and without a stack is fork: the child runs on its own copy of this stack. pidfd
    // outlives the call. child::run, which is all that the child runs, does only what is allowed after a fork.
    let pid = unsafe {
        libc::syscall(
            libc::SYS_clone,
            libc::c_long::from(flags),
            ptr::null::<libc::c_void>(),
            ptr::from_mut(pidfd),
            0,
            0,
        )
    };
    if pid == 0 {
        child::run(sandbox, arguments);
    }
    libc::pid_t::try_from(Errno::result(pid)?).map_err(|_| Errno::EOVERFLOW)
}

fn owned(fd: libc::c_int) -> Option<OwnedFd> {
    // SAFETY: the kernel just made this nonnegative number for this process, and it has no other owner.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets the supplementary groups of the calling thread alone.
pub(crate) fn set_groups(groups: &[libc::gid_t]) -> Result<(), Errno> {
    // SAFETY: setgroups reads as many ids as it is told the slice has.
    let done = unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
    Errno::result(done).map(drop)
}

fn set_group(id: libc::gid_t) -> Result<(), Errno> {
    // SAFETY: setresgid takes no pointers.
    let done = unsafe { libc::syscall(libc::SYS_setresgid, id, id, id) };
    Errno::result(done).map(drop)
}

fn set_user(id: libc::uid_t) -> Result<(), Errno> {
    // SAFETY: setresuid takes no pointers.
    let done = unsafe { libc::syscall(libc::SYS_setresuid, id, id, id) };
    Errno::result(done).map(drop)
}

/// Executes an open file with an empty environment; returns the reason if that fails.
///
/// # Safety
/// `arguments` points to NUL-terminated strings and ends with a null pointer.
unsafe fn execute(program: BorrowedFd<'_>, arguments: &[*const libc::c_char]) -> Errno {
    let environment = [ptr::null::<libc::c_char>()];
    // SAFETY: execveat reads the terminated path and two null-terminated lists; the caller vouches for the first.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            arguments.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    Errno::last()
}

/// Sets the umask; the crate's function can panic.
fn set_umask(mask: libc::mode_t) {
    // SAFETY: umask takes no pointers.
    unsafe { libc::umask(mask) };
}

/// Sets close-on-exec one by one, for kernels without close_range(2) or without its flag.
fn close_on_execution_one_by_one() {
    // Ignore limits above a million, fs.nr_open's default: looping over them would take too long.
    const MAX_DESCRIPTORS: u64 = 1 << 20;
    let limit = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE)
        .map_or(MAX_DESCRIPTORS, |(soft, _)| soft.min(MAX_DESCRIPTORS));
    for fd in 3..libc::c_int::try_from(limit).unwrap_or(libc::c_int::MAX) {
        // SAFETY: F_SETFD takes no pointers; it fails on a number that is not open.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

/// Name of the process until it executes.
const NAME: &CStr = c"nvc:[ldconfig]";
