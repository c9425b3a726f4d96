//! Preserves extended attributes of replaced files: labels, access lists, and others.

use std::ffi::CStr;
use std::fs::File;
use std::io;

use libnvc::xattr;
use nix::errno::Errno;

/// An attribute that versions up to 1.20.2 set, with the file's original content.
const FORMER: &CStr = c"user.nvidia-ctk.undo";

/// SELinux's label.
const LABEL: &CStr = c"security.selinux";

/// Copies the attributes of one file to another, except that one. Best effort: not every filesystem supports them.
pub(super) fn copy(from: &File, to: &File) {
    let names = xattr::list(from).unwrap_or_default();
    for name in names.iter().filter(|name| name.as_c_str() != FORMER) {
        if let Ok(value) = xattr::get(from, name) {
            let _ = xattr::set(to, name, &value);
        }
    }
}

/// Copies the old file's label to the new one, if files have labels.
pub(super) fn copy_label(from: &File, to: &File) -> io::Result<()> {
    let label = match xattr::get(from, LABEL) {
        Err(Errno::ENODATA | Errno::EOPNOTSUPP) => return Ok(()),
        label => label?,
    };
    match xattr::set(to, LABEL, &label) {
        // Without SELinux in the kernel, a label that comes from an image cannot be set.
        Err(Errno::EOPNOTSUPP) => Ok(()),
        done => Ok(done?),
    }
}
