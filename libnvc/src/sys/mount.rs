//! Makes and moves mounts by descriptor with the mount API of Linux 5.2 and its later additions.
//!
//! `ENOSYS` means that the kernel lacks a call or a sandbox forbids it. See open_tree(2), move_mount(2),
//! mount_setattr(2), fsopen(2), fsconfig(2), fsmount(2), statx(2), statmount(2) and open_tree_attr(2).

use std::ffi::{CStr, CString, c_int, c_long, c_uint};
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use bitflags::bitflags;
use nix::NixPath;
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::statvfs::{FsFlags, fstatvfs};

bitflags! {
    /// Per-mount attributes (`MOUNT_ATTR_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct MountAttributes: u64 {
        /// Read-only.
        const RDONLY = libc::MOUNT_ATTR_RDONLY;
        /// Ignores set-uid bits and file capabilities.
        const NOSUID = libc::MOUNT_ATTR_NOSUID;
        /// Device nodes cannot be opened.
        const NODEV = libc::MOUNT_ATTR_NODEV;
        /// Programs cannot be executed, and libraries cannot be loaded.
        const NOEXEC = libc::MOUNT_ATTR_NOEXEC;
    }
}

/// Clones the mount under a descriptor into a detached mount, with its submounts if `depth` is `AT_RECURSIVE`.
pub(crate) fn clone_mount(fd: BorrowedFd<'_>, depth: c_int) -> Result<OwnedFd, Errno> {
    let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | at(libc::AT_EMPTY_PATH | depth);
    // SAFETY: open_tree reads a NUL-terminated path, which the literal is, and the fd is open while borrowed.
    let ret = unsafe { libc::syscall(libc::SYS_open_tree, fd.as_raw_fd(), c"".as_ptr(), flags) };
    descriptor(answer(libc::SYS_open_tree, ret)?)
}

/// Clones the mount at a name in a directory into a detached mount with other attributes and propagation
/// (`MS_PRIVATE`). A symlink is not followed.
///
/// `ENOSYS` before Linux 6.15.
pub(crate) fn clone_mount_with(
    directory: BorrowedFd<'_>,
    name: &CStr,
    set: MountAttributes,
    clear: MountAttributes,
    propagation: u64,
) -> Result<OwnedFd, Errno> {
    let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | at(libc::AT_SYMLINK_NOFOLLOW);
    let attr = mount_attr(set, clear, propagation);
    let (fd, name, size) = (
        directory.as_raw_fd(),
        name.as_ptr(),
        mem::size_of_val(&attr),
    );
    // SAFETY: the kernel reads `size` bytes of `attr`, which lives until the call returns; the name is NUL-terminated.
    let ret = unsafe { libc::syscall(SYS_OPEN_TREE_ATTR, fd, name, flags, &raw const attr, size) };
    descriptor(Errno::result(ret)?)
}

/// Attaches a detached mount on top of the file that a descriptor refers to.
pub(crate) fn attach(mount: BorrowedFd<'_>, target: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = libc::MOVE_MOUNT_F_EMPTY_PATH | libc::MOVE_MOUNT_T_EMPTY_PATH;
    let empty = c"".as_ptr();
    // SAFETY: both paths are NUL-terminated literals and both descriptors are open while borrowed.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            mount.as_raw_fd(),
            empty,
            target.as_raw_fd(),
            empty,
            flags,
        )
    };
    answer(libc::SYS_move_mount, ret).map(drop)
}

/// Sets and clears attributes of the mount whose root the descriptor refers to, and optionally its propagation
/// (`MS_PRIVATE`, `MS_SLAVE`, `MS_SHARED`).
pub(crate) fn set_attributes(
    mount: BorrowedFd<'_>,
    set: MountAttributes,
    clear: MountAttributes,
    propagation: Option<u64>,
) -> Result<(), Errno> {
    set_attributes_to(0, mount, set, clear, propagation)
}

/// Does the same, to its submounts too if `depth` is `AT_RECURSIVE`.
pub(crate) fn set_attributes_to(
    depth: c_int,
    mount: BorrowedFd<'_>,
    set: MountAttributes,
    clear: MountAttributes,
    propagation: Option<u64>,
) -> Result<(), Errno> {
    let attr = mount_attr(set, clear, propagation.unwrap_or(0));
    let (fd, empty, size) = (mount.as_raw_fd(), c"".as_ptr(), mem::size_of_val(&attr));
    // SAFETY: the kernel reads `size` bytes of `attr`, which lives until the call returns; the path is NUL-terminated.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            fd,
            empty,
            libc::AT_EMPTY_PATH | depth,
            &raw const attr,
            size,
        )
    };
    answer(libc::SYS_mount_setattr, ret).map(drop)
}

