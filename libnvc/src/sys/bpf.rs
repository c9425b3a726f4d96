//! Calls bpf(2) for device cgroups: programs, attach modes and links.
//!
//! nix does not have this call, and the eBPF crates expect ELF objects, while a device filter is some twenty generated
//! instructions.

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;

mod attributes;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod creation;

use attributes::{
    AttachAttr, GetIdAttr, InfoAttr, LinkUpdateAttr, LoadAttr, QueryAttr, RawLinkInfo,
    RawProgramInfo,
};

const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_PROG_ATTACH: libc::c_long = 8;
const BPF_PROG_DETACH: libc::c_long = 9;
const BPF_PROG_GET_FD_BY_ID: libc::c_long = 13;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const BPF_PROG_QUERY: libc::c_long = 16;
const BPF_LINK_UPDATE: libc::c_long = 29;
const BPF_LINK_GET_FD_BY_ID: libc::c_long = 30;
const BPF_LINK_GET_NEXT_ID: libc::c_long = 31;

const BPF_PROG_TYPE_CGROUP_DEVICE: u32 = 15;
const BPF_CGROUP_DEVICE: u32 = 6;
const BPF_LINK_TYPE_CGROUP: u32 = 3;
const BPF_F_QUERY_EFFECTIVE: u32 = 1;

/// A descendant may attach its own program, which then replaces this one there.
pub const BPF_F_ALLOW_OVERRIDE: u32 = 1;
/// Several programs may be attached; all of them, including those of ancestors, must allow the access.
pub const BPF_F_ALLOW_MULTI: u32 = 2;
/// Replaces one of several programs.
pub const BPF_F_REPLACE: u32 = 4;

/// Size of the first instruction buffer; the filters of runc, crun and systemd have about a hundred.
const USUAL_LENGTH: usize = 512;

/// Retries of a program load that a signal interrupted: the verifier then fails with EAGAIN, also for a signal with a
/// handler, a ptrace stop, or a freezing cgroup. Go's scheduler sends its threads several hundred signals a second.
const MAX_SIGNALS: usize = 50;

/// One instruction in the kernel's format.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    /// Class, operation or size, and operand source.
    pub code: u8,
    /// Destination register in one half, source register in the other.
    registers: u8,
    /// Jump or memory offset.
    pub offset: i16,
    /// Constant operand.
    pub immediate: i32,
}

impl Instruction {
    /// Builds an instruction on register `dst`, with `src` as its other operand.
    pub const fn new(code: u8, dst: u8, src: u8, offset: i16, immediate: i32) -> Self {
        // The kernel uses bit fields, which compilers fill from the low end on little-endian and from the high end
        // otherwise.
        let registers = if cfg!(target_endian = "little") {
            (dst & 0xf) | (src << 4)
        } else {
            (dst << 4) | (src & 0xf)
        };
        Self {
            code,
            registers,
            offset,
            immediate,
        }
    }

    /// Returns the destination register.
    pub const fn dst(self) -> u8 {
        if cfg!(target_endian = "little") {
            self.registers & 0xf
        } else {
            self.registers >> 4
        }
    }

    /// Returns the source register.
    pub const fn src(self) -> u8 {
        if cfg!(target_endian = "little") {
            self.registers >> 4
        } else {
            self.registers & 0xf
        }
    }
}

impl fmt::Debug for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dst, src) = (self.dst(), self.src());
        let Self {
            code,
            offset,
            immediate,
            ..
        } = self;
        write!(f, "{code:02x} r{dst} r{src} {offset:+} {immediate:#x}")
    }
}

/// The programs attached to a cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachedPrograms {
    /// Program ids, in execution order.
    pub programs: Vec<u32>,
    /// The attach mode: zero, `BPF_F_ALLOW_OVERRIDE` or `BPF_F_ALLOW_MULTI`.
    pub flags: u32,
}

/// The kernel's information about a program.
#[derive(Clone, Debug)]
pub struct ProgramInfo {
    /// Program id.
    pub id: u32,
    /// Name given at load time, padded with zeros.
    pub name: [u8; 16],
    /// The instructions; None if the kernel hides them (`bpf_jit_harden`, missing privilege).
    pub instructions: Option<Vec<Instruction>>,
}

