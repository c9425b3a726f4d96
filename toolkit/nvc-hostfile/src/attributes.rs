//! Preserves extended attributes of replaced files: labels, access lists, and our own.

use std::ffi::CStr;
use std::fs::File;
use std::io;

use libnvc::xattr;
use nix::errno::Errno;

/// The attribute with the file's original content.
const OWN: &CStr = c"user.nvidia-ctk.undo";

/// SELinux's label.
const LABEL: &CStr = c"security.selinux";

/// Copies the attributes of one file to another, except ours. Best effort: not every filesystem supports them.
pub(super) fn copy(from: &File, to: &File) {
    let names = xattr::list(from).unwrap_or_default();
    for name in names.iter().filter(|name| name.as_c_str() != OWN) {
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

/// Sets our attribute; returns false if the filesystem rejects it.
pub(super) fn set(file: &File, text: &str) -> bool {
    xattr::set(file, OWN, text.as_bytes()).is_ok()
}

/// Reads our attribute.
pub(super) fn get(file: &File) -> Option<String> {
    String::from_utf8(xattr::get(file, OWN).ok()?).ok()
}
