//! Copies the calling process, where that is harmless: it has one thread, and the copy never returns to its caller.
//!
//! What an execution costs, a copy does without: the loader, the relocations, and the C library's 41 cpuid instructions,
//! each of which leaves a virtual machine (together 0.3 ms in one). The copy shares the layout of the caller's memory and
//! sees what was in it.

use std::ffi::{CString, c_char, c_int};
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use nix::errno::Errno;
use nix::sched::{sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, sigaction};
use nix::unistd::{ForkResult, Pid};

use super::process::{exit_now, is_alone};

/// Starts a copy of the process that runs a function and ends with what it returns. None where there are more threads,
/// or where it cannot be told.
///
/// The copy has three descriptors as its standard streams, this environment, and **all signals blocked**; what the
/// caller handles has its default action again. Other descriptors are open in the copy, with owners that it never gets
/// back to.
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
    // SAFETY: the process has one thread, so no lock is held by a thread that the copy does not have.
    let forked = match unsafe { nix::unistd::fork() } {
        Ok(ForkResult::Child) => copy(stdio, environment, run),
        Ok(ForkResult::Parent { child }) => {
            // At worst it begins later.
            let _ = move_elsewhere(child);
            Ok(Some(child))
        }
        Err(errno) => Err(errno),
    };
    mask.thread_set_mask()?;
    forked
}

/// Has a new process begin on another processor than this one, on which the caller goes on.
///
/// A kernel may let it wait here until the caller has nothing more to do (a virtual machine's that keeps its processors
/// together), and then the two take turns instead of working side by side.
fn move_elsewhere(process: Pid) -> Result<(), Errno> {
    let allowed = sched_getaffinity(process)?;
    let mut others = allowed;
    others.unset(sched_getcpu()?)?;
    // There may be no other, which is refused.
    sched_setaffinity(process, &others)?;
    // It has been moved; where it goes later is the kernel's business.
    sched_setaffinity(process, &allowed)
}

/// The copy. Nothing unwinds out of a function with this ABI: a panic ends the process.
#[allow(improper_ctypes_definitions)] // called from here only
extern "C" fn copy(stdio: [BorrowedFd<'_>; 3], environment: &[CString], run: fn() -> u8) -> ! {
    for (target, fd) in (0..).zip(stdio) {
        // SAFETY: takes no pointers. Whoever owned the stream is never got back to.
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
    // SAFETY: nothing is set; the action is written to a structure of ours.
    let known = unsafe { libc::sigaction(signal as c_int, ptr::null(), &raw mut action) } == 0;
    known && ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction)
}

/// Gives the process an environment of its own; what it was started with stays where it is.
fn set_environment(variables: &[CString]) {
    unsafe extern "C" {
        static mut environ: *mut *mut c_char; // environ(7)
    }
    // An empty list, and not none as of clearenv(3): foreign code may walk through it.
    let list: Vec<*mut c_char> = variables
        .iter()
        .map(|variable| variable.as_ptr().cast_mut())
        .chain([ptr::null_mut()])
        .collect();
    // SAFETY: strings that end with zero and a list that ends with null. All of them stay: the list is leaked, and the
    // strings' owner is never got back to. The process has one thread, and nobody holds what a look-up gave.
    unsafe { environ = list.leak().as_mut_ptr() };
}
