//! Wraps calls on open files that nix lacks or restricts: flock(2), getdents64(2), FIONREAD.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;

/// Locks a file for this open file description alone, as flock(2) does. nix's lock panics if it cannot be released.
///
/// # Errors
/// `EWOULDBLOCK` if another has locked it; the system's.
pub(crate) fn try_lock(file: impl AsFd) -> Result<(), Errno> {
    flock(file, libc::LOCK_EX | libc::LOCK_NB)
}

/// Releases a lock.
///
/// # Errors
/// The system's.
pub(crate) fn unlock(file: impl AsFd) -> Result<(), Errno> {
    flock(file, libc::LOCK_UN)
}

fn flock(file: impl AsFd, operation: c_int) -> Result<(), Errno> {
    // SAFETY: the call takes no pointers, and the descriptor is open while borrowed.
    let ret = unsafe { libc::flock(file.as_fd().as_raw_fd(), operation) };
    Errno::result(ret).map(drop)
}

/// Replaces a buffer's content by the next entries of a directory (struct linux_dirent64), as many as fit into its
/// capacity. Leaves it empty after the last one.
///
/// # Errors
/// `EINVAL` if not even one fits; the system's.
pub(crate) fn read_entries(directory: impl AsFd, buffer: &mut Vec<u8>) -> Result<(), Errno> {
    buffer.clear();
    let fd = directory.as_fd().as_raw_fd();
    let room = buffer.spare_capacity_mut();
    // SAFETY: the kernel writes at most that many bytes there; the memory is borrowed, and the descriptor open, meanwhile.
    let ret = unsafe { libc::syscall(libc::SYS_getdents64, fd, room.as_mut_ptr(), room.len()) };
    let length = usize::try_from(Errno::result(ret)?).map_err(|_| Errno::EOVERFLOW)?;
    // SAFETY: the kernel has written so many bytes, and not more than there is room for.
    unsafe { buffer.set_len(length) };
    Ok(())
}

/// Returns the number of bytes that can be read from a socket at once.
///
/// # Errors
/// The system's.
pub(crate) fn waiting_bytes(socket: impl AsFd) -> Result<usize, Errno> {
    let mut count: c_int = 0;
    // SAFETY: FIONREAD writes one int, which is borrowed for the call.
    let ret = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::FIONREAD, &raw mut count) };
    Errno::result(ret)?;
    usize::try_from(count).map_err(|_| Errno::EOVERFLOW)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs::{self, File};
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_lock_excludes_others_until_it_is_released() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let [one, other] = [(); 2].map(|()| File::open(file.path()).unwrap());
        try_lock(&one).unwrap();
        assert_eq!(try_lock(&one), Ok(()));
        assert_eq!(try_lock(&other), Err(Errno::EWOULDBLOCK));
        unlock(&one).unwrap();
        assert_eq!(try_lock(&other), Ok(()));
    }

    #[test]
    fn entries_arrive_in_parts() {
        let dir = tempfile::tempdir().unwrap();
        for name in 0..40 {
            fs::write(dir.path().join(name.to_string()), "").unwrap();
        }
        let directory = File::open(dir.path()).unwrap();
        let mut buffer = Vec::with_capacity(256);
        let mut parts = 0;
        loop {
            read_entries(&directory, &mut buffer).unwrap();
            assert!(buffer.len() <= buffer.capacity());
            if buffer.is_empty() {
                break;
            }
            parts += 1;
        }
        assert!(parts > 3, "{parts}");
        let directory = File::open(dir.path()).unwrap();
        assert_eq!(
            read_entries(&directory, &mut Vec::new()),
            Err(Errno::EINVAL)
        );
        let file = File::open("/dev/null").unwrap();
        assert_eq!(read_entries(file, &mut buffer), Err(Errno::ENOTDIR));
    }

    #[test]
    fn waiting_bytes_are_counted() {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        assert_eq!(waiting_bytes(&here), Ok(0));
        there.write_all(b"12345").unwrap();
        assert_eq!(waiting_bytes(&here), Ok(5));
        here.read_exact(&mut [0; 2]).unwrap();
        assert_eq!(waiting_bytes(&here), Ok(3));
    }
}
