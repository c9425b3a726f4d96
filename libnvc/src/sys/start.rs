//! Is the `main` of programs whose start is waited for, in place of the standard library's.
//!
//! The standard library's `main` reads /proc/self/maps, makes a signal stack and installs handlers, to have words for
//! a stack overflow: a tenth of a millisecond, which counts twice where a program executes itself for its NVML query.
//! Without it an overflow is a plain SIGSEGV at the guard page. What else that `main` does is done here.

use std::ffi::c_int;

use nix::errno::Errno;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// Makes a function the program's `main`. It returns the exit status, and flushes what it prints.
///
/// For crates with `#![cfg_attr(all(target_os = "linux", target_env = "gnu", not(test)), no_main)]`. Arguments are those of [`std::env::args_os`], which glibc lets
/// the standard library find; elsewhere the standard library's `main` stays.
#[macro_export]
macro_rules! main {
    ($run:path) => {
        #[cfg(all(target_os = "linux", target_env = "gnu", not(test)))]
        #[unsafe(no_mangle)]
        extern "C" fn main() -> ::std::ffi::c_int {
            $crate::start($run)
        }

        #[cfg(not(all(target_os = "linux", target_env = "gnu", not(test))))]
        fn main() -> ::std::process::ExitCode {
            ::std::process::ExitCode::from($run())
        }
    };
}

/// Runs a program, see [`main!`](crate::main). A panic that reaches this ends the program with SIGABRT.
#[doc(hidden)]
pub fn start(run: fn() -> u8) -> c_int {
    open_streams();
    // So that writing to a pipe that nobody reads is an error and not the end.
    let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
    // SAFETY: no handler is installed. Fails for signals that do not exist only.
    let _ = unsafe { sigaction(Signal::SIGPIPE, &ignore) };
    c_int::from(run())
}

/// Opens /dev/null where a standard stream is closed: the next file to be opened would be taken for it.
fn open_streams() {
    for stream in 0..=2 {
        // SAFETY: takes no pointers; a number that is not open is refused with EBADF.
        let flags = unsafe { libc::fcntl(stream, libc::F_GETFD) };
        if flags >= 0 || Errno::last() != Errno::EBADF {
            continue;
        }
        // The lowest free number, which is this one.
        // SAFETY: the path is a constant text that ends in zero.
        let opened = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
        if opened != stream {
            std::process::abort();
        }
    }
}
