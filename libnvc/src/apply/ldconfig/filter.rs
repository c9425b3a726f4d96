//! Compiles the list of system calls that ldconfig may make.
//!
//! No sockets, no processes, no mounts, no keys, no tracing. Calls that are not on the list fail with EPERM; calls
//! newer than any on it fail with ENOSYS, so that a later C library falls back to its older calls instead of failing
//! (one that got EPERM from clock_gettime retried forever). Rules without arguments let the kernel answer from a bitmap
//! without running the program.

use std::collections::BTreeSet;

use nix::errno::Errno;

use crate::error::{Error, ErrorKind, Result};
use crate::sys::seccomp::{
    ARCH, ARCHITECTURE, Instruction, JUMP_IF_AT_LEAST, JUMP_IF_EQUAL, LOAD, NUMBER, Verdict,
    answer, instruction,
};

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

// The same numbers on all architectures; some C libraries' headers lack them.
const OPENAT2: libc::c_long = 437;
const FACCESSAT2: libc::c_long = 439;
const FCHMODAT2: libc::c_long = 452;
const NEWEST: u32 = 452;

const JUMP_IF_GREATER: u16 = 0x25; // BPF_JMP | BPF_JGT | BPF_K (linux/bpf_common.h)

/// Returns the filter for this architecture.
///
/// # Errors
/// This architecture has none.
pub(super) fn compile() -> Result<Vec<Instruction>> {
    build().ok_or_else(|| {
        let text = "ldconfig's system-call filter";
        Error::new(ErrorKind::LdCache, text).because("this architecture has none")
    })
}

/// Calls of another architecture kill the process; calls above the newest on the list, including x86_64's x32 calls,
/// fail with ENOSYS; the rest is a tree of comparisons.
///
/// When the filter is installed, the kernel runs the whole program for every existing call, to fill its bitmap. With a
/// linear list of comparisons that takes a third of a millisecond, with a tree next to nothing.
fn build() -> Option<Vec<Instruction>> {
    let unknown = Verdict::Refuse(Errno::ENOSYS);
    let mut program = vec![
        instruction(LOAD, 0, 0, ARCH),
        instruction(JUMP_IF_EQUAL, 1, 0, ARCHITECTURE?),
        answer(Verdict::KillProcess),
        instruction(LOAD, 0, 0, NUMBER),
        instruction(JUMP_IF_GREATER, 0, 1, NEWEST),
        answer(unknown),
    ];
    program.extend(tree(&edges()?, false)?);
    Some(program)
}

/// Returns the numbers at which the answer changes, ascending, starting from a denial.
fn edges() -> Option<Vec<u32>> {
    let numbers = ALLOWED.iter().chain(OLDER).map(|&call| u32::try_from(call));
    let numbers: BTreeSet<u32> = numbers.collect::<Result<_, _>>().ok()?;
    let mut edges = Vec::new();
    for number in numbers {
        // A neighbour of the last one extends its range.
        if edges.pop_if(|end| *end == number).is_none() {
            edges.push(number);
        }
        edges.push(number + 1);
    }
    Some(edges)
}

/// Returns the comparisons for the loaded number; below the first edge the answer is `allowed`. None if a jump would be
/// too long.
fn tree(edges: &[u32], allowed: bool) -> Option<Vec<Instruction>> {
    let middle = edges.len() / 2;
    let Some(&edge) = edges.get(middle) else {
        return Some(vec![answer(if allowed {
            Verdict::Allow
        } else {
            Verdict::Refuse(Errno::EPERM)
        })]);
    };
    let below = tree(edges.get(..middle)?, allowed)?;
    let from = tree(edges.get(middle + 1..)?, allowed ^ middle.is_multiple_of(2))?;
    let over = u8::try_from(below.len()).ok()?;
    let mut program = vec![instruction(JUMP_IF_AT_LEAST, over, 0, edge)];
    program.extend(below);
    program.extend(from);
    Some(program)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {

    use super::*;

    const RETURN: u16 = 0x06; // BPF_RET | BPF_K

    #[test]
    fn the_threshold_is_the_newest_call() {
        let newest = ALLOWED.iter().chain(OLDER).max().copied();
        assert_eq!(newest, Some(libc::c_long::from(NEWEST)));
    }

    #[test]
    fn calls_get_their_answers() {
        let program = compile().unwrap();
        let allow = u32::from(Verdict::Allow);
        let errno = |errno: Errno| u32::from(Verdict::Refuse(errno));
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

    #[test]
    fn every_number_gets_its_answer_soon() {
        let program = compile().unwrap();
        let listed: BTreeSet<libc::c_long> = ALLOWED.iter().chain(OLDER).copied().collect();
        for call in 0..=libc::c_long::from(NEWEST) {
            let allowed = answer_of(&program, call) == u32::from(Verdict::Allow);
            assert_eq!(allowed, listed.contains(&call), "call {call}");
            let (_, steps) = run(&program, ARCHITECTURE.unwrap(), call);
            assert!(steps <= 16, "call {call}: {steps} instructions");
        }
    }

    #[test]
    fn other_architectures_end_the_process() {
        const I386: u32 = 0x4000_0003;
        let program = compile().unwrap();
        for call in [0, 3, libc::c_long::from(NEWEST) + 1] {
            let (answer, _) = run(&program, I386, call);
            assert_eq!(answer, u32::from(Verdict::KillProcess));
        }
    }

    fn answer_of(program: &[Instruction], call: libc::c_long) -> u32 {
        run(program, ARCHITECTURE.unwrap(), call).0
    }

    /// Runs the program like the kernel; returns the answer and the number of instructions executed.
    fn run(program: &[Instruction], architecture: u32, call: libc::c_long) -> (u32, usize) {
        let (mut accumulator, mut at) = (0, 0);
        for steps in 1.. {
            let Instruction { code, jt, jf, k } = program[at];
            at += 1;
            let jump = match code {
                LOAD if k == NUMBER => {
                    accumulator = u32::try_from(call).unwrap();
                    continue;
                }
                LOAD if k == ARCH => {
                    accumulator = architecture;
                    continue;
                }
                JUMP_IF_EQUAL => accumulator == k,
                JUMP_IF_GREATER => accumulator > k,
                JUMP_IF_AT_LEAST => accumulator >= k,
                RETURN => return (k, steps),
                code => panic!("instruction {code:#x}"),
            };
            at += usize::from(if jump { jt } else { jf });
        }
        unreachable!("programs end")
    }
}
