//! Makes the loader find the libraries of some directories.
//!
//! libnvc does this as for its other callers: without running a program if the image's own cache is valid, otherwise
//! with the host's ldconfig in a sandbox.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use libnvc::apply::{ApplyOptions, apply};
use libnvc::container::{Container, ContainerConfig};
use libnvc::host::DriverRoot;
use libnvc::options::CudaCompatMode;
use libnvc::plan::{Intent, LibraryPath, Place, What};
use libnvc::request::ImageOptions;
use libnvc::{ContainerPath, Target};
use rustix::fs::Dir;

use crate::arguments::Given;
use crate::report::Report;
use crate::root::{MOST_NAMES, Root, read};
use crate::volume::MOUNTS;
use crate::{Failure, Result};

/// Limits for the files of enable-cuda-compat: it writes one file with one line, but the image can contain any number.
const LARGEST_CONF: u64 = 1 << 14;
const MOST_CONFS: usize = 16;
const MOST_COMPAT: usize = 64;

pub(super) fn run(given: &Given, root: &Root, report: &mut Report) -> Result<()> {
    let folders = folders(given)?;
    if folders.is_empty() {
        return Ok(());
    }
    let image = Image::open(given, root)?;
    let compat = compat_directories(root).into_iter();
    let directories = compat.map(ContainerPath::new).chain(folders);
    let what = What::LibraryPath(LibraryPath {
        directories: directories.map(Place::At).collect(),
    });
    image.apply(&[Intent::required(what)], root, report)
}

