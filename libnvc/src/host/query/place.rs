//! Loads NVML or libcuda into the query process: from the caller's directories, by name, or from the usual directories.
//!
//! The loader knows the directories of the driver root's ld.so.cache. A driver root often has none, and some hosts have
//! none either; the loader then only knows the directories it was built with. So the directories that the caller names
//! are searched first, and the usual ones last. A host with a cache pays nothing: the first name it tries is right.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};

use crate::host::arch::Abi;
use crate::host::libraries::directories::{abi_of, all};
use crate::path::HostPath;

/// What the loader says about a library that it finds nowhere, after the library's name.
const NOWHERE: &str = ": cannot open shared object file: No such file or directory";

/// Loads a library, inside the driver root: from the first of `directories` that has it; by name; from the first usual
/// directory that has it. `text` returns the loader's text of an error.
pub(super) fn load<T, E>(
    name: &str,
    directories: &[OsString],
    load: impl Fn(&OsStr) -> Result<T, E>,
    text: impl Fn(&E) -> &str,
) -> Result<T, E> {
    if let Some(path) = find(name, directories.iter().map(Path::new)) {
        return load(path.as_os_str());
    }
    let failure = match load(name.as_ref()) {
        Err(failure) if text(&failure).strip_prefix(name) == Some(NOWHERE) => failure,
        // Report a library that exists but cannot be loaded.
        loaded => return loaded,
    };
    let usual: Vec<HostPath> = all().collect();
    match find(name, usual.iter().map(HostPath::as_path)) {
        Some(path) => load(path.as_os_str()),
        None => Err(failure),
    }
}

/// Returns the first library of this name for this process's ABI.
fn find<'p>(name: &str, directories: impl Iterator<Item = &'p Path>) -> Option<PathBuf> {
    let is_native = |path: &PathBuf| {
        let file = File::open(path).ok();
        file.and_then(|file| abi_of(&file)) == Some(Abi::Native)
    };
    directories
        .map(|directory| directory.join(name))
        .find(is_native)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::RefCell;
    use std::fs;

    use super::*;
    use crate::elf;

    /// Loads `x.so` with a loader that knows the names in `known`; returns what it was asked for, and the result.
    fn tried(directories: &[&Path], known: &[&str], refusal: &str) -> (Vec<String>, bool) {
        let asked = RefCell::new(Vec::new());
        let loader = |name: &OsStr| {
            let name = name.to_string_lossy().into_owned();
            let is_known = known.contains(&name.as_str()) || name.starts_with('/');
            asked.borrow_mut().push(name.clone());
            is_known.then_some(()).ok_or(format!("{name}{refusal}"))
        };
        let directories: Vec<OsString> = directories.iter().map(|dir| (*dir).into()).collect();
        let done = load("x.so", &directories, loader, String::as_str).is_ok();
        (asked.into_inner(), done)
    }

    #[test]
    fn directories_of_the_caller_come_first() {
        let [with, narrow, without] = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let path = with.path().join("x.so");
        fs::write(&path, elf::tests::build(None, Some(&[]))).unwrap();
        fs::write(narrow.path().join("x.so"), b"\x7fELF\x01\x01\x01").unwrap();
        let path = path.to_string_lossy().into_owned();
        let all = [without.path(), narrow.path(), with.path()];
        assert_eq!(tried(&all, &["x.so"], NOWHERE), (vec![path], true));
        let by_name = (vec!["x.so".to_owned()], true);
        assert_eq!(tried(&all[..2], &["x.so"], NOWHERE), by_name);
        assert_eq!(tried(&[], &["x.so"], NOWHERE), by_name);
    }

    #[test]
    fn a_library_that_is_nowhere_or_broken_is_told_by_its_name() {
        for refusal in [NOWHERE, ": file too short"] {
            let by_name = (vec!["x.so".to_owned()], false);
            assert_eq!(tried(&[], &[], refusal), by_name);
        }
    }
}
