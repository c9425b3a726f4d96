//! Prevents a process and its children from executing programs; builds the instructions of system-call filters, and
//! installs them.
//!
//! Not with the crate seccompiler: its compiler lets x86_64's x32 calls pass, does not support powerpc64le, and compares
//! the call with one number after another, which takes the kernel a third of a millisecond when it installs ldconfig's
//! filter.

use libc::{sock_filter, sock_fprog};
use nix::errno::Errno;
use nix::sys::prctl;

/// An instruction of a system-call filter: `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instruction {
    pub(crate) code: u16,
    pub(crate) jt: u8,
    pub(crate) jf: u8,
    pub(crate) k: u32,
}

/// What a filter says about a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allow,
    Refuse(Errno),
    KillProcess,
}

impl From<Verdict> for u32 {
    /// Returns the kernel's number, `SECCOMP_RET_*`.
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Allow => libc::SECCOMP_RET_ALLOW,
            Verdict::Refuse(errno) => libc::SECCOMP_RET_ERRNO | (errno as i32).cast_unsigned(),
            Verdict::KillProcess => libc::SECCOMP_RET_KILL_PROCESS,
        }
    }
}

/// Installs a filter for the calling thread and everything it starts from now on. Sets no_new_privs, without which the
/// kernel demands SYS_ADMIN. Allocates nothing, so that a fork can call it.
///
/// # Errors
/// The kernel's: `ENOSYS` without system-call filters, `EINVAL` for a program that it does not accept.
pub(crate) fn install(program: &[Instruction]) -> Result<(), Errno> {
    prctl::set_no_new_privs()?;
    let program = sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| Errno::EINVAL)?,
        filter: program.as_ptr().cast::<sock_filter>().cast_mut(),
    };
    // SAFETY: points to as many instructions as it says; the kernel copies them.
    let done = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0,
            &raw const program,
        )
    };
    Errno::result(done).map(drop)
}

/// Makes exec fail with `EPERM` in the calling thread and everything it starts from now on. The thread must have
/// `no_new_privs`.
///
/// # Errors
/// `ENOSYS` if the kernel has no system-call filters, or does not support them on this architecture.
pub(crate) fn forbid_execve() -> Result<(), Errno> {
    forbid(&PROGRAMS, Vec::new())
}

/// Makes calls fail with `EPERM` that change or look into the system, other processes or the kernel, and those that start
/// processes, in the calling thread and those that it starts from now on: for a program that only speaks with others.
/// Sets no_new_privs.
///
/// # Errors
/// `ENOSYS` if the kernel has no system-call filters, or does not support them on this architecture.
pub fn speak_only() -> Result<(), Errno> {
    let clone = u32::try_from(libc::SYS_clone).map_err(|_| Errno::ENOSYS)?;
    let clone3 = u32::try_from(libc::SYS_clone3).map_err(|_| Errno::ENOSYS)?;
    let threads = vec![
        // Its flags are in memory. Without it, C libraries use clone.
        instruction(JUMP_IF_EQUAL, 0, 1, clone3),
        answer(Verdict::Refuse(Errno::ENOSYS)),
        instruction(JUMP_IF_EQUAL, 0, 3, clone),
        instruction(LOAD, 0, 0, FIRST_ARGUMENT),
        instruction(JUMP_IF_ANY_SET, 1, 0, libc::CLONE_THREAD.cast_unsigned()),
        answer(Verdict::Refuse(Errno::EPERM)),
    ];
    forbid(&[&PROGRAMS[..], CONTROL].concat(), threads)
}

