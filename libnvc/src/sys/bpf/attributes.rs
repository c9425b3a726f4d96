//! Lays out the attributes of bpf(2) as in the kernel's `union bpf_attr`.
//!
//! Padding is named and zero, because the kernel refuses nonzero trailing bytes.

#[derive(Default)]
#[repr(C)]
pub(super) struct QueryAttr {
    pub(super) target_fd: u32,
    pub(super) attach_type: u32,
    pub(super) query_flags: u32,
    pub(super) attach_flags: u32,
    pub(super) prog_ids: u64,
    pub(super) prog_cnt: u32,
    pub(super) pad: u32,
    pub(super) prog_attach_flags: u64,
    pub(super) link_ids: u64,
    pub(super) link_attach_flags: u64,
    // Newer kernels write this field back whatever size they are given, so it must exist.
    pub(super) revision: u64,
}

#[derive(Default)]
#[repr(C)]
pub(super) struct LoadAttr {
    pub(super) prog_type: u32,
    pub(super) insn_cnt: u32,
    pub(super) insns: u64,
    pub(super) license: u64,
    pub(super) log_level: u32,
    pub(super) log_size: u32,
    pub(super) log_buf: u64,
    pub(super) kern_version: u32,
    pub(super) prog_flags: u32,
    pub(super) prog_name: [u8; 16],
}

#[derive(Default)]
#[repr(C)]
pub(super) struct AttachAttr {
    pub(super) target_fd: u32,
    pub(super) attach_bpf_fd: u32,
    pub(super) attach_type: u32,
    pub(super) attach_flags: u32,
    pub(super) replace_bpf_fd: u32,
}

#[derive(Default)]
#[repr(C)]
pub(super) struct GetIdAttr {
    pub(super) id: u32,
    pub(super) next_id: u32,
    pub(super) open_flags: u32,
}

#[derive(Default)]
#[repr(C)]
pub(super) struct InfoAttr {
    pub(super) bpf_fd: u32,
    pub(super) info_len: u32,
    pub(super) info: u64,
}

#[derive(Default)]
#[repr(C)]
pub(super) struct RawProgramInfo {
    pub(super) kind: u32,
    pub(super) id: u32,
    pub(super) tag: [u8; 8],
    pub(super) jited_prog_len: u32,
    pub(super) xlated_prog_len: u32,
    pub(super) jited_prog_insns: u64,
    pub(super) xlated_prog_insns: u64,
    pub(super) load_time: u64,
    pub(super) created_by_uid: u32,
    pub(super) nr_map_ids: u32,
    pub(super) map_ids: u64,
    pub(super) name: [u8; 16],
}

#[derive(Default)]
#[repr(C)]
pub(super) struct RawLinkInfo {
    pub(super) kind: u32,
    pub(super) id: u32,
    pub(super) prog_id: u32,
    pub(super) pad: u32,
    pub(super) cgroup_id: u64,
    pub(super) attach_type: u32,
    pub(super) pad2: u32,
}

#[derive(Default)]
#[repr(C)]
pub(super) struct LinkUpdateAttr {
    pub(super) link_fd: u32,
    pub(super) new_prog_fd: u32,
    pub(super) flags: u32,
    pub(super) old_prog_fd: u32,
}
