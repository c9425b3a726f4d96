//! Protects the host's ldconfig from changes: by a read-only filesystem, or a sealed memfd.
//!
//! A process that executes the host's file inside a container exposes it there as /proc/PID/exe, for writing too
//! (CVE-2024-0135). If it is executed from an overlay of the program's directory without an upper layer, it cannot be
//! written: the filesystem itself is read-only, unlike a read-only mount of the host's, which mount_setattr(2) can
//! change. If no such overlay is available, the program is copied, which takes a millisecond more: the copy is not a
//! file of the host, and its seals prevent changes. If neither is possible, nothing runs.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use goblin::elf::Elf;
use goblin::elf::program_header::{PT_INTERP, ProgramHeader};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl, openat, readlink};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::{Mode, fchmod};

use crate::error::{Error, ErrorKind, Result, errno_of, errno_text};
use crate::hint::Setting;
use crate::inroot;
use crate::options::{Ldconfig, is_usual};
use crate::read_file;
use crate::sys::descriptors::above_streams;
use crate::sys::mount::{self, MountAttributes};

/// A program that cannot be changed.
#[derive(Debug)]
pub(in crate::apply) struct SealedProgram {
    /// The host's file.
    pub(super) path: PathBuf,
    /// The same file on a read-only filesystem, or a copy of it.
    pub(super) file: OwnedFd,
    /// The filesystem made for the file, if any. Freeing it takes the kernel a moment, so it is dropped when the
    /// program has started.
    _overlay: Option<OwnedFd>,
}

/// Kinds of files for execve(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Needs no other file.
    Static,
    /// Needs a loader and libraries.
    Dynamic,
    /// Needs an interpreter.
    Script,
    /// Not a program.
    Other,
}

/// A directory that every machine has. The kernel wants two layers if none is writable; names in the first layer have
/// precedence.
const OTHER_LAYER: &str = "/dev";

/// Limit of bytes read to find a file's kind; linkers put the program headers at the front.
const HEAD: usize = 4096;

/// Opens a program so that it cannot be changed, or the one that a script of this path wraps (Ubuntu's waits for
/// triggers).
///
/// With `unreadable` it is always copied, to an execute-only file: without capabilities a process that executes such a
/// file is not dumpable.
///
/// # Errors
/// `open failed: <path>: <cause>`; it is a script, dynamically linked, or not a program; it cannot be copied.
pub(super) fn seal(path: &Path, unreadable: bool) -> Result<SealedProgram> {
    let path = Ldconfig::real(path, Path::exists);
    let (file, kind) = open(&path)?;
    match kind {
        Kind::Static => {}
        Kind::Script => return Err(refused(&path, "is a script", "the program itself")),
        // Its loader and libraries would be the image's, so it would no longer be the host's program.
        Kind::Dynamic => return Err(refused(&path, "is dynamically linked", "a static one")),
        Kind::Other => return Err(refused(&path, "is not a program", "one")),
    }
    let on_overlay = if unreadable {
        Err(Errno::EACCES)
    } else {
        read_only(&file)
    };
    let (file, overlay) = match on_overlay {
        Ok((file, overlay)) => (file, Some(overlay)),
        Err(errno) => {
            log::debug!("copying {}: {}", path.display(), errno_text(errno));
            let mode = if unreadable { 0o111 } else { 0o555 };
            (copy(file, &path, Mode::from_bits_truncate(mode))?, None)
        }
    };
    Ok(SealedProgram {
        path,
        file,
        _overlay: overlay,
    })
}

pub(super) fn not_a_file(path: &Path) -> Error {
    let error = Error::new(ErrorKind::LdCache, "open failed").of(path.display());
    error.because("not a regular file")
}

fn refused(path: &Path, is: &str, wanted: &str) -> Error {
    let error = Error::new(ErrorKind::LdCache, "ldconfig cannot run confined");
    let error = error.of(format_args!("{} {is}", path.display()));
    error.hint(Setting::Ldconfig.between("let ", format!(" name {wanted}")))
}

