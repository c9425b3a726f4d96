//! Executes a program in a new process, without copying the caller's memory and from any thread.
//!
//! Works like posix_spawn(3): the new process borrows the caller's memory, and the calling thread is suspended until
//! the program runs. In between only dup2(2) and execve(2) are called.
//!
//! nix has no such function. The C library's, which the standard library's `Command` calls, first resets
//! the disposition of every signal, some 130 system calls. Here all signals stay blocked into the program instead, so
//! that no handler of the caller can run on the borrowed memory.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::unistd::Pid;

/// Stack of the new process until execve(2), in units of 16 bytes, the stack alignment of the ABIs.
const STACK: usize = 64 * 1024 / size_of::<u128>();

/// Input and result of the new process, in memory it shares with the caller.
struct Execution {
    path: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
    stdio: [RawFd; 3],
    /// Errno if the program could not be executed.
    errno: c_int,
}

/// Starts a program with three descriptors as its standard streams, and **all signals blocked**: it must unblock them.
///
/// Signals that the caller ignores stay ignored in the program. Other descriptors are inherited unless they are
/// close-on-exec.
///
/// # Errors
/// `EINVAL` for descriptors below 3, which would overwrite each other; the system's.
pub(crate) fn spawn(
    path: &CStr,
    arguments: &[&CStr],
    environment: &[CString],
    stdio: [BorrowedFd<'_>; 3],
) -> Result<Pid, Errno> {
    let stdio = stdio.map(|fd| fd.as_raw_fd());
    if stdio.iter().any(|fd| *fd < 3) {
        return Err(Errno::EINVAL);
    }
    let arguments: Vec<*const c_char> = arguments
        .iter()
        .map(|argument| argument.as_ptr())
        .chain([ptr::null()])
        .collect();
    let environment: Vec<*const c_char> = environment
        .iter()
        .map(|variable| variable.as_ptr())
        .chain([ptr::null()])
        .collect();
    let mut execution = Execution {
        path: path.as_ptr(),
        arguments: arguments.as_ptr(),
        environment: environment.as_ptr(),
        stdio,
        errno: 0,
    };
    let execution = &raw mut execution;
    let mut stack = vec![0u128; STACK];
    let top = stack.as_mut_ptr_range().end;

    let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    // SAFETY: `execute` does only what is allowed in a process that borrows another process's memory. Its stack is not
    // used by anything else, aligned, and large enough for two library calls. The stack, the execution and everything
    // it points to outlive the call, which returns when the process has executed the program or ended (CLONE_VFORK).
    // Signals are blocked, so nothing else runs in the process.
    let pid = unsafe {
        libc::clone(
            execute,
            top.cast(),
            libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
            execution.cast(),
        )
    };
    let cloned = Errno::result(pid);
    mask.thread_set_mask()?;
    let pid = Pid::from_raw(cloned?);
    // SAFETY: it is alive, and the process that shared it has ended or executed.
    let errno = unsafe { (*execution).errno };
    if errno != 0 {
        let _ = nix::sys::wait::waitpid(pid, None);
        return Err(Errno::from_raw(errno));
    }
    Ok(pid)
}

/// Runs in the new process: sets up the standard streams and executes the program.
extern "C" fn execute(execution: *mut c_void) -> c_int {
    let execution: *mut Execution = execution.cast();
    // SAFETY: `spawn` passes one that lives until this process is done with it; nothing else uses it meanwhile.
    let execution = unsafe { &mut *execution };
    for (target, fd) in (0..).zip(execution.stdio) {
        // SAFETY: takes no pointers; safe in a process that borrows memory. The descriptor table is a separate copy.
        if unsafe { libc::dup2(fd, target) } < 0 {
            execution.errno = Errno::last_raw();
            return 127;
        }
    }
    // SAFETY: a path and two null-terminated lists of strings, all of which `spawn` keeps alive. Returns only on
    // failure.
    unsafe { libc::execve(execution.path, execution.arguments, execution.environment) };
    execution.errno = Errno::last_raw();
    127
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsFd;

    use nix::sys::signal::Signal;
    use nix::sys::wait::{WaitStatus, waitpid};

    use super::*;

    fn run(path: &CStr, arguments: &[&CStr], environment: &[CString]) -> Result<String, Errno> {
        let null = File::open("/dev/null").unwrap();
        let (mut output, input) = std::io::pipe().unwrap();
        let streams = [null.as_fd(), input.as_fd(), null.as_fd()];
        let pid = spawn(path, arguments, environment, streams)?;
        drop(input);
        let mut text = String::new();
        output.read_to_string(&mut text).unwrap();
        assert_eq!(waitpid(pid, None), Ok(WaitStatus::Exited(pid, 0)));
        Ok(text)
    }

    #[test]
    fn programs_get_their_arguments_and_environment() {
        let variables = [CString::new("NVML_X=1").unwrap()];
        let script = c"echo $0 $# $NVML_X ${HOME-none}";
        let arguments = [c"name", c"-c", script, c"zero", c"one"];
        let text = run(c"/bin/sh", &arguments, &variables);
        assert_eq!(text.unwrap(), "zero 1 1 none\n");
    }

    #[test]
    fn a_program_that_cannot_be_executed_is_an_error() {
        assert_eq!(run(c"/nonexistent", &[c"x"], &[]), Err(Errno::ENOENT));
        assert_eq!(run(c"/etc/passwd", &[c"x"], &[]), Err(Errno::EACCES));
    }

    #[test]
    fn the_callers_signals_are_as_before() {
        let before = SigSet::thread_get_mask().unwrap();
        run(c"/bin/true", &[c"true"], &[]).unwrap();
        assert_eq!(SigSet::thread_get_mask().unwrap(), before);
        assert!(!before.contains(Signal::SIGTERM));
    }
}
