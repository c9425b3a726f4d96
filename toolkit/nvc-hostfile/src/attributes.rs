//! Preserves extended attributes of replaced files: labels, access lists, and our own.

use std::fs::File;
use std::io;

use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fsetxattr};
use rustix::io::Errno;

/// The attribute with the file's original content.
const OWN: &str = "user.nvidia-ctk.undo";

/// SELinux's label.
const LABEL: &str = "security.selinux";

/// Copies the attributes of one file to another, except ours. Best effort: not every filesystem supports them.
pub(super) fn copy(from: &File, to: &File) {
    let mut names = vec![0; 64 << 10];
    let Ok(length) = flistxattr(from, &mut names) else {
        return;
    };
    let mut value = vec![0; 64 << 10];
    for name in names[..length].split(|&byte| byte == 0) {
        if name.is_empty() || name == OWN.as_bytes() {
            continue;
        }
        if let Ok(length) = fgetxattr(from, name, &mut value) {
            let _ = fsetxattr(to, name, &value[..length], XattrFlags::empty());
        }
    }
}

/// Copies the old file's label to the new one, if files have labels.
pub(super) fn copy_label(from: &File, to: &File) -> io::Result<()> {
    let mut label = vec![0; 256];
    let length = match fgetxattr(from, LABEL, &mut label) {
        Ok(length) => length,
        Err(Errno::NODATA | Errno::OPNOTSUPP) => return Ok(()),
        Err(number) => return Err(number.into()),
    };
    label.truncate(length);
    match fsetxattr(to, LABEL, &label, XattrFlags::empty()) {
        // Without SELinux in the kernel, a label that comes from an image cannot be set.
        Err(Errno::OPNOTSUPP) | Ok(()) => Ok(()),
        Err(number) => Err(number.into()),
    }
}

/// Sets our attribute; returns false if the filesystem rejects it.
pub(super) fn set(file: &File, text: &str) -> bool {
    fsetxattr(file, OWN, text.as_bytes(), XattrFlags::empty()).is_ok()
}

/// Reads our attribute.
pub(super) fn get(file: &File) -> Option<String> {
    let mut value = vec![0; 64 << 10];
    let length = fgetxattr(file, OWN, &mut value).ok()?;
    value.truncate(length);
    String::from_utf8(value).ok()
}
