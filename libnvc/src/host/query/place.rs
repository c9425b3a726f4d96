//! Loads NVML or libcuda into the query process: that of the kernel module's version if there is one, else what the
//! loader finds.
//!
//! The directories that the caller names come first, then the usual ones, as in [`search`](crate::host::search). The
//! loader comes last: a cache may name the former driver's library, and a driver root often has none. The process has no
//! procfs, so it looks by path.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};

use crate::elf::Library;
use crate::host::arch::Abi;
use crate::host::search::usual;
use crate::path::HostPath;

/// What the loader says about a library that it finds nowhere, after the library's name.
const NOWHERE: &str = ": cannot open shared object file: No such file or directory";

/// Loads a library, inside the driver root. `version` is the kernel module's, if it is known; `text` returns the loader's
/// text of an error.
pub(super) fn load<T, E>(
    name: &str,
    version: Option<&str>,
    directories: &[OsString],
    load: impl Fn(&OsStr) -> Result<T, E>,
    text: impl Fn(&E) -> &str,
) -> Result<T, E> {
    let named = || directories.iter().map(PathBuf::from);
    let usual = usual(Abi::Native).into_iter();
    let usual: Vec<PathBuf> = usual.map(|path: HostPath| path.as_path().into()).collect();
    let versioned = version.zip(name.strip_suffix(".1"));
    let versioned = versioned.map(|(version, stem)| format!("{stem}.{version}"));
    let of_module = versioned.and_then(|name| find(&name, named().chain(usual.iter().cloned())));
    if let Some(path) = of_module.or_else(|| find(name, named())) {
        return load(path.as_os_str());
    }
    let failure = match load(name.as_ref()) {
        Err(failure) if text(&failure).strip_prefix(name) == Some(NOWHERE) => failure,
        // Report a library that exists but cannot be loaded.
        loaded => return loaded,
    };
    match find(name, usual.into_iter()) {
        Some(path) => load(path.as_os_str()),
        None => Err(failure),
    }
}

/// Returns the first library of this name for this process's ABI.
fn find(name: &str, directories: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    let abi = |path: &Path| Abi::of_elf(Library::open(File::open(path).ok()?).ok()?.identity());
    directories
        .map(|directory| directory.join(name))
        .find(|path| abi(path) == Some(Abi::Native))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::RefCell;
    use std::fs;

    use super::*;
    use crate::elf;

    /// Loads `x.so.1` with a loader that knows the names in `known`; returns what it was asked for, and the result.
    fn tried(
        directories: &[&Path],
        version: Option<&str>,
        known: &[&str],
        refusal: &str,
    ) -> (Vec<String>, bool) {
        let asked = RefCell::new(Vec::new());
        let loader = |name: &OsStr| {
            let name = name.to_string_lossy().into_owned();
            let is_known = known.contains(&name.as_str()) || name.starts_with('/');
            asked.borrow_mut().push(name.clone());
            is_known.then_some(()).ok_or(format!("{name}{refusal}"))
        };
        let directories: Vec<OsString> = directories.iter().map(|dir| (*dir).into()).collect();
        let done = load("x.so.1", version, &directories, loader, String::as_str).is_ok();
        (asked.into_inner(), done)
    }

    #[test]
    fn directories_of_the_caller_come_first() {
        let [with, narrow, without] = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let path = with.path().join("x.so.1");
        fs::write(&path, elf::tests::build(None, Some(&[]))).unwrap();
        fs::write(narrow.path().join("x.so.1"), b"\x7fELF\x01\x01\x01").unwrap();
        let path = path.to_string_lossy().into_owned();
        let all = [without.path(), narrow.path(), with.path()];
        let known = &["x.so.1"];
        assert_eq!(tried(&all, None, known, NOWHERE), (vec![path], true));
        let by_name = (vec!["x.so.1".to_owned()], true);
        assert_eq!(tried(&all[..2], None, known, NOWHERE), by_name);
        assert_eq!(tried(&[], Some("550.1"), known, NOWHERE), by_name);
    }

    #[test]
    fn the_modules_version_comes_before_a_link() {
        let [one, two] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let object = elf::tests::build(None, Some(&[]));
        fs::write(one.path().join("x.so.1"), &object).unwrap();
        let path = two.path().join("x.so.550.1");
        fs::write(&path, &object).unwrap();
        let path = path.to_string_lossy().into_owned();
        let both = [one.path(), two.path()];
        assert_eq!(
            tried(&both, Some("550.1"), &[], NOWHERE),
            (vec![path], true)
        );
        let link = one.path().join("x.so.1").to_string_lossy().into_owned();
        assert_eq!(
            tried(&both, Some("535.9"), &[], NOWHERE),
            (vec![link], true)
        );
    }

    #[test]
    fn a_library_that_is_nowhere_or_broken_is_told_by_its_name() {
        for refusal in [NOWHERE, ": file too short"] {
            let by_name = (vec!["x.so.1".to_owned()], false);
            assert_eq!(tried(&[], None, &[], refusal), by_name);
        }
    }
}
