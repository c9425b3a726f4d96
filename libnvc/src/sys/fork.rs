//! Forks the calling process when that is safe: it has one thread, and the child never returns to its caller.
//!
//! A fork avoids the cost of exec: the loader, the relocations, and the C library's 41 cpuid instructions, each of
//! which exits to the hypervisor in a virtual machine (together 0.3 ms). The child shares the layout of the caller's
//! memory and sees its contents.

use std::ffi::{CString, c_char, c_int};
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use nix::errno::Errno;
use nix::sched::{sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, sigaction};
use nix::unistd::{ForkResult, Pid};

use super::process::{exit_now, is_alone};

/// Forks a child that runs a function and exits with its result. Returns None if the process has more than one thread,
/// or if that is unknown.
///
/// The child gets three descriptors as its standard streams, this environment, and **all signals blocked**; signals the
/// caller handles have their default action again. Other descriptors stay open in the child; their owners are never
/// dropped there.
///
/// # Errors
/// `EINVAL` for descriptors below 3, which would overwrite each other; the system's.
pub(crate) fn copy_of_this_process(
    stdio: [BorrowedFd<'_>; 3],
    environment: &[CString],
    run: fn() -> u8,
) -> Result<Option<Pid>, Errno> {
    if stdio.iter().any(|fd| fd.as_raw_fd() < 3) {
        return Err(Errno::EINVAL);
    }
    if !is_alone() {
        return Ok(None);
    }
    let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    // SAFETY: the process has one thread, so no other thread can hold a lock that would stay locked in the child.
    let forked = match unsafe { nix::unistd::fork() } {
        Ok(ForkResult::Child) => copy(stdio, environment, run),
        Ok(ForkResult::Parent { child }) => {
            // If this fails, the child merely starts later.
            let _ = move_elsewhere(child);
            Ok(Some(child))
        }
        Err(errno) => Err(errno),
    };
    mask.thread_set_mask()?;
    forked
}

/// Moves a new process to another CPU than the caller's.
///
/// A kernel may leave the child queued on this CPU until the caller sleeps (a virtual machine's that packs tasks), and
/// then the two take turns instead of running in parallel.
fn move_elsewhere(process: Pid) -> Result<(), Errno> {
    let allowed = sched_getaffinity(process)?;
    let mut others = allowed;
    others.unset(sched_getcpu()?)?;
    // Fails if there is no other CPU.
    sched_setaffinity(process, &others)?;
    // The process has moved; the scheduler may place it freely from now on.
    sched_setaffinity(process, &allowed)
}

/// Runs in the child. Nothing unwinds out of a function with this ABI: a panic aborts the process.
#[allow(improper_ctypes_definitions)] // called from here only
extern "C" fn copy(stdio: [BorrowedFd<'_>; 3], environment: &[CString], run: fn() -> u8) -> ! {
    for (target, fd) in (0..).zip(stdio) {
        // SAFETY: takes no pointers. The owner of the replaced stream never runs again in the child.
        if unsafe { libc::dup2(fd.as_raw_fd(), target) } < 0 {
            exit_now(127);
        }
    }
    forget_handlers();
    set_environment(environment);
    exit_now(run())
}

fn forget_handlers() {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    for signal in Signal::iterator().filter(|signal| is_handled(*signal)) {
        // SAFETY: no handler is installed.
        let _ = unsafe { sigaction(signal, &default) };
    }
}

fn is_handled(signal: Signal) -> bool {
    // SAFETY: a structure of integers and a pointer that may be null.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: sets nothing; the current action is written to our structure.
    let known = unsafe { libc::sigaction(signal as c_int, ptr::null(), &raw mut action) } == 0;
    known && ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction)
}

/// Replaces the process's environment; the original strings stay where they are.
fn set_environment(variables: &[CString]) {
    unsafe extern "C" {
        static mut environ: *mut *mut c_char; // environ(7)
    }
    // An empty list rather than the null pointer of clearenv(3), because foreign code may iterate over it.
    let list: Vec<*mut c_char> = variables
        .iter()
        .map(|variable| variable.as_ptr().cast_mut())
        .chain([ptr::null_mut()])
        .collect();
    // SAFETY: NUL-terminated strings and a null-terminated list. All of them stay valid: the list is leaked, and the
    // strings' owner is never dropped. The process has one thread, and no reference into the old environment is held.
    unsafe { environ = list.leak().as_mut_ptr() };
}