fn mount_attr(set: MountAttributes, clear: MountAttributes, propagation: u64) -> libc::mount_attr {
    libc::mount_attr {
        attr_set: set.bits(),
        attr_clr: clear.bits(),
        propagation,
        userns_fd: 0,
    }
}

/// Makes a detached tmpfs whose root has permission bits `mode`, with the given attributes.
pub(crate) fn new_tmpfs(mode: u32, attributes: MountAttributes) -> Result<OwnedFd, Errno> {
    let mode = CString::new(format!("{mode:o}")).map_err(|_| Errno::EINVAL)?;
    let options = [(c"source", c"tmpfs"), (c"mode", mode.as_c_str())];
    new_filesystem(c"tmpfs", &options, attributes)
}

/// Makes a detached overlay of these directories (in the format of the `lowerdir` option) without an upper directory,
/// so no privilege can make it writable.
pub(crate) fn new_overlay(lower: &CStr, attributes: MountAttributes) -> Result<OwnedFd, Errno> {
    new_filesystem(c"overlay", &[(c"lowerdir", lower)], attributes)
}

/// Makes a filesystem and a detached mount of it.
fn new_filesystem(
    kind: &CStr,
    options: &[(&CStr, &CStr)],
    attributes: MountAttributes,
) -> Result<OwnedFd, Errno> {
    // SAFETY: fsopen reads a NUL-terminated name.
    let ret = unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), FSOPEN_CLOEXEC) };
    let context = descriptor(answer(libc::SYS_fsopen, ret)?)?;
    for option in options {
        configure(&context, FSCONFIG_SET_STRING, Some(*option))?;
    }
    configure(&context, FSCONFIG_CMD_CREATE, None)?;
    // SAFETY: fsmount takes a descriptor, open here, and two integers.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_fsmount,
            context.as_raw_fd(),
            FSMOUNT_CLOEXEC,
            attributes.bits(),
        )
    };
    descriptor(answer(libc::SYS_fsmount, ret)?)
}

// The attributes have the same bits in mount_setattr(2), mount(2) and statvfs(3).
const _: () = {
    assert!(libc::MOUNT_ATTR_RDONLY == libc::MS_RDONLY && libc::ST_RDONLY == libc::MS_RDONLY);
    assert!(libc::MOUNT_ATTR_NOSUID == libc::MS_NOSUID && libc::ST_NOSUID == libc::MS_NOSUID);
    assert!(libc::MOUNT_ATTR_NODEV == libc::MS_NODEV && libc::ST_NODEV == libc::MS_NODEV);
    assert!(libc::MOUNT_ATTR_NOEXEC == libc::MS_NOEXEC && libc::ST_NOEXEC == libc::MS_NOEXEC);
};

impl MountAttributes {
    /// Returns them as flags of mount(2).
    pub(crate) fn flags(self) -> MsFlags {
        MsFlags::from_bits_truncate(self.bits())
    }
}

impl From<FsFlags> for MountAttributes {
    fn from(flags: FsFlags) -> Self {
        Self::from_bits_truncate(flags.bits())
    }
}

/// Returns the attributes of the mount that a descriptor is on.
pub(crate) fn attributes(fd: BorrowedFd<'_>) -> Result<MountAttributes, Errno> {
    Ok(fstatvfs(fd)?.flags().into())
}

/// Replaces the attributes of a mount by mount(2), by a name of its root; fails without the attributes that a user
/// namespace has locked. The kernel keeps how times of access are recorded if no flag says it. Allocates nothing.
pub(crate) fn remount(
    name: &(impl NixPath + ?Sized),
    attributes: MountAttributes,
) -> Result<(), Errno> {
    let none = None::<&CStr>;
    let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | attributes.flags();
    mount(none, name, none, flags, none)
}

/// The position of a descriptor in the mount table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MountPlace {
    /// The mount id, as in mountinfo; None before Linux 5.8.
    pub(crate) id: Option<u64>,
    /// True if the descriptor refers to the root of that mount; None before Linux 5.8.
    pub(crate) is_root: Option<bool>,
}

