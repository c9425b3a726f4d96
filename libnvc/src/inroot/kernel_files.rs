//! Recognises the file systems whose files the kernel makes up.
//!
//! Their files say that they are regular, but reading one can block (/proc/kmsg, tracefs's trace_pipe), take messages
//! away from others, or never end. An image can have a link to one in the place of any file that is read.

use std::os::fd::BorrowedFd;

use rustix::fs::fstatfs;
use rustix::io::Errno;

/// Magic numbers (statfs(2), linux/magic.h).
const KERNEL: [i64; 27] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x7472_6163, // tracefs
    0x6462_6720, // debugfs
    0x7363_6673, // securityfs
    0x6265_6570, // configfs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0xcafe_4a11, // bpf
    0xf97c_ff8c, // selinuxfs
    0x4341_5d53, // smackfs
    0x5a3c_69f0, // apparmorfs
    0x6165_676c, // pstore
    0xde5e_81e4, // efivarfs
    0x4249_4e4d, // binfmt_misc
    0x6573_5543, // fusectl
    0x1980_0202, // mqueue
    0x6759_6969, // rpc_pipefs
    0x6e66_7364, // nfsd
    0x6e73_6673, // nsfs
    0x5049_4446, // pidfs
    0x5049_5045, // pipefs
    0x534f_434b, // sockfs
    0x1cd1,      // devpts
    0x0765_5821, // resctrl
    0xabba_1974, // xenfs
    0x0a64_7361, // functionfs
];

/// Returns true if a descriptor is on such a file system.
pub(super) fn is_one(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    Ok(KERNEL.contains(&fstatfs(fd)?.f_type))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn procfs_is_one_and_ordinary_files_are_not() {
        let is_one = |path: &std::path::Path| is_one(File::open(path).unwrap().as_fd()).unwrap();
        assert!(is_one("/proc/version".as_ref()));
        assert!(is_one("/sys/kernel/uevent_seqnum".as_ref()));
        let dir = tempfile::tempdir().unwrap();
        assert!(!is_one(dir.path()));
        assert!(!is_one("/etc/passwd".as_ref()));
    }
}
