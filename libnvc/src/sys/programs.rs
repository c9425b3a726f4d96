//! Prevents a process and its children from executing programs; builds the instructions of system-call filters.
//!
//! Of seccompiler, only the instruction type, the actions and the installation are used. Its compiler lets x86_64's x32
//! calls pass, does not support powerpc64le, and compares the call with one number after another, which takes the
//! kernel a third of a millisecond when it installs ldconfig's filter.

use nix::errno::Errno;
use seccompiler::{SeccompAction, apply_filter, sock_filter};

/// Makes exec fail with `EPERM` in the calling thread and everything it starts from now on. The thread must have
/// `no_new_privs`.
///
/// # Errors
/// `ENOSYS` if the kernel has no system-call filters, or does not support them on this architecture.
pub(crate) fn execute_nothing() -> Result<(), Errno> {
    let architecture = ARCHITECTURE.ok_or(Errno::ENOSYS)?;
    let number = |call| u32::try_from(call).map_err(|_| Errno::ENOSYS);
    let program = [
        instruction(LOAD, 0, 0, ARCH),
        instruction(JUMP_IF_EQUAL, 1, 0, architecture),
        answer(SeccompAction::KillProcess),
        instruction(LOAD, 0, 0, NUMBER),
        instruction(JUMP_IF_AT_LEAST, 2, 0, X32),
        instruction(JUMP_IF_EQUAL, 1, 0, number(libc::SYS_execve)?),
        instruction(JUMP_IF_EQUAL, 0, 1, number(libc::SYS_execveat)?),
        answer(SeccompAction::Errno(Errno::EPERM as u32)),
        answer(SeccompAction::Allow),
    ];
    apply_filter(&program).map_err(|_| Errno::ENOSYS)
}

/// The kernel's number for the architecture, `AUDIT_ARCH_*` in linux/audit.h.
pub(crate) const ARCHITECTURE: Option<u32> = if cfg!(target_arch = "x86_64") {
    Some(0xc000_003e)
} else if cfg!(target_arch = "aarch64") {
    Some(0xc000_00b7)
} else if cfg!(all(target_arch = "powerpc64", target_endian = "little")) {
    Some(0xc000_0015)
} else {
    None
};

/// The first number of x86_64's x32 calls; other architectures have no calls with such numbers.
const X32: u32 = 0x4000_0000;

// Instructions (linux/bpf_common.h), and offsets of their operands in struct seccomp_data.
pub(crate) const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
pub(crate) const JUMP_IF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
pub(crate) const JUMP_IF_AT_LEAST: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
const RETURN: u16 = 0x06; // BPF_RET | BPF_K
pub(crate) const NUMBER: u32 = 0;
pub(crate) const ARCH: u32 = 4;

/// Builds an instruction of a system-call filter.
pub(crate) fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// Builds the instruction that ends a system-call filter with an answer.
pub(crate) fn answer(action: SeccompAction) -> sock_filter {
    instruction(RETURN, 0, 0, action.into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A filter is per thread, and each test runs on its own thread.
    #[test]
    fn programs_are_refused() {
        assert!(Command::new("true").status().unwrap().success());
        nix::sys::prctl::set_no_new_privs().unwrap();
        execute_nothing().unwrap();
        let error = Command::new("true").status().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        assert!(std::fs::read("/proc/self/stat").is_ok());
    }
}