fn open(path: &Path) -> Result<(File, Kind)> {
    let failed = |e: &std::io::Error| {
        let error = Error::file("open failed", path, errno_of(e)).with_kind(ErrorKind::LdCache);
        match error.errno() {
            Some(Errno::ENOENT) if is_usual(path) => error.hint(
                "this image's library cache needs one: run ldconfig in the image, or install it on the host",
            ),
            Some(Errno::ENOENT) => error.hint(
                "name one that exists, or auto, which needs none if the image's library cache is sound",
            ),
            _ => error,
        }
    };
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(OFlag::O_NONBLOCK.bits());
    let file = options.open(path).map_err(|e| failed(&e))?;
    let metadata = file.metadata().map_err(|e| failed(&e))?;
    if !metadata.is_file() {
        return Err(not_a_file(path));
    }
    let mut head = [0; HEAD];
    let length = file.read_at(&mut head, 0).map_err(|e| failed(&e))?;
    Ok((file, kind(head.get(..length).unwrap_or_default())))
}

fn kind(head: &[u8]) -> Kind {
    if head.starts_with(b"#!") {
        return Kind::Script;
    }
    match has_interpreter(head) {
        Some(true) => Kind::Dynamic,
        Some(false) => Kind::Static,
        None => Kind::Other,
    }
}

/// Returns true if an ELF program names a loader; None if the bytes are not the start of an ELF program.
pub fn has_interpreter(head: &[u8]) -> Option<bool> {
    let header = Elf::parse_header(head).ok()?;
    let context = goblin::container::Ctx::new(header.container().ok()?, header.endianness().ok()?);
    let offset = usize::try_from(header.e_phoff).ok()?;
    let count = usize::from(header.e_phnum);
    let table = ProgramHeader::parse(head, offset, count, context).ok()?;
    Some(table.iter().any(|header| header.p_type == PT_INTERP))
}

/// Opens the same file on an overlay of its directory; returns it with the overlay.
///
/// # Errors
/// `ENODEV` if there is no overlay without loading a kernel module; the system's.
fn read_only(file: &File) -> Result<(OwnedFd, OwnedFd), Errno> {
    let known = read_file::read_path("/proc/filesystems")?;
    if !known
        .split(|b| *b == b'\n')
        .any(|line| line == b"nodev\toverlay")
    {
        return Err(Errno::ENODEV);
    }
    let place = readlink(format!("/proc/self/fd/{}", file.as_raw_fd()).as_str())?;
    let place = Path::new(&place);
    let (Some(directory), Some(name)) = (place.parent(), place.file_name()) else {
        return Err(Errno::ENOENT);
    };
    let by_reference = OFlag::O_PATH | OFlag::O_CLOEXEC;
    let directory = nix::fcntl::open(directory, by_reference | OFlag::O_DIRECTORY, Mode::empty())?;
    // By its descriptor, because a path can contain the separators of the list of layers.
    let lower = format!("/proc/self/fd/{}:{OTHER_LAYER}", directory.as_raw_fd());
    let lower = CString::new(lower).map_err(|_| Errno::EINVAL)?;
    let attributes = MountAttributes::RDONLY | MountAttributes::NOSUID | MountAttributes::NODEV;
    let overlay = mount::new_overlay(&lower, attributes)?;
    let found = openat(
        &overlay,
        name,
        by_reference | OFlag::O_NOFOLLOW,
        Mode::empty(),
    )?;
    // Another file may have the name by now. An overlay may have its own inode numbers, but not its own times.
    let what =
        |file| inroot::stat(file).map(|s| (s.st_mode, s.st_size, s.st_ctime, s.st_ctime_nsec));
    if what(found.as_fd())? != what(file.as_fd())? {
        return Err(Errno::ESTALE);
    }
    Ok((above_streams(found)?, overlay))
}

fn copy(mut source: File, path: &Path, mode: Mode) -> Result<OwnedFd> {
    let failed = |operation: &str, errno| {
        let error = Error::file(operation, path, errno).with_kind(ErrorKind::LdCache);
        match errno {
            Errno::EACCES => error.hint("sysctl vm.memfd_noexec=2 forbids programs in memory"),
            _ => error,
        }
    };
    let mut copy = memory_file(path).map_err(|errno| failed("copying to memory failed", errno))?;
    // From file to file, for which the standard library uses the kernel's copy.
    let copied = std::io::copy(&mut source, &mut copy);
    copied.map_err(|e| failed("copying to memory failed", errno_of(&e)))?;
    fchmod(&copy, mode).map_err(|errno| failed("copying to memory failed", errno))?;
    let seals = SealFlag::F_SEAL_SEAL
        | SealFlag::F_SEAL_SHRINK
        | SealFlag::F_SEAL_GROW
        | SealFlag::F_SEAL_WRITE;
    fcntl(&copy, FcntlArg::F_ADD_SEALS(seals)).map_err(|errno| failed("sealing failed", errno))?;
    above_streams(copy.into()).map_err(|errno| failed("sealing failed", errno))
}

