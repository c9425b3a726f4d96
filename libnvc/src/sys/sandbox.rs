//! Clones the process that becomes ldconfig, and wraps the raw calls it makes on its way there.
//!
//! The child is a copy of one thread of a process that may have many, so whatever lock another thread held stays locked
//! in it for ever: from the clone to the execution it allocates nothing, logs nothing and cannot panic. All it
//! needs is in a [`Sandbox`], prepared beforehand. The system calls are made directly where the C library's function
//! would do more than the call (`set*id` there changes every thread, fork runs handlers). Where the caller wants it, the
//! child uses the caller's memory instead of a copy, as vfork(2) does; it changes nothing in it.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::unistd::Pid;
use seccompiler::BpfProgramRef;

mod child;
mod volumes;

pub(crate) use child::{Failure, Step};

/// What the child needs. All descriptors are above 2, so that none is lost when the standard streams are set up.
#[derive(Debug)]
pub(crate) struct Sandbox<'a> {
    /// The container's root, opened in the mount namespace of the calling thread.
    pub(crate) rootfs: BorrowedFd<'a>,
    /// The program; a sealed copy, or the image's own file.
    pub(crate) program: BorrowedFd<'a>,
    /// Its arguments, its name first.
    pub(crate) arguments: &'a [CString],
    /// Becomes its standard input.
    pub(crate) input: BorrowedFd<'a>,
    /// Becomes its standard output and error output.
    pub(crate) output: BorrowedFd<'a>,
    /// Where a [`Failure`] before the execution is told.
    pub(crate) report: BorrowedFd<'a>,
    /// Where the caller reads it: open in the caller alone, so that the child knows when the caller is gone.
    pub(crate) report_reader: BorrowedFd<'a>,
    /// The system calls it may make.
    pub(crate) filter: BpfProgramRef<'a>,
    /// Whether the old root is left by pivot_root(2) instead of only being covered.
    pub(crate) pivot: bool,
    /// Whether files of the image can be executed.
    pub(crate) image_programs: bool,
    /// User and group to become, unless they are the caller's.
    pub(crate) owner: Option<(u32, u32)>,
    /// The container's user namespace, if it has one: then the capability counts there alone.
    pub(crate) user_namespace: Option<BorrowedFd<'a>>,
    /// Whether mounts other than the root's own, the volumes of a container, can be written as far as they can outside.
    pub(crate) writes_volumes: bool,
    /// A directory `/proc/PID/task/TID/fd` of the caller's /proc.
    pub(crate) descriptors: BorrowedFd<'a>,
    /// Whether the child may use the caller's memory until it executes, if it does not become somebody else meanwhile and
    /// the caller may stop being dumpable.
    pub(crate) shares_memory: bool,
}

/// A child of this process.
#[derive(Debug)]
pub(crate) struct Process {
    /// Its id here; valid until it has been waited for.
    pub(crate) pid: Pid,
    /// Readable once it has ended; kernels before 5.2 have none.
    pub(crate) fd: Option<OwnedFd>,
}

/// Starts the program in its sandbox; all that can go wrong in the child is told on `sandbox.report`.
pub(crate) fn spawn(sandbox: &Sandbox<'_>) -> Result<Process, Errno> {
    let mut arguments: Vec<*const libc::c_char> =
        sandbox.arguments.iter().map(|text| text.as_ptr()).collect();
    arguments.push(ptr::null());

    // Only the pid namespace must be entered by cloning; the others the child makes itself, from inside the root.
    let flags = libc::CLONE_NEWPID | libc::CLONE_PIDFD | libc::SIGCHLD;
    let mut pidfd: libc::c_int = -1;
    // Blocked in the child for good, since a handler of the caller's must not run there; ldconfig waits for no signal, and
    // those that end a program for its faults or its limits cannot be blocked.
    let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let pid = if sandbox.may_share_memory() {
        share(sandbox, &arguments, flags, &mut pidfd)
    } else {
        copy(sandbox, &arguments, flags, &mut pidfd)
    };
    mask.thread_set_mask()?;
    Ok(Process {
        pid: Pid::from_raw(pid?),
        // A kernel that does not know CLONE_PIDFD ignores it.
        fd: owned(pidfd),
    })
}

impl Sandbox<'_> {
    /// A child with fewer capabilities than the caller's, but its memory, must not be anyone else's to trace. That it is
    /// not dumpable sees to that, until it becomes another user, where the system can say otherwise (fs.suid_dumpable).
    /// And a program of the image may lie on a file system that never answers: the caller would wait with the child.
    fn may_share_memory(&self) -> bool {
        self.shares_memory
            && self.owner.is_none()
            && self.user_namespace.is_none()
            && !self.image_programs
    }
}