const PROGRAMS: [libc::c_long; 2] = [libc::SYS_execve, libc::SYS_execveat];
const CONTROL: &[libc::c_long] = &[
    // clone(2) of architectures that had others before
    #[cfg(any(target_arch = "x86_64", target_arch = "powerpc64"))]
    libc::SYS_fork,
    #[cfg(any(target_arch = "x86_64", target_arch = "powerpc64"))]
    libc::SYS_vfork,
    // the tree of files, and namespaces
    libc::SYS_chroot,
    libc::SYS_fsopen,
    libc::SYS_mount,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_pivot_root,
    libc::SYS_setns,
    libc::SYS_umount2,
    libc::SYS_unshare,
    // other processes
    libc::SYS_pidfd_getfd,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    // the kernel
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_delete_module,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    libc::SYS_io_uring_setup,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_perf_event_open,
    libc::SYS_request_key,
    libc::SYS_userfaultfd,
];

/// Installs a filter that refuses some calls, and x32's, after instructions for others.
fn forbid(calls: &[libc::c_long], others: Vec<Instruction>) -> Result<(), Errno> {
    let architecture = ARCHITECTURE.ok_or(Errno::ENOSYS)?;
    let refuse = answer(Verdict::Refuse(Errno::EPERM));
    let mut program = vec![
        instruction(LOAD, 0, 0, ARCH),
        instruction(JUMP_IF_EQUAL, 1, 0, architecture),
        answer(Verdict::KillProcess),
        instruction(LOAD, 0, 0, NUMBER),
        instruction(JUMP_IF_AT_LEAST, 0, 1, X32),
        refuse,
    ];
    for call in calls {
        let number = u32::try_from(*call).map_err(|_| Errno::ENOSYS)?;
        program.extend([instruction(JUMP_IF_EQUAL, 0, 1, number), refuse]);
    }
    program.extend(others);
    program.push(answer(Verdict::Allow));
    install(&program).map_err(|_| Errno::ENOSYS)
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
const JUMP_IF_ANY_SET: u16 = 0x45; // BPF_JMP | BPF_JSET | BPF_K
const RETURN: u16 = 0x06; // BPF_RET | BPF_K
pub(crate) const NUMBER: u32 = 0;
pub(crate) const ARCH: u32 = 4;
/// Its low half: all architectures that have filters here are little-endian.
const FIRST_ARGUMENT: u32 = 16;

/// Builds an instruction of a system-call filter.
pub(crate) fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> Instruction {
    Instruction { code, jt, jf, k }
}

/// Builds the instruction that ends a system-call filter with an answer.
pub(crate) fn answer(verdict: Verdict) -> Instruction {
    instruction(RETURN, 0, 0, verdict.into())
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
        forbid_execve().unwrap();
        let error = Command::new("true").status().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        assert!(std::fs::read("/proc/self/stat").is_ok());
    }

    #[test]
    fn who_only_speaks_starts_threads_and_nothing_else() {
        let refused = Some(libc::EPERM);
        speak_only().unwrap();
        let error = Command::new("true").status().unwrap_err();
        assert_eq!(error.raw_os_error(), refused);
        for call in CONTROL {
            // SAFETY: it is refused before the kernel looks at its arguments.
            let done = unsafe { libc::syscall(*call, 0, 0, 0, 0, 0) };
            assert_eq!((done, Errno::last()), (-1, Errno::EPERM), "{call}");
        }
        #[cfg(any(target_arch = "x86_64", target_arch = "powerpc64"))]
        {
            // SAFETY: a child of this process ends at once.
            let done = unsafe { libc::syscall(libc::SYS_fork) };
            if done == 0 {
                // SAFETY: ends the child.
                unsafe { libc::_exit(0) };
            }
            assert_eq!((done, Errno::last()), (-1, Errno::EPERM), "fork");
        }
        for flag in [libc::CLONE_NEWUSER, libc::SIGCHLD] {
            // SAFETY: as above.
            let done = unsafe { libc::syscall(libc::SYS_clone, flag, 0, 0, 0, 0) };
            assert_eq!((done, Errno::last()), (-1, Errno::EPERM), "{flag}");
        }
        let thread = std::thread::spawn(|| std::fs::read("/proc/self/stat").is_ok());
        assert!(thread.join().unwrap());
        assert!(std::net::TcpListener::bind("127.0.0.1:0").is_ok());
    }
}