fn memory_file(path: &Path) -> Result<File, Errno> {
    const EXEC: MFdFlags = MFdFlags::from_bits_retain(0x10); // MFD_EXEC, Linux 6.3
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    // The name is for readers of /proc/PID/maps; the kernel accepts 249 bytes.
    let name = if path.as_os_str().len() < 250 {
        path
    } else {
        Path::new("ldconfig")
    };
    match memfd_create(name, flags | EXEC) {
        Err(Errno::EINVAL) => memfd_create(name, flags),
        done => done,
    }
    .map(File::from)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Builds a 64-bit ELF program with program headers of these types.
    fn program(types: &[u32]) -> Vec<u8> {
        let mut bytes = vec![0; 64 + 56 * types.len()];
        bytes[..8].copy_from_slice(b"\x7fELF\x02\x01\x01\0");
        bytes[16] = 2; // ET_EXEC
        bytes[18] = 62; // EM_X86_64
        bytes[20] = 1; // version
        bytes[32] = 64; // e_phoff
        bytes[52] = 64; // e_ehsize
        bytes[54] = 56; // e_phentsize
        bytes[56] = u8::try_from(types.len()).unwrap();
        for (number, kind) in types.iter().enumerate() {
            bytes[64 + 56 * number..][..4].copy_from_slice(&kind.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn tells_programs_apart() {
        let (load, dynamic) = (1, 2);
        let mut far = program(&[load]);
        far[33] = 0xff;
        for (bytes, expected) in [
            (program(&[load, load]), Kind::Static),
            (program(&[load, dynamic]), Kind::Static), // static-pie
            (program(&[load, PT_INTERP, dynamic]), Kind::Dynamic),
            (program(&[load])[..80].to_vec(), Kind::Other),
            (far, Kind::Other),
            (b"#!/bin/sh\n".to_vec(), Kind::Script),
            (b"\x7fELF".to_vec(), Kind::Other),
            (Vec::new(), Kind::Other),
        ] {
            let start = &bytes[..bytes.len().min(20)];
            assert_eq!(kind(&bytes), expected, "{start:?}");
        }
    }

    #[test]
    fn the_copy_cannot_be_changed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        std::fs::write(&path, program(&[1])).unwrap();
        let copy = File::from(copy(File::open(&path).unwrap(), &path, Mode::S_IXUSR).unwrap());
        assert_eq!(copy.metadata().unwrap().len(), 64 + 56);
        let denied = Some(libc::EPERM);
        assert_eq!(copy.write_at(b"x", 0).unwrap_err().raw_os_error(), denied);
        assert_eq!(copy.set_len(0).unwrap_err().raw_os_error(), denied);
    }

    /// As root of a machine with overlays; elsewhere it is a copy.
    #[test]
    fn executed_programs_cannot_be_opened_for_writing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a program, with: odd characters");
        std::fs::write(&path, program(&[1])).unwrap();
        let sealed = seal(&path, false).unwrap().file;
        let again = format!("/proc/self/fd/{}", sealed.as_raw_fd());
        assert_eq!(std::fs::read(&again).unwrap(), program(&[1]));
        let refused = OpenOptions::new().write(true).open(&again);
        if read_only(&File::open(&path).unwrap()).is_ok() {
            assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EROFS));
        } else {
            let denied = refused.unwrap().write_at(b"x", 0).unwrap_err();
            assert_eq!(denied.raw_os_error(), Some(libc::EPERM));
        }
        assert_eq!(std::fs::read(&path).unwrap(), program(&[1]));
    }

    #[test]
    fn scripts_stand_for_real_programs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ldconfig");
        let message = |path: &Path| seal(path, false).unwrap_err().message();
        let shown = path.display().to_string();
        assert_eq!(
            message(&path),
            format!("open failed: {shown}: no such file or directory")
        );
        std::fs::write(&path, "#!/bin/sh\n").unwrap();
        assert_eq!(
            message(&path),
            format!("ldconfig cannot run confined: {shown} is a script")
        );
        let real = dir.path().join("ldconfig.real");
        std::fs::write(&real, program(&[1])).unwrap();
        assert_eq!(seal(&path, false).unwrap().path, real);
        std::fs::write(&real, program(&[PT_INTERP])).unwrap();
        assert_eq!(
            message(&path),
            format!("ldconfig cannot run confined: {shown}.real is dynamically linked")
        );
        assert_eq!(
            message(dir.path()),
            format!("open failed: {}: not a regular file", dir.path().display())
        );
    }
}
