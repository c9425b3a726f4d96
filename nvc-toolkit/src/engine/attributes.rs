//! Preserves extended attributes of replaced files: labels, access lists, and our own.

use std::path::Path;

use rustix::fs::{XattrFlags, getxattr, listxattr, setxattr};

/// The attribute with the file's original content.
const OWN: &str = "user.nvidia-ctk.undo";

/// Copies the attributes of one file to another, except ours. Best effort: not every filesystem supports them.
pub(super) fn copy(from: &Path, to: &Path) {
    let mut names = vec![0; 64 << 10];
    let Ok(length) = listxattr(from, &mut names) else {
        return;
    };
    let mut value = vec![0; 64 << 10];
    for name in names[..length].split(|&byte| byte == 0) {
        if name.is_empty() || name == OWN.as_bytes() {
            continue;
        }
        if let Ok(length) = getxattr(from, name, &mut value) {
            let _ = setxattr(to, name, &value[..length], XattrFlags::empty());
        }
    }
}

/// Sets our attribute; returns false if the filesystem rejects it.
pub(super) fn set(path: &Path, text: &str) -> bool {
    setxattr(path, OWN, text.as_bytes(), XattrFlags::empty()).is_ok()
}

/// Reads our attribute.
pub(super) fn get(path: &Path) -> Option<String> {
    let mut value = vec![0; 64 << 10];
    let length = getxattr(path, OWN, &mut value).ok()?;
    value.truncate(length);
    String::from_utf8(value).ok()
}