/// Returns the position of a descriptor in the mount table.
pub(crate) fn place(fd: BorrowedFd<'_>) -> Result<MountPlace, Errno> {
    let found = statx(fd, libc::STATX_MNT_ID)?;
    let root = MOUNT_ROOT & found.stx_attributes_mask;
    Ok(MountPlace {
        id: (found.stx_mask & libc::STATX_MNT_ID != 0).then_some(found.stx_mnt_id),
        is_root: (root != 0).then_some(found.stx_attributes & root != 0),
    })
}

/// Returns true if the mount that a descriptor is on is shared, so that mounts made on it propagate to its peers.
///
/// `ENOSYS` before Linux 6.8.
pub(crate) fn is_shared(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    // `struct statmount`; only two of its words are read.
    let mut reply = [0u64; 64];
    statmount(fd, STATMOUNT_MNT_BASIC, &mut reply)?;
    let [_, mask, _, _, _, _, _, _, _, propagation, ..] = reply;
    match mask & STATMOUNT_MNT_BASIC {
        0 => Err(Errno::ENOSYS),
        _ => Ok(propagation & libc::MS_SHARED != 0),
    }
}

/// Queries statmount(2) for the mount that a descriptor is on; returns the mask of the filled fields.
fn statmount(fd: BorrowedFd<'_>, wanted: u64, reply: &mut [u64]) -> Result<u64, Errno> {
    let found = statx(fd, STATX_MNT_ID_UNIQUE)?;
    if found.stx_mask & STATX_MNT_ID_UNIQUE == 0 {
        return Err(Errno::ENOSYS);
    }
    #[repr(C)]
    struct Request {
        size: u32,
        spare: u32,
        mount: u64,
        wanted: u64,
    }
    let request = Request {
        size: 24, // of the first version
        spare: 0,
        mount: found.stx_mnt_id,
        wanted,
    };
    let (to_reply, size) = (reply.as_mut_ptr(), mem::size_of_val(reply));
    // SAFETY: the kernel reads a request that states its size, and writes at most `size` bytes to a reply of integers.
    let ret = unsafe { libc::syscall(SYS_STATMOUNT, &raw const request, to_reply, size, 0) };
    Errno::result(ret)?;
    reply.get(1).copied().ok_or(Errno::EINVAL)
}

/// Source of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountSource {
    /// Filesystem type.
    pub(crate) kind: Vec<u8>,
    /// Directory of the filesystem that is mounted.
    pub(crate) root: Vec<u8>,
}

/// Returns the filesystem type and root directory of the mount that a descriptor is on.
///
/// `ENOSYS` before Linux 6.8, `EOVERFLOW` for a long directory name.
pub(crate) fn describe(fd: BorrowedFd<'_>) -> Result<MountSource, Errno> {
    const WORDS: usize = 64;
    let mut reply = [0u64; WORDS + 32]; // the structure, then its strings
    let mask = statmount(fd, STATMOUNT_FS_TYPE | STATMOUNT_MNT_ROOT, &mut reply)?;
    if mask & STATMOUNT_FS_TYPE == 0 || mask & STATMOUNT_MNT_ROOT == 0 {
        return Err(Errno::ENOSYS);
    }
    let bytes: Vec<u8> = reply.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let text = |at: usize| {
        let offset = bytes.get(at..at + 4)?.try_into().ok()?;
        let start = usize::try_from(u32::from_ne_bytes(offset)).ok()?;
        let text = bytes.get(WORDS * 8..)?.get(start..)?;
        text.split(|byte| *byte == 0).next().map(<[u8]>::to_vec)
    };
    // Offsets of `fs_type` and `mnt_root` in `struct statmount`.
    let (kind, root) = (text(36), text(104));
    Ok(MountSource {
        kind: kind.ok_or(Errno::EINVAL)?,
        root: root.ok_or(Errno::EINVAL)?,
    })
}

fn statx(fd: BorrowedFd<'_>, mask: c_uint) -> Result<libc::statx, Errno> {
    let mut buffer = mem::MaybeUninit::<libc::statx>::zeroed();
    let (raw, empty, flags) = (
        fd.as_raw_fd(),
        c"".as_ptr(),
        libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW,
    );
    // SAFETY: the kernel writes at most one `struct statx`, for which `buffer` has room; the path is NUL-terminated.
    let ret = unsafe { libc::statx(raw, empty, flags, mask, buffer.as_mut_ptr()) };
    match answer(libc::SYS_statx, ret.into()) {
        // The C library emulates statx on kernels that lack it, but not if a sandbox forbids the call.
        Err(Errno::ENOSYS) => {}
        done => drop(done?),
    }
    // SAFETY: the buffer was zeroed, a valid value for these integers, and then filled by the kernel.
    Ok(unsafe { buffer.assume_init() })
}

