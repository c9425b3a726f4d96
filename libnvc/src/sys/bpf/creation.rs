//! Creates objects that only tests need: a map for programs that cannot be reloaded, a link as systemd's.

use std::os::fd::{BorrowedFd, OwnedFd};

use nix::errno::Errno;

use super::{BPF_CGROUP_DEVICE, bpf_fd, number};

const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_MAP_TYPE_ARRAY: u32 = 2;

#[derive(Default)]
#[repr(C)]
struct LinkCreateAttr {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
}

#[derive(Default)]
#[repr(C)]
struct MapCreateAttr {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
}

/// Attaches a program to a cgroup until the link is closed.
pub fn create_link(cgroup: BorrowedFd<'_>, program: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let mut attr = LinkCreateAttr {
        prog_fd: number(program),
        target_fd: number(cgroup),
        attach_type: BPF_CGROUP_DEVICE,
        flags: 0,
    };
    // SAFETY: the attributes hold no address, and the command's result is a new descriptor.
    unsafe { bpf_fd(BPF_LINK_CREATE, &mut attr) }
}

/// Creates an array map of one number.
pub fn create_map() -> Result<OwnedFd, Errno> {
    let mut attr = MapCreateAttr {
        map_type: BPF_MAP_TYPE_ARRAY,
        key_size: 4,
        value_size: 8,
        max_entries: 1,
        map_flags: 0,
    };
    // SAFETY: the attributes hold no address, and the command's result is a new descriptor.
    unsafe { bpf_fd(BPF_MAP_CREATE, &mut attr) }
}
