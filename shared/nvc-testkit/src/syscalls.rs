//! Names the system calls of the programs under test, for filters and reports.

use nix::libc;

/// Calls with their numbers on this architecture; their names are those of the constants without `SYS_`.
macro_rules! calls {
    ($($call:ident)*) => {
        &[$((stringify!($call), libc::$call)),*]
    };
}

const CALLS: &[(&str, i64)] = calls![
    SYS_bpf SYS_brk SYS_capget SYS_capset SYS_chdir SYS_chroot SYS_clone SYS_clone3 SYS_close SYS_close_range
    SYS_connect SYS_copy_file_range SYS_dup SYS_dup3 SYS_execve SYS_execveat SYS_exit SYS_exit_group SYS_faccessat
    SYS_faccessat2 SYS_fallocate SYS_fchdir SYS_fchmod SYS_fchmodat SYS_fchown SYS_fchownat SYS_fcntl SYS_flistxattr
    SYS_fgetxattr SYS_flock SYS_fsconfig SYS_fsetxattr SYS_fsmount SYS_fsopen SYS_fstat SYS_fstatfs SYS_fsync
    SYS_ftruncate SYS_futex SYS_getcwd SYS_getdents64 SYS_getegid SYS_geteuid SYS_getgid SYS_getpid SYS_getppid
    SYS_getrandom SYS_getresgid SYS_getresuid SYS_gettid SYS_getuid SYS_ioctl SYS_kill SYS_linkat SYS_lseek
    SYS_madvise SYS_memfd_create SYS_mkdirat SYS_mknodat SYS_mmap SYS_mount SYS_mount_setattr SYS_move_mount
    SYS_mprotect SYS_mremap SYS_munmap SYS_newfstatat SYS_open_tree SYS_openat SYS_openat2 SYS_pidfd_open
    SYS_pidfd_send_signal SYS_pipe2 SYS_pivot_root SYS_ppoll SYS_prctl SYS_pread64 SYS_prlimit64 SYS_pwrite64 SYS_read
    SYS_readlinkat SYS_readv SYS_recvfrom SYS_recvmsg SYS_renameat SYS_renameat2 SYS_restart_syscall SYS_rseq
    SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_sched_getaffinity SYS_sched_yield SYS_seccomp
    SYS_sendfile SYS_sendmsg SYS_sendto SYS_set_robust_list SYS_set_tid_address SYS_setfsgid SYS_setfsuid
    SYS_setgroups SYS_setns SYS_setresgid SYS_setresuid SYS_sigaltstack SYS_socketpair SYS_statfs SYS_statx
    SYS_symlinkat SYS_sysinfo SYS_tgkill SYS_umask SYS_umount2 SYS_uname SYS_unlinkat SYS_unshare SYS_wait4
    SYS_waitid SYS_write SYS_writev
];

/// Calls that exist only on older architectures.
#[cfg(target_arch = "x86_64")]
const OLDER: &[(&str, i64)] = calls![
    SYS_access SYS_arch_prctl SYS_chmod SYS_dup2 SYS_getdents SYS_getpgrp SYS_lstat SYS_mkdir SYS_open SYS_pipe
    SYS_poll SYS_readlink SYS_rename SYS_rmdir SYS_select SYS_stat SYS_symlink SYS_time SYS_unlink
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[(&str, i64)] = &[];

/// Calls that cannot fail, or not in this way, and calls whose failure makes the C library abort. Some, such as
/// futex(2), are made depending on timing.
pub const INFALLIBLE: &[&str] = &[
    "arch_prctl",
    "brk",
    "exit",
    "exit_group",
    "futex",
    "getegid",
    "geteuid",
    "getgid",
    "getpid",
    "getppid",
    "getrandom",
    "gettid",
    "getuid",
    "restart_syscall",
    "rseq",
    "rt_sigreturn",
    "sched_yield",
    "set_robust_list",
    "set_tid_address",
    "umask",
];

/// Returns the number of a call.
pub fn number(name: &str) -> Option<i64> {
    let found = all().find(|(known, _)| *known == name);
    found.map(|(_, number)| number)
}

/// Returns the name of a call, or its number if it is unknown.
pub fn name(number: i64) -> String {
    let found = all().find(|(_, known)| *known == number);
    found.map_or_else(|| format!("call {number}"), |(name, _)| name.to_owned())
}

fn all() -> impl Iterator<Item = (&'static str, i64)> {
    let calls = CALLS.iter().chain(OLDER);
    calls.map(|(name, number)| (name.trim_start_matches("SYS_"), *number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_belong_together() {
        assert_eq!(number("openat2"), Some(437));
        assert_eq!(name(437), "openat2");
        assert_eq!(number("open_sesame"), None);
        assert_eq!(name(-1), "call -1");
    }
}
