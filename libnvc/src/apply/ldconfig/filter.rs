//! Compiles the list of system calls that ldconfig may make.
//!
//! No sockets, no processes, no mounts, no keys, no tracing. What is not on the list fails with EPERM; calls newer than
//! any on it fail with ENOSYS, so that a later C library falls back to what it used before instead of giving up (one
//! that was refused clock_gettime with EPERM tried for ever). Rules without arguments let the kernel answer from a
//! bitmap without running the program.

use std::collections::BTreeMap;

use nix::errno::Errno;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, sock_filter};

use crate::error::{Error, ErrorKind, Result};

const ALLOWED: &[libc::c_long] = &[
    // files
    libc::SYS_chdir,
    libc::SYS_close,
    libc::SYS_faccessat,
    FACCESSAT2,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    FCHMODAT2,
    libc::SYS_fcntl,
    libc::SYS_fdatasync,
    libc::SYS_fstat,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_lseek,
    libc::SYS_mkdirat,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    OPENAT2,
    libc::SYS_pread64,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_statx,
    libc::SYS_symlinkat,
    libc::SYS_unlinkat,
    libc::SYS_write,
    libc::SYS_writev,
    // memory
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // the process itself
    libc::SYS_execveat, // how it is started
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_prlimit64,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_tgkill,
    // the system
    libc::SYS_clock_gettime,
    libc::SYS_getrandom,
    libc::SYS_gettimeofday,
    libc::SYS_sysinfo, // sorting asks how much memory there is
    libc::SYS_uname,
];

/// Calls that only older architectures have.
#[cfg(target_arch = "x86_64")]
const OLDER: &[libc::c_long] = &[
    libc::SYS_access,
    libc::SYS_arch_prctl,
    libc::SYS_chmod,
    libc::SYS_getdents,
    libc::SYS_getpgrp,
    libc::SYS_getrlimit,
    libc::SYS_lstat,
    libc::SYS_mkdir,
    libc::SYS_open,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_stat,
    libc::SYS_symlink,
    libc::SYS_time,
    libc::SYS_unlink,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[libc::c_long] = &[];

// The same numbers on all architectures; not every C library's headers have them.
const OPENAT2: libc::c_long = 437;
const FACCESSAT2: libc::c_long = 439;
const FCHMODAT2: libc::c_long = 452;
const NEWEST: u32 = 452;

/// The filter for this architecture.
///
/// # Errors
/// There is none for it.
pub(super) fn compile() -> Result<BpfProgram> {
    build().map_err(|error| {
        Error::new(ErrorKind::LdCache, "ldconfig's system-call filter").because(error)
    })
}

fn build() -> Result<BpfProgram, seccompiler::BackendError> {
    let calls = ALLOWED.iter().chain(OLDER);
    let rules: BTreeMap<i64, _> = calls.map(|&call| (call, Vec::new())).collect();
    let refused = SeccompAction::Errno(Errno::EPERM as u32);
    let architecture = std::env::consts::ARCH.try_into()?;
    let filter = SeccompFilter::new(rules, refused, SeccompAction::Allow, architecture)?;
    let mut program: BpfProgram = filter.try_into()?;
    program.splice(0..0, unknown_calls());
    Ok(program)
}

/// ENOSYS for every number above the newest call on the list, x86_64's x32 calls among them.
fn unknown_calls() -> [sock_filter; 3] {
    const LOAD_NUMBER: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS; the number comes first in struct seccomp_data
    const JUMP_IF_GREATER: u16 = 0x25; // BPF_JMP | BPF_JGT | BPF_K
    const RETURN: u16 = 0x06; // BPF_RET | BPF_K
    let answer = SeccompAction::Errno(Errno::ENOSYS as u32).into();
    [
        (LOAD_NUMBER, 0, 0),
        (JUMP_IF_GREATER, 1, NEWEST),
        (RETURN, 0, answer),
    ]
    .map(|(code, jf, k)| sock_filter { code, jt: 0, jf, k })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_threshold_is_the_newest_call() {
        let newest = ALLOWED.iter().chain(OLDER).max().copied();
        assert_eq!(newest, Some(libc::c_long::from(NEWEST)));
    }

    #[test]
    fn calls_get_their_answers() {
        let program = compile().unwrap();
        let allow = u32::from(SeccompAction::Allow);
        let errno = |errno: Errno| u32::from(SeccompAction::Errno(errno as u32));
        for (call, answer) in [
            (libc::SYS_openat, allow),
            (libc::SYS_execveat, allow),
            (FCHMODAT2, allow),
            (libc::SYS_socket, errno(Errno::EPERM)),
            (libc::SYS_execve, errno(Errno::EPERM)),
            (libc::SYS_clone, errno(Errno::EPERM)),
            (libc::SYS_mount, errno(Errno::EPERM)),
            (libc::SYS_keyctl, errno(Errno::EPERM)),
            (FCHMODAT2 + 1, errno(Errno::ENOSYS)),
            (0x4000_0000 + libc::SYS_openat, errno(Errno::ENOSYS)),
        ] {
            assert_eq!(answer_of(&program, call), answer, "call {call}");
        }
    }

    /// Runs the program as the kernel would, for this architecture.
    fn answer_of(program: &[sock_filter], call: libc::c_long) -> u32 {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => 0xc000_003e,
            "aarch64" => 0xc000_00b7,
            other => panic!("no number for {other}"),
        };
        let (mut accumulator, mut at) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at].clone();
            at += 1;
            match code {
                0x20 if k == 0 => accumulator = u32::try_from(call).unwrap(),
                0x20 if k == 4 => accumulator = architecture,
                0x05 => at += k as usize,
                0x15 => at += usize::from(if accumulator == k { jt } else { jf }),
                0x25 => at += usize::from(if accumulator > k { jt } else { jf }),
                0x06 => return k,
                code => panic!("instruction {code:#x}"),
            }
        }
    }
}