/// A link that attaches a device filter to a cgroup.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceLink {
    /// Program id.
    pub(crate) program: u32,
    /// Cgroup id, which is the inode number of its directory.
    pub(crate) cgroup: u64,
}

/// Returns the device filters attached to a cgroup itself, or with `effective` all that apply to it.
///
/// The flags are unknown (zero) for effective programs.
pub fn query(cgroup: BorrowedFd<'_>, effective: bool) -> Result<AttachedPrograms, Errno> {
    let mut room = 64;
    for _ in 0..10 {
        let mut programs = vec![0u32; room];
        let mut attr = QueryAttr {
            target_fd: number(cgroup),
            attach_type: BPF_CGROUP_DEVICE,
            query_flags: if effective { BPF_F_QUERY_EFFECTIVE } else { 0 },
            prog_ids: address(programs.as_mut_ptr()),
            prog_cnt: length(room)?,
            ..QueryAttr::default()
        };
        // SAFETY: the command writes at most `prog_cnt` ids to `prog_ids`, and `programs` has that many.
        let result = unsafe { bpf(BPF_PROG_QUERY, &mut attr) };
        let count = usize::try_from(attr.prog_cnt).map_err(|_| Errno::EOVERFLOW)?;
        match result {
            Ok(_) => {
                programs.truncate(count);
                return Ok(AttachedPrograms {
                    programs,
                    flags: attr.attach_flags,
                });
            }
            // More programs were attached after the count was read.
            Err(Errno::ENOSPC) => room = count.max(room) * 2,
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::ENOSPC)
}

/// Opens a program by its id.
pub fn program_by_id(id: u32) -> Result<OwnedFd, Errno> {
    let mut attr = GetIdAttr {
        id,
        ..GetIdAttr::default()
    };
    // SAFETY: the attributes hold no address, and the command's result is a new descriptor.
    unsafe { bpf_fd(BPF_PROG_GET_FD_BY_ID, &mut attr) }
}

/// Reads a program's information and its verified instructions.
pub fn program_info(program: BorrowedFd<'_>) -> Result<ProgramInfo, Errno> {
    let mut instructions = vec![Instruction::default(); USUAL_LENGTH];
    loop {
        let size = instructions.len() * size_of::<Instruction>();
        let mut info = RawProgramInfo {
            xlated_prog_len: length(size)?,
            xlated_prog_insns: address(instructions.as_mut_ptr()),
            ..RawProgramInfo::default()
        };
        let mut attr = InfoAttr {
            bpf_fd: number(program),
            info_len: length(size_of::<RawProgramInfo>())?,
            info: address(&raw mut info),
        };
        // SAFETY: the command writes at most `info_len` bytes to `info`, and at most `xlated_prog_len` bytes of whole
        // instructions to `xlated_prog_insns`; both are that long, and any bytes are an instruction.
        unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attr) }?;
        let whole = usize::try_from(info.xlated_prog_len).map_err(|_| Errno::EOVERFLOW)?
            / size_of::<Instruction>();
        if whole > instructions.len() {
            instructions.resize(whole, Instruction::default());
            continue;
        }
        instructions.truncate(whole);
        let readable = info.xlated_prog_insns != 0 && whole != 0;
        return Ok(ProgramInfo {
            id: info.id,
            name: info.name,
            instructions: readable.then_some(instructions),
        });
    }
}

/// Has the kernel verify and load a device filter. The verifier writes its messages to `log`, if given.
pub fn load_program(
    instructions: &[Instruction],
    name: [u8; 16],
    log: Option<&mut [u8]>,
) -> Result<OwnedFd, Errno> {
    let mut attr = LoadAttr {
        prog_type: BPF_PROG_TYPE_CGROUP_DEVICE,
        insn_cnt: length(instructions.len())?,
        insns: address(instructions.as_ptr()),
        license: address(c"Apache".as_ptr()),
        prog_name: name,
        ..LoadAttr::default()
    };
    if let Some(log) = log {
        attr.log_level = 1;
        attr.log_size = length(log.len())?;
        attr.log_buf = address(log.as_mut_ptr());
    }
    for _ in 0..MAX_SIGNALS {
        // SAFETY: the command reads `insn_cnt` instructions and a zero-terminated licence and writes at most `log_size`
        // bytes to `log_buf`, all of which the arguments above keep valid; its result is a new descriptor.
        match unsafe { bpf_fd(BPF_PROG_LOAD, &mut attr) } {
            Err(Errno::EAGAIN) => {}
            done => return done,
        }
    }
    Err(Errno::EAGAIN)
}

