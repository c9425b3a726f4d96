//! Replaces std's `main` in programs, because an engine waits for their start with each container.
//!
//! std's `main` reads /proc/self/maps and allocates a signal stack to report a stack overflow: 0.09 ms, 7 % of an
//! `info`. Without it, an overflow is a plain SIGSEGV at the guard page. The other duties of that `main` are done here.

use std::ffi::c_int;
use std::io::Write as _;

use nix::errno::Errno;
use nix::sys::signal::SigHandler;

use super::{execute, process};

/// Makes a function without arguments the program's `main`; it returns the exit code as `u8`.
///
/// For crates with `#![cfg_attr(not(test), no_main)]`. The arguments come from [`std::env::args_os`], which needs no
/// std `main` with glibc.
#[macro_export]
macro_rules! main {
    ($run:path) => {
        #[cfg(not(test))]
        #[unsafe(no_mangle)]
        extern "C" fn main() -> ::std::ffi::c_int {
            $crate::start($run)
        }

        // The tests have a `main` of their own.
        #[cfg(test)]
        fn main() {
            let _ = $run;
        }
    };
}

/// The exit code of a panic, as with std's `main`.
const PANICKED: c_int = 101;

/// Runs a program with the usual streams and signals; [`main!`](crate::main) calls it.
///
/// It can wait for the children that the library starts, even if it inherited an ignored SIGCHLD, and gets an error if
/// it writes to a pipe without a reader. A closed standard stream becomes /dev/null. Returns the exit code.
pub fn start(run: fn() -> u8) -> c_int {
    open_streams();
    execute::set_pipe_signal(SigHandler::SigIgn);
    // Fails only for invalid signal numbers.
    let _ = process::await_children();
    let code = std::panic::catch_unwind(run).map_or(PANICKED, c_int::from);
    // A reader that has gone misses nothing.
    let _ = std::io::stdout().flush();
    code
}

/// Opens /dev/null for each closed standard stream; otherwise the next opened file would become that stream.
fn open_streams() {
    for stream in 0..=2 {
        // SAFETY: takes no pointers. A number that is not open fails with EBADF.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_exit_code() {
        assert_eq!(start(|| 7), 7);
        assert_eq!(start(|| panic!("a test")), PANICKED);
    }
}
