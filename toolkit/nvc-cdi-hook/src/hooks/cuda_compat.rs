//! Makes the loader search the image's CUDA compatibility libraries first, if they are newer than the driver.
//!
//! Writes their directory to ld.so.conf.d; update-ldcache, which runs later, updates the loader's cache.

mod note;
mod version;

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fstat, openat, statat};

use crate::arguments::Given;
use crate::report::Report;
use crate::root::{MOST_NAMES, Root, reopen};
use crate::{Failure, Result};
use note::Note;
use version::{is_newer, major};

const DIRECTORY: &str = "/usr/local/cuda/compat";
/// Sorts before all other files; a second run replaces it.
const CONF: &str = "/etc/ld.so.conf.d/00-compat-nvidia.conf";

pub(super) fn run(given: &Given, root: &Root, report: &mut Report) -> Result<()> {
    let Some(directory) = directory(given, "", root, report)? else {
        return Ok(());
    };
    let conf = Path::new(CONF);
    let place = root.place(conf, 0o755)?;
    let mut text = directory.into_os_string().into_vec();
    text.push(b'\n');
    place
        .write(&text, 0o644)
        .map_err(|errno| root.failure("write failed", conf, errno))
}

/// Returns the directory of the image's libraries, if they should be used. `version` is the driver's, if the arguments
/// lack it.
pub(super) fn directory(
    given: &Given,
    version: &str,
    root: &Root,
    report: &mut Report,
) -> Result<Option<PathBuf>> {
    let value = |name: &str| given.text(name).unwrap_or_default().to_string();
    let mut host = Host {
        driver: value("host-driver-version"),
        cuda: value("host-cuda-version"),
    };
    if host.driver.is_empty() {
        host.driver = version.to_string();
    }
    if host.driver.is_empty() && host.cuda.is_empty() {
        return Ok(None);
    }
    let directory = given
        .text("cuda-compat-container-root")
        .filter(|directory| !directory.is_empty());
    let path = Path::new("/").join(directory.unwrap_or(DIRECTORY));
    let Some(library) = find(root, &path, report)? else {
        return Ok(None);
    };
    if !host.driver.is_empty() && major(&host.driver).is_none() {
        let text = format!("invalid --host-driver-version {}", host.driver);
        return Err(Failure::new(text));
    }
    if !is_wanted(&host, &library) {
        report.step(&format!("the driver is as new as {}", library.version));
        return Ok(None);
    }
    // A newline in a name would add another line.
    let is_line = !library.directory.as_os_str().as_bytes().contains(&b'\n');
    Ok(is_line.then_some(library.directory))
}

/// The host driver's versions; an empty text is unknown.
#[derive(Debug)]
struct Host {
    driver: String,
    cuda: String,
}

/// The image's libcuda.
#[derive(Debug)]
struct Library {
    /// Its directory, with links resolved.
    directory: PathBuf,
    /// Suffix after `libcuda.so.` in its name.
    version: String,
    note: Option<Note>,
}

/// Returns true if the library should replace the host's.
fn is_wanted(host: &Host, library: &Library) -> bool {
    match &library.note {
        Some(note) if !host.driver.is_empty() => {
            let fits = major(&host.driver).is_some_and(|major| note.drivers.contains(&major));
            fits && is_newer(&library.version, &host.driver)
        }
        Some(note) => is_newer(&note.cuda, &host.cuda),
        None if !host.cuda.is_empty() => false,
        None => major(&library.version) > major(&host.driver),
    }
}

/// Returns the only libcuda in the directory.
fn find(root: &Root, path: &Path, report: &mut Report) -> Result<Option<Library>> {
    let Some(directory) = root.directory(path)? else {
        return Ok(None);
    };
    let failed = |errno| root.failure("reading failed", path, errno);
    let names = libraries(&directory).map_err(failed)?;
    let [name] = names.as_slice() else {
        if !names.is_empty() {
            report.warning(&format!(
                "Unexpected number of CUDA compat libraries in {}: {}",
                path.display(),
                names.len()
            ));
        }
        return Ok(None);
    };
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(&directory, name, flags, Mode::empty()).map_err(failed)?;
    if FileType::from_raw_mode(fstat(&file).map_err(failed)?.st_mode) != FileType::RegularFile {
        return Ok(None);
    }
    let file = reopen(file.as_fd()).map_err(failed)?;
    let version = name.to_string_lossy().replacen("libcuda.so.", "", 1);
    Ok(Some(Library {
        directory: root.name_of(directory.as_fd())?,
        version,
        note: note::read(|from, length| piece(&file, from, length)),
    }))
}

/// Reads a part of a file.
fn piece(file: &File, from: u64, length: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, from).ok()?;
    Some(bytes)
}

/// Returns the regular files `libcuda.so.*.*`, sorted.
fn libraries(directory: &OwnedFd) -> Result<Vec<OsString>, rustix::io::Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)?.take(MOST_NAMES) {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        let version = name.strip_prefix(b"libcuda.so.");
        if !version.is_some_and(|version| version.contains(&b'.')) {
            continue;
        }
        let Ok(stat) = statat(directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) else {
            continue;
        };
        if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
            names.push(std::ffi::OsStr::from_bytes(name).to_owned());
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(driver: &str, cuda: &str, version: &str, note: Option<(&str, &[u64])>) -> bool {
        let note = note.map(|(cuda, drivers)| Note {
            cuda: cuda.into(),
            drivers: drivers.into(),
        });
        let library = Library {
            directory: "/x".into(),
            version: version.into(),
            note,
        };
        let host = Host {
            driver: driver.into(),
            cuda: cuda.into(),
        };
        is_wanted(&host, &library)
    }

    #[test]
    fn newer_libraries_are_wanted() {
        assert!(wanted("535.1", "", "550.2", None));
        assert!(!wanted("550.1", "", "550.2", None));
        assert!(!wanted("535.1", "12.2", "550.2", None));
        assert!(wanted("550.1", "", "550.2", Some(("12.6", &[550]))));
        assert!(!wanted("551.1", "", "560.2", Some(("12.6", &[550]))));
        assert!(!wanted("550.3", "", "550.2", Some(("12.6", &[550]))));
        assert!(wanted("", "12.2", "1.1", Some(("12.6", &[]))));
        assert!(!wanted("", "12.8", "1.1", Some(("12.6", &[]))));
    }
}
