//! Writes an application profile that limits the driver's EGL to the container's GPUs.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, minor, statat};
use rustix::io::Errno;

use crate::Result;
use crate::arguments::Given;
use crate::report::Report;
use crate::root::{MOST_NAMES, Root};

const PROFILE: &str = "/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf";

/// The profile's mask has 64 bits.
const MOST: u32 = 64;

pub(super) fn run(_given: &Given, root: &Root, report: &mut Report) -> Result<()> {
    let minors = minors_of(root)?;
    // One line: the image can have any number of nodes.
    let mut beyond = minors.iter().filter(|&&minor| minor >= MOST);
    if let Some(minor) = beyond.next() {
        let more = match beyond.count() {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        report.warning(&format!(
            "device with minor number {minor} is beyond the profile's {MOST}{more}"
        ));
    }
    let fits = minors.iter().filter(|&&minor| minor < MOST);
    let mask = fits.fold(0_u64, |mask, minor| mask | 1 << minor);
    if mask == 0 {
        return Ok(());
    }
    let path = Path::new(PROFILE);
    let done = root.place(path, 0o555).and_then(|place| {
        let text = text(mask);
        place
            .write(text.as_bytes(), 0o444)
            .map_err(|errno| root.failure("write failed", path, errno))
    });
    // EGL works without it: a read-only root must not prevent the container from starting.
    if let Err(failure) = done {
        report.warning(&failure.to_string());
    }
    Ok(())
}

/// Returns the minor numbers of the GPUs whose nodes the container has.
pub(super) fn minors_of(root: &Root) -> Result<Vec<u32>> {
    let dev = Path::new("/dev");
    let Some(directory) = root.directory(dev)? else {
        return Ok(Vec::new());
    };
    minors(directory.as_fd()).map_err(|errno| root.failure("reading failed", dev, errno))
}

/// Returns the minor numbers of the character devices `nvidia<digits>`.
fn minors(directory: std::os::fd::BorrowedFd<'_>) -> Result<Vec<u32>, Errno> {
    let mut minors = BTreeSet::new();
    for entry in Dir::read_from(directory)?.take(MOST_NAMES) {
        let entry = entry?;
        let digits = entry.file_name().to_bytes().strip_prefix(b"nvidia");
        if !digits.is_some_and(|digits| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit))
        {
            continue;
        }
        let Ok(stat) = statat(directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) else {
            continue;
        };
        if FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice {
            minors.insert(minor(stat.st_rdev));
        }
    }
    Ok(minors.into_iter().collect())
}

fn text(mask: u64) -> String {
    format!(
        "{{\"profiles\":[{{\"name\":\"_container_\",\"settings\":[\"EGLVisibleDGPUDevices\",{mask:#x}]}}],\
         \"rules\":[{{\"pattern\":[],\"profile\":\"_container_\"}}]}}"
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_mask_is_hexadecimal() {
        assert!(super::text(9).contains("\"EGLVisibleDGPUDevices\",0x9]"));
    }
}
