//! Replaces std's `main` in programs where start-up latency matters.
//!
//! std's `main` reads /proc/self/maps, allocates a signal stack and installs handlers, in order to report a stack
//! overflow. That takes a tenth of a millisecond, twice if a program executes itself for its NVML query: 7% of an
//! `info`, 3% of a `configure`. Without it an overflow is a plain SIGSEGV at the guard page. The other duties of that
//! `main` are done here.

use std::ffi::c_int;

use nix::errno::Errno;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// Makes a function the program's `main`. It returns the exit status, and flushes what it prints.
///
/// For crates with `#![cfg_attr(all(target_os = "linux", target_env = "gnu", not(test)), no_main)]`. Arguments come
/// from [`std::env::args_os`], which works without std's `main` on glibc; elsewhere std's `main` stays.
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

/// The exit status of a panic with std's `main`.
const PANICKED: c_int = 101;

/// Runs a program, see [`main!`](crate::main).
#[doc(hidden)]
pub fn start(run: fn() -> u8) -> c_int {
    open_streams();
    // Makes writing to a pipe without a reader return EPIPE instead of killing the process.
    let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
    // SAFETY: no handler is installed. Fails only for invalid signal numbers.
    let _ = unsafe { sigaction(Signal::SIGPIPE, &ignore) };
    std::panic::set_hook(Box::new(crate::messages::write_panic));
    std::panic::catch_unwind(run).map_or(PANICKED, c_int::from)
}

/// Opens /dev/null for every closed standard stream; otherwise the next opened file would become that stream.
fn open_streams() {
    for stream in 0..=2 {
        // SAFETY: takes no pointers; a number that is not open is refused with EBADF.
        let flags = unsafe { libc::fcntl(stream, libc::F_GETFD) };
        if flags >= 0 || Errno::last() != Errno::EBADF {
            continue;
        }
        // The lowest free number, which is this one. SAFETY: the path is a constant NUL-terminated string.
        let opened = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
        if opened != stream {
            std::process::abort();
        }
    }
}