/// Starts the child as a copy of the calling thread.
fn copy(
    sandbox: &Sandbox<'_>,
    arguments: &[*const libc::c_char],
    flags: libc::c_int,
    pidfd: &mut libc::c_int,
) -> Result<libc::pid_t, Errno> {
    // SAFETY: clone without CLONE_VM and without a stack is fork: the child runs on its own copy of this stack. pidfd
    // outlives the call. child::run, all that the child does, keeps to what is allowed after a fork.
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

/// Bytes of the stack that the child is given: it calls nothing deep, and the C library's functions hardly more than the
/// kernel's.
const STACK: usize = 128 << 10;

/// Starts the child in the caller's memory. The calling thread goes on when the child has executed or ended.
fn share(
    sandbox: &Sandbox<'_>,
    arguments: &[*const libc::c_char],
    flags: libc::c_int,
    pidfd: &mut libc::c_int,
) -> Result<libc::pid_t, Errno> {
    extern "C" fn child(argument: *mut libc::c_void) -> libc::c_int {
        let argument = argument.cast_const();
        // SAFETY: share, which waits, passes these two.
        let (sandbox, arguments) = unsafe { *argument.cast::<Argument<'_>>() };
        child::run(sandbox, arguments)
    }
    type Argument<'a> = (&'a Sandbox<'a>, &'a [*const libc::c_char]);

    let mut argument: Argument<'_> = (sandbox, arguments);
    // Of 16 bytes each, since the top of a stack is a multiple of that.
    let mut stack = vec![0u128; STACK / size_of::<u128>()];
    let top = stack.as_mut_ptr_range().end;
    // SAFETY: `top` is the end of memory that nothing else uses. It, the argument and what that refers to outlive the
    // child's use of them, since CLONE_VFORK makes this thread wait. child::run, all that the child does, ends it.
    let pid = unsafe {
        libc::clone(
            child,
            top.cast(),
            flags | libc::CLONE_VM | libc::CLONE_VFORK,
            ptr::from_mut(&mut argument).cast(),
            ptr::from_mut(pidfd),
        )
    };
    Errno::result(pid)
}

fn owned(fd: libc::c_int) -> Option<OwnedFd> {
    // SAFETY: a number that is not negative was just made by the kernel for this process; nobody else knows it.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Detached copy of the mounts at and below the working directory.
fn clone_tree_here() -> Result<OwnedFd, Errno> {
    let recursive = libc::AT_RECURSIVE.cast_unsigned();
    // SAFETY: open_tree reads a terminated path, which a C literal is.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_open_tree,
            libc::AT_FDCWD,
            c".".as_ptr(),
            libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | recursive,
        )
    };
    let fd = libc::c_int::try_from(Errno::result(fd)?).map_err(|_| Errno::EOVERFLOW)?;
    owned(fd).ok_or(Errno::EBADF)
}

/// Restricts the mount that the working directory is the root of, and all below it.
fn restrict_tree_here(attributes: u64) -> Result<(), Errno> {
    let change = libc::mount_attr {
        attr_set: attributes,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: mount_setattr reads a terminated path and a structure of the size it is told; both outlive the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            c".".as_ptr(),
            libc::AT_RECURSIVE,
            ptr::from_ref(&change),
            size_of_val(&change),
        )
    };
    Errno::result(done).map(drop)
}

/// Lets the mount that the working directory is the root of be written, that one alone.
fn make_writable_here() -> Result<(), Errno> {
    let change = libc::mount_attr {
        attr_set: 0,
        attr_clr: libc::MOUNT_ATTR_RDONLY,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: mount_setattr reads a terminated path and a structure of the size it is told; both outlive the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            c".".as_ptr(),
            0,
            ptr::from_ref(&change),
            size_of_val(&change),
        )
    };
    Errno::result(done).map(drop)
}

/// Attaches a detached tree on top of the root directory.
fn attach_to_root(tree: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: move_mount reads two terminated paths, which C literals are.
    let done = unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            c"/".as_ptr(),
            libc::MOVE_MOUNT_F_EMPTY_PATH,
        )
    };
    Errno::result(done).map(drop)
}

/// Lets no descriptor but the standard streams survive the execution.
fn close_on_execution() -> Result<(), Errno> {
    // SAFETY: close_range takes no pointers, and with this flag closes nothing that somebody here still owns.
    let done = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            3,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    Errno::result(done).map(drop)
}

/// Closes the child's copy of a descriptor.
fn close_copy(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: close takes no pointers. The owner is in the parent, whose descriptor this is not: the child has a table
    // of its own, and leaves it by executing or ending, without dropping anything.
    Errno::result(unsafe { libc::close(fd.as_raw_fd()) }).map(drop)
}

/// Takes every supplementary group but one, from the calling thread alone.
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

/// Becomes a process of a user namespace below the caller's, with all capabilities there and none outside.
fn enter_user_namespace(namespace: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: setns takes no pointers.
    let done = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWUSER) };
    Errno::result(done).map(drop)
}

/// Executes an open file with an empty environment; comes back with the reason if that fails.
///
/// # Safety
/// `arguments` points to terminated texts and ends with a null pointer.
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

/// Sets the permissions that new files do not get; not the crate's function, which can panic.
fn set_umask(mask: libc::mode_t) {
    // SAFETY: umask takes no pointers.
    unsafe { libc::umask(mask) };
}

/// Ends the process without running anything that was meant for the parent's end.
fn end(status: libc::c_int) -> ! {
    // SAFETY: _exit takes no pointers and does not come back.
    unsafe { libc::_exit(status) }
}

/// Closing mark on kernels that have no close_range(2), or one without the flag.
fn close_on_execution_one_by_one() {
    // Above a million, fs.nr_open's default, a limit is a wish and not a number of descriptors.
    const MOST: u64 = 1 << 20;
    let limit = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE)
        .map_or(MOST, |(soft, _)| soft.min(MOST));
    for fd in 3..libc::c_int::try_from(limit).unwrap_or(libc::c_int::MAX) {
        // SAFETY: F_SETFD takes no pointers; on a number that is not open it fails, and that is all.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

/// Name of the process until it executes.
const NAME: &CStr = c"nvc:[ldconfig]";
