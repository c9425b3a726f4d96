//! Checks the driver's libraries: they exist, and the loader finds them before others of their name.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use libnvc::library_file::{CacheEntry, entries};

use super::Finding;
use super::place::{Kind, Place};
use crate::commands::repair::{Repair, command, step, word};

/// Bits of an entry's flags for its architecture.
const KINDS: i32 = 0xff00;
const NATIVE: i32 = if cfg!(target_arch = "aarch64") {
    0x0a00
} else {
    0x0300
};

const CACHE: &str = "/etc/ld.so.cache";

/// Libraries, and the symptom without them.
const WANTED: [(&str, &str); 2] = [
    ("libcuda.so.1", "CUDA programs do not start"),
    ("libnvidia-ml.so.1", "nvidia-smi and the toolkit fail"),
];

const USUAL: [&str; 5] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/lib",
];

pub(super) fn all(place: &Place) -> Vec<Finding> {
    match place.kind {
        Kind::Usual => {}
        Kind::Wsl => return of_windows(),
        Kind::Tegra => return Vec::new(),
    }
    let Ok(cache) = fs::read(place.path(CACHE)) else {
        return vec![Finding::wrong(
            format!("{} cannot be read", place.path(CACHE).display()),
            "programs do not find the driver's libraries",
            ldconfig(place),
        )];
    };
    let entries = entries(&cache).unwrap_or_default();
    let native = entries.iter().filter(is_native_entry);
    let directories = native.filter_map(|entry| entry.path.parent());
    let directories: BTreeSet<_> = directories.map(Path::to_owned).collect();
    let finding = |(name, symptom)| match first(&entries, name) {
        Some(path) => wrong(place, path, symptom),
        None => not_listed(place, &directories, name, symptom),
    };
    WANTED.into_iter().filter_map(finding).collect()
}

/// Checks the libraries under WSL2, where Windows mounts its driver.
fn of_windows() -> Vec<Finding> {
    const LIBRARY: &str = "/usr/lib/wsl/lib/libdxcore.so";
    if Path::new(LIBRARY).exists() {
        return Vec::new();
    }
    vec![Finding::wrong(
        format!("{LIBRARY} is missing: Windows has not mounted its driver"),
        "no adapters were found",
        step("install NVIDIA's driver for Windows; in Windows: wsl --update, then wsl --shutdown"),
    )]
}

fn ldconfig(place: &Place) -> Repair {
    command(if place.is_host() {
        "ldconfig".into()
    } else {
        format!("ldconfig -r {}", word(&place.root.display()))
    })
}

/// Returns true if a library has this machine's width.
fn is_native_entry(entry: &&CacheEntry) -> bool {
    entry.flags & KINDS == NATIVE
}

/// Returns the path that this machine's loader takes for a name.
fn first<'a>(entries: &'a [CacheEntry], name: &str) -> Option<&'a Path> {
    let mut entries = entries.iter().filter(is_native_entry);
    let entry = entries.find(|entry| entry.name == name)?;
    Some(&entry.path)
}

/// Checks a library that the cache names.
fn wrong(place: &Place, listed: &Path, symptom: &'static str) -> Option<Finding> {
    let (path, shown) = (inside(place, listed), listed.display());
    if listed.components().any(|part| part.as_os_str() == "stubs") {
        let directory = listed.parent().unwrap_or(listed).display();
        return Some(Finding::wrong(
            format!(
                "the loader finds {shown}, a stub library for linking, instead of the driver's library"
            ),
            "CUDA: driver is a stub library (error 34); no driver files in containers",
            step(format!(
                "remove {directory} from /etc/ld.so.conf.d and LD_LIBRARY_PATH, and the link {shown}"
            ))
            .and(ldconfig(place).text()),
        ));
    }
    // Links of another root can be absolute.
    if path.exists() || !place.is_host() && path.is_symlink() {
        return None;
    }
    Some(match fs::read_link(&path) {
        Ok(target) => Finding::wrong(
            format!(
                "{shown} is a link to {}, which is missing",
                target.display()
            ),
            symptom,
            step("install the driver's libraries again").and(ldconfig(place).text()),
        ),
        Err(_) => Finding::wrong(
            format!("{shown} is in the loader's cache, and is missing"),
            symptom,
            step("install the driver's libraries again").and(ldconfig(place).text()),
        ),
    })
}

/// Returns the command that puts a directory's libraries into the cache.
fn cached(place: &Place, directory: &Path) -> Repair {
    let ldconfig = ldconfig(place);
    let main = place.path("/etc/ld.so.conf");
    let fragments = fs::read_dir(place.path("/etc/ld.so.conf.d"));
    let fragments = fragments.into_iter().flatten().flatten();
    let files = std::iter::once(main).chain(fragments.map(|entry| entry.path()));
    let is_listed = |text: String| text.lines().any(|line| Path::new(line.trim()) == directory);
    if files.flat_map(fs::read_to_string).any(is_listed) {
        return ldconfig;
    }
    let file = place.path("/etc/ld.so.conf.d/nvidia.conf");
    let (directory, file) = (word(&directory.display()), word(&file.display()));
    command(format!("echo {directory} >> {file}")).and(ldconfig.text())
}

fn inside(place: &Place, path: &Path) -> PathBuf {
    place.path(&path.to_string_lossy())
}

/// Returns true for a library of a 64-bit machine.
fn is_native(path: &Path) -> bool {
    let mut start = [0; 5];
    let read = fs::File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start == *b"\x7fELF\x02"
}

/// Describes a library that the cache does not name.
fn not_listed(
    place: &Place,
    directories: &BTreeSet<PathBuf>,
    name: &str,
    symptom: &'static str,
) -> Option<Finding> {
    let exists = |directory: &Path| is_native(&inside(place, &directory.join(name)));
    // The loader also searches the default directories.
    if directories.iter().any(|directory| exists(directory)) {
        return None;
    }
    let found = USUAL
        .iter()
        .map(Path::new)
        .find(|directory| exists(directory));
    Some(match found {
        Some(directory) => Finding::wrong(
            format!(
                "{} is not in the loader's cache",
                directory.join(name).display()
            ),
            symptom,
            cached(place, directory),
        ),
        None => Finding::wrong(
            format!("{name} is missing"),
            symptom,
            step("install the driver's libraries"),
        ),
    })
}