/// Returns the requested directories without duplicates.
pub(super) fn folders(given: &Given) -> Result<Vec<ContainerPath>> {
    let mut folders: Vec<ContainerPath> = Vec::new();
    for folder in given.list("folder").filter(|folder| !folder.is_empty()) {
        if folder.contains(['\n', '\0']) || !folder.starts_with('/') {
            return Err(Failure::new(format!("invalid --folder \"{folder}\"")));
        }
        let folder = ContainerPath::new(folder);
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    Ok(folders)
}

/// The container's image, as libnvc sees it.
#[derive(Debug)]
pub(super) struct Image(Container);

impl Image {
    /// Discovers the image below the root.
    pub(super) fn open(given: &Given, root: &Root) -> Result<Self> {
        let ldconfig = given.text("ldconfig-path").filter(|path| !path.is_empty());
        let ldconfig = match ldconfig {
            Some(path) => Some(OsString::from(format!("@{}", program(path)?.display()))),
            None => None,
        };
        let found = Container::discover(ContainerConfig {
            target: Target::Here {
                root: root.try_clone()?,
            },
            image: ImageOptions {
                ldconfig,
                ..ImageOptions::default()
            },
            compat: CudaCompatMode::Disabled,
            device_cgroup: false,
        });
        found.map(Self).map_err(|error| failure(&error))
    }

    /// Applies a plan to the image, all or nothing.
    pub(super) fn apply(&self, intents: &[Intent], root: &Root, report: &mut Report) -> Result<()> {
        let mut folders: Vec<&ContainerPath> = Vec::new();
        for intent in intents {
            if let What::LibraryPath(libraries) = &intent.what {
                folders.extend(
                    libraries
                        .directories
                        .iter()
                        .filter_map(|place| match place {
                            Place::At(path) => Some(path),
                            Place::Library(_) | Place::Library32(_) | Place::Program(_) => None,
                        }),
                );
            }
        }
        let placed = placed(root, &folders);
        let options = ApplyOptions {
            // Only links are made later, and no path is relative: umask and directory do not matter.
            stay: true,
            placed: &placed,
            ..ApplyOptions::default()
        };
        let host = DriverRoot::open(Path::new("/")).map_err(|error| failure(&error))?;
        let done = apply(intents, &host, &self.0, options).map_err(|error| failure(&error))?;
        for skipped in done.skipped {
            report.warning(&skipped.message());
        }
        Ok(())
    }
}

/// Puts the hint into the message: engines show the last line, if any.
fn failure(error: &libnvc::Error) -> Failure {
    let message = error.message();
    Failure::new(match error.advice() {
        Some(hint) => format!("{message} (hint: {hint})"),
        None => message,
    })
}

/// Returns the host's ldconfig binary rather than a wrapper script.
fn program(path: &str) -> Result<PathBuf> {
    let path = path.strip_prefix('@').unwrap_or(path);
    if !path.starts_with('/') {
        return Err(Failure::new(format!(
            "--ldconfig-path {path} is not an absolute path"
        )));
    }
    let plain = path.strip_suffix(".real").unwrap_or(path);
    let real = PathBuf::from(format!("{plain}.real"));
    let found = if real.exists() {
        real
    } else {
        PathBuf::from(plain)
    };
    match found.metadata() {
        Ok(_) => Ok(found),
        Err(error) => Err(Failure::of("stat failed", found.display(), error)),
    }
}

/// Returns the directories that enable-cuda-compat, ours or upstream's, has put before all others.
fn compat_directories(root: &Root) -> Vec<String> {
    const DIRECTORY: &str = "/etc/ld.so.conf.d";
    let Ok(Some(found)) = root.directory(Path::new(DIRECTORY)) else {
        return Vec::new();
    };
    let entries = Dir::read_from(&found).into_iter().flatten();
    let entries = entries.take(MOST_NAMES).flatten();
    let names = entries.filter_map(|entry| entry.file_name().to_str().ok().map(String::from));
    let mut names: Vec<String> = names
        .filter(|name| name.starts_with("00-compat-") && name.ends_with(".conf"))
        .collect();
    names.sort();
    names.truncate(MOST_CONFS);
    let texts = names.iter().filter_map(|name| {
        let file = root.find(&Path::new(DIRECTORY).join(name)).ok()??;
        String::from_utf8(read(file.as_fd(), LARGEST_CONF).ok()?).ok()
    });
    let lines = texts.flat_map(|text| text.lines().map(String::from).collect::<Vec<_>>());
    let named = lines.filter(|line| line.starts_with('/') && !line.contains('\0'));
    named.take(MOST_COMPAT).collect()
}

/// Returns the files that the engine has mounted in the folders.
fn placed(root: &Root, folders: &[&ContainerPath]) -> Vec<ContainerPath> {
    let text = libnvc::read_kernel_file(MOUNTS).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let points = text
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(unescaped);
    let directories: Vec<PathBuf> = folders
        .iter()
        .filter_map(|folder| {
            let found = root.find(folder.as_path()).ok()??;
            root.name_of(found.as_fd()).ok()
        })
        .collect();
    let inside =
        points.filter_map(|point| Some(Path::new("/").join(point.strip_prefix(root.path()).ok()?)));
    inside
        .filter(|path| {
            path.parent()
                .is_some_and(|parent| directories.iter().any(|directory| directory == parent))
        })
        .map(ContainerPath::new)
        .collect()
}

/// Decodes a path of mountinfo, in which blanks and backslashes are octal escapes.
fn unescaped(text: &str) -> PathBuf {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let code = rest
            .get(at + 1..at + 4)
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                out.push(char::from(code));
                rest = &rest[at + 4..];
            }
            None => {
                out.push('\\');
                rest = &rest[at + 1..];
            }
        }
    }
    out.push_str(rest);
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Words;

    /// Returns the directories that the arguments of update-ldcache name, or the error.
    fn requested(words: &[&str]) -> Result<Vec<String>, String> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let hook = super::super::find("update-ldcache");
        let known = hook.map_or(&[][..], |hook| hook.options);
        let given = Words::new(&words).and_then(|mut words| words.options(known));
        let folders = given.and_then(|given| folders(&given));
        let text = |folder: &ContainerPath| folder.to_string();
        folders
            .map(|folders| folders.iter().map(text).collect())
            .map_err(|failure| failure.to_string())
    }

    #[test]
    fn folders_are_absolute() {
        let expected = |folders: &[&str]| Ok(folders.iter().map(ToString::to_string).collect());
        assert_eq!(
            requested(&["--folder=/a,/b", "--folder", "/a", "--folder="]),
            expected(&["/a", "/b"])
        );
        assert_eq!(requested(&["--folder", "/-x"]), expected(&["/-x"]));
        // ldconfig would take the first for an option; its configuration has one folder on a line.
        for folder in ["-x", "--help", "-C/etc/passwd", "x", "/a\n/b", "../x"] {
            let refused = Err(format!("invalid --folder \"{folder}\""));
            assert_eq!(requested(&[&format!("--folder={folder}")]), refused);
            assert_eq!(requested(&["--folder", folder]), refused);
            assert_eq!(requested(&["--folder=/a", "--folder", folder]), refused);
        }
    }

    #[test]
    fn paths_of_mountinfo_are_read() {
        assert_eq!(unescaped("/a\\040b"), Path::new("/a b"));
        assert_eq!(unescaped("/a\\x"), Path::new("/a\\x"));
    }
}