/// Attaches a program to a cgroup; with `BPF_F_REPLACE`, replaces another one.
pub fn attach(
    cgroup: BorrowedFd<'_>,
    program: BorrowedFd<'_>,
    flags: u32,
    replaced: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let mut attr = AttachAttr {
        target_fd: number(cgroup),
        attach_bpf_fd: number(program),
        attach_type: BPF_CGROUP_DEVICE,
        attach_flags: flags,
        replace_bpf_fd: replaced.map_or(0, number),
    };
    // SAFETY: the attributes hold no address.
    unsafe { bpf(BPF_PROG_ATTACH, &mut attr) }.map(drop)
}

/// Detaches one program from a cgroup.
pub(crate) fn detach(cgroup: BorrowedFd<'_>, program: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut attr = AttachAttr {
        target_fd: number(cgroup),
        attach_bpf_fd: number(program),
        attach_type: BPF_CGROUP_DEVICE,
        ..AttachAttr::default()
    };
    // SAFETY: the attributes hold no address.
    unsafe { bpf(BPF_PROG_DETACH, &mut attr) }.map(drop)
}

/// Returns the id of the first link after `id`.
pub(crate) fn next_link(id: u32) -> Result<Option<u32>, Errno> {
    let mut attr = GetIdAttr {
        id,
        ..GetIdAttr::default()
    };
    // SAFETY: the attributes hold no address.
    match unsafe { bpf(BPF_LINK_GET_NEXT_ID, &mut attr) } {
        Ok(_) => Ok(Some(attr.next_id)),
        Err(Errno::ENOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Opens a link by its id.
pub(crate) fn link_by_id(id: u32) -> Result<OwnedFd, Errno> {
    let mut attr = GetIdAttr {
        id,
        ..GetIdAttr::default()
    };
    // SAFETY: the attributes hold no address, and the command's result is a new descriptor.
    unsafe { bpf_fd(BPF_LINK_GET_FD_BY_ID, &mut attr) }
}

/// Returns the program and cgroup of a link, if it attaches a device filter.
pub(crate) fn device_link(link: BorrowedFd<'_>) -> Result<Option<DeviceLink>, Errno> {
    let mut info = RawLinkInfo::default();
    let mut attr = InfoAttr {
        bpf_fd: number(link),
        info_len: length(size_of::<RawLinkInfo>())?,
        info: address(&raw mut info),
    };
    // SAFETY: the command writes at most `info_len` bytes to `info`, which is that long. It may read the address of a
    // name buffer from `info` for some link types; those bytes are zero, which means no buffer.
    unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attr) }?;
    let ours = info.kind == BPF_LINK_TYPE_CGROUP && info.attach_type == BPF_CGROUP_DEVICE;
    Ok(ours.then_some(DeviceLink {
        program: info.prog_id,
        cgroup: info.cgroup_id,
    }))
}

/// Replaces the program of a link, if it is still `old`.
pub(crate) fn update_link(
    link: BorrowedFd<'_>,
    old: BorrowedFd<'_>,
    new: BorrowedFd<'_>,
) -> Result<(), Errno> {
    let mut attr = LinkUpdateAttr {
        link_fd: number(link),
        new_prog_fd: number(new),
        flags: BPF_F_REPLACE,
        old_prog_fd: number(old),
    };
    // SAFETY: the attributes hold no address.
    unsafe { bpf(BPF_LINK_UPDATE, &mut attr) }.map(drop)
}

/// Calls bpf(2).
///
/// # Safety
///
/// `A` must have no padding, and the addresses in `attr` must be valid for what `command` reads and writes there.
unsafe fn bpf<A>(command: libc::c_long, attr: &mut A) -> Result<RawFd, Errno> {
    let size = size_of::<A>();
    // SAFETY: the call reads `size` bytes at `attr`, all initialised as the caller promises that there is no padding,
    // and writes results into them (every field is a plain number); addresses within are the caller's promise.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size) };
    Errno::result(result).and_then(|value| RawFd::try_from(value).map_err(|_| Errno::EOVERFLOW))
}

/// Calls bpf(2) with a command that returns a descriptor.
///
/// # Safety
///
/// As for [`bpf`], and the command must return a new descriptor.
unsafe fn bpf_fd<A>(command: libc::c_long, attr: &mut A) -> Result<OwnedFd, Errno> {
    // SAFETY: the caller's promise.
    let fd = unsafe { bpf(command, attr) }?;
    // SAFETY: the caller promises a new descriptor, so it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn number(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

fn address<T>(pointer: *const T) -> u64 {
    pointer.expose_provenance() as u64
}

fn length(count: usize) -> Result<u32, Errno> {
    u32::try_from(count).map_err(|_| Errno::E2BIG)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn structs_are_laid_out_as_the_kernels() {
        assert_eq!(size_of::<Instruction>(), 8);
        assert_eq!(size_of::<QueryAttr>(), 64);
        assert_eq!(std::mem::offset_of!(QueryAttr, prog_cnt), 24);
        assert_eq!(std::mem::offset_of!(QueryAttr, revision), 56);
        assert_eq!(size_of::<LoadAttr>(), 64);
        assert_eq!(std::mem::offset_of!(LoadAttr, log_buf), 32);
        assert_eq!(std::mem::offset_of!(LoadAttr, prog_name), 48);
        assert_eq!(size_of::<AttachAttr>(), 20);
        assert_eq!(size_of::<InfoAttr>(), 16);
        assert_eq!(size_of::<RawProgramInfo>(), 80);
        assert_eq!(std::mem::offset_of!(RawProgramInfo, xlated_prog_insns), 32);
        assert_eq!(std::mem::offset_of!(RawProgramInfo, name), 64);
        assert_eq!(size_of::<RawLinkInfo>(), 32);
        assert_eq!(std::mem::offset_of!(RawLinkInfo, cgroup_id), 16);
    }

    /// Far more signals than a single load can survive.
    #[test]
    #[ignore = "needs root"]
    fn signals_do_not_keep_programs_from_being_loaded() {
        use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
        use std::sync::atomic::{AtomicBool, Ordering};
        use std::time::Duration;

        extern "C" fn nothing(_: libc::c_int) {}
        let handler = SigHandler::Handler(nothing);
        let action = SigAction::new(handler, SaFlags::SA_RESTART, SigSet::empty());
        // SAFETY: the handler does nothing.
        unsafe { sigaction(Signal::SIGUSR2, &action) }.unwrap();
        let (allow, exit) = (
            Instruction::new(0xb7, 0, 0, 0, 1),
            Instruction::new(0x95, 0, 0, 0, 0),
        );
        let mut program = vec![allow; 1000];
        program.push(exit);
        // SAFETY: takes nothing.
        let loader = unsafe { libc::pthread_self() };
        let is_over = AtomicBool::new(false);
        let loaded = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    // SAFETY: the thread waits for this one, so it is there.
                    unsafe { libc::pthread_kill(loader, Signal::SIGUSR2 as libc::c_int) };
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let loaded: Vec<_> = (0..300)
                .map(|_| load_program(&program, *b"test\0\0\0\0\0\0\0\0\0\0\0\0", None).map(drop))
                .collect();
            is_over.store(true, Ordering::Relaxed);
            loaded
        });
        assert!(loaded.iter().all(Result::is_ok), "{loaded:?}");
    }

    #[test]
    fn instructions_keep_their_registers() {
        let instruction = Instruction::new(0xbf, 6, 10, -1, 7);
        assert_eq!((instruction.dst(), instruction.src()), (6, 10));
    }
}
