//! Makes the loader find the libraries of some directories.
//!
//! libnvc does this as for its other callers: without running a program if the image's own cache is valid, otherwise
//! with the host's ldconfig in a sandbox. docs/ldconfig.md says what happens if the loader's files cannot be changed,
//! because they are on a volume.

use libnvc::plan::{Intent, LibraryPath, Need, Place, What};
use libnvc::{ContainerPath, Error, ErrorKind, Result};
use nvc_options::Given;

pub(super) fn intents(given: &Given) -> Result<Vec<Intent>> {
    let need = Need::Required;
    let folders = folders(given)?;
    if folders.is_empty() {
        return Ok(Vec::new());
    }
    let what = What::LibraryPath(LibraryPath {
        directories: folders.into_iter().map(Place::At).collect(),
        after_hooks: true,
    });
    Ok(vec![Intent { need, what }])
}

/// Returns the requested directories without duplicates.
fn folders(given: &Given) -> Result<Vec<ContainerPath>> {
    let mut folders: Vec<ContainerPath> = Vec::new();
    for folder in given.list("folder").filter(|folder| !folder.is_empty()) {
        if folder.contains(['\n', '\0']) || !folder.starts_with('/') {
            let text = format!("invalid --folder \"{folder}\"");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let folder = ContainerPath::new(folder);
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    Ok(folders)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::arguments::options;

    /// Returns the directories that the arguments of update-ldcache name, or the error.
    fn requested(words: &[&str]) -> Result<Vec<String>> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let hook = super::super::find("update-ldcache");
        let known = hook.map_or(&[][..], |hook| hook.options);
        let given = options(known, &words);
        let folders = given.and_then(|given| folders(&given));
        let text = |folder: &ContainerPath| folder.to_string();
        folders.map(|folders| folders.iter().map(text).collect())
    }

    #[test]
    fn folders_are_absolute() {
        let folders = requested(&["--folder=/a,/b", "--folder", "/a", "--folder="]);
        assert_eq!(folders.unwrap(), ["/a", "/b"]);
        assert_eq!(requested(&["--folder", "/-x"]).unwrap(), ["/-x"]);
        // ldconfig would take the first for an option; its configuration has one folder on a line.
        for folder in ["-x", "--help", "-C/etc/passwd", "x", "/a\n/b", "../x"] {
            let expected = format!("invalid --folder \"{folder}\"");
            for words in [
                &[&*format!("--folder={folder}")][..],
                &["--folder", folder],
                &["--folder=/a", "--folder", folder],
            ] {
                assert_eq!(requested(words).unwrap_err().message(), expected);
            }
        }
    }
}
