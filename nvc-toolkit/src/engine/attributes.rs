//! Keeps extended attributes of files that are replaced: labels, access lists, and one of our own.

use std::path::Path;

use rustix::fs::{XattrFlags, getxattr, listxattr, setxattr};

/// The attribute that says what a file held before us.
const OWN: &str = "user.nvidia-ctk.undo";

/// Copies the attributes of one file to another, but for ours. Best effort: not every file system has them.
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

/// Sets ours; false if the file system does not take it.
pub(super) fn set(path: &Path, text: &str) -> bool {
    setxattr(path, OWN, text.as_bytes(), XattrFlags::empty()).is_ok()
}

/// Reads ours.
pub(super) fn get(path: &Path) -> Option<String> {
    let mut value = vec![0; 64 << 10];
    let length = getxattr(path, OWN, &mut value).ok()?;
    value.truncate(length);
    String::from_utf8(value).ok()
}