const FSOPEN_CLOEXEC: c_uint = 1;
const FSMOUNT_CLOEXEC: c_uint = 1;
const FSCONFIG_SET_STRING: c_uint = 1;
const FSCONFIG_CMD_CREATE: c_uint = 6;
/// `STATX_ATTR_MOUNT_ROOT`.
const MOUNT_ROOT: u64 = 0x2000;
/// Linux 6.8; the libc crate lacks these constants and, on some architectures, the call.
const STATX_MNT_ID_UNIQUE: c_uint = 0x4000;
const STATMOUNT_MNT_BASIC: u64 = 2;
const STATMOUNT_MNT_ROOT: u64 = 8;
const STATMOUNT_FS_TYPE: u64 = 0x20;
const SYS_STATMOUNT: c_long = 457; // as all calls since Linux 5.1, the same everywhere
const SYS_OPEN_TREE_ATTR: c_long = 467;

fn configure(
    context: &OwnedFd,
    command: c_uint,
    pair: Option<(&CStr, &CStr)>,
) -> Result<(), Errno> {
    let (key, value) = pair.map_or((std::ptr::null(), std::ptr::null()), |(k, v)| {
        (k.as_ptr(), v.as_ptr())
    });
    let fd = context.as_raw_fd();
    // SAFETY: fsconfig reads key and value as NUL-terminated strings for SET_STRING and ignores them for CMD_CREATE.
    let ret = unsafe { libc::syscall(libc::SYS_fsconfig, fd, command, key, value, 0 as c_int) };
    answer(libc::SYS_fsconfig, ret).map(drop)
}

#[allow(clippy::cast_sign_loss, reason = "AT_ flags are small and positive")]
fn at(flag: c_int) -> c_uint {
    flag as c_uint
}

/// Converts a call's return value. Maps the `EPERM` of a sandbox's filter to `ENOSYS`, because the call is unavailable
/// either way, while the kernel's own `EPERM` concerns the arguments or the privileges.
fn answer(call: c_long, ret: c_long) -> Result<c_long, Errno> {
    match Errno::result(ret) {
        Err(Errno::EPERM) if is_forbidden(call) => Err(Errno::ENOSYS),
        done => done,
    }
}

/// Returns true if a call of this module fails with `EPERM` whatever its arguments.
fn is_forbidden(call: c_long) -> bool {
    let (null, invalid): (c_long, c_long) = (0, -1);
    // SAFETY: each of these calls rejects its invalid descriptor, flags or first pointer before it does anything. None
    // writes through a pointer before that.
    let ret = unsafe { libc::syscall(call, invalid, null, invalid, null, invalid) };
    Errno::result(ret) == Err(Errno::EPERM)
}

fn descriptor(ret: c_long) -> Result<OwnedFd, Errno> {
    let fd = RawFd::try_from(ret).map_err(|_| Errno::EBADF)?;
    // SAFETY: the call returned a new descriptor that has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use nix::sched::{CloneFlags, unshare};
    use std::fs::File;
    use std::os::fd::AsFd;

    /// Needs Linux 6.8.
    #[test]
    #[ignore = "needs root"]
    fn shared_mounts_are_recognised() {
        let dir = tempfile::tempdir().unwrap();
        let of_thread = || {
            unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).unwrap();
            let none = None::<&str>;
            let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            mount(none, "/", none, private, none).unwrap();
            mount(none, dir.path(), Some("tmpfs"), MsFlags::empty(), none).unwrap();
            let file = File::create(dir.path().join("file")).unwrap();
            for (flag, shared) in [
                (MsFlags::MS_PRIVATE, false),
                (MsFlags::MS_SHARED, true),
                (MsFlags::MS_SLAVE, false),
            ] {
                mount(none, dir.path(), none, flag, none).unwrap();
                assert!([Ok(shared), Err(Errno::ENOSYS)].contains(&is_shared(file.as_fd())));
            }
        };
        std::thread::scope(|scope| scope.spawn(of_thread).join().unwrap());
    }
}
