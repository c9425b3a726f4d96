//! Checks the driver's libraries: they exist, and the loader finds them before others of their name.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use libnvc::host::search::{self, Contents, FileSearch};
use libnvc::host::{Abi, DriverInfo, DriverRoot, procfs};
use libnvc::library_file::{CacheEntry, entries};

use super::Finding;
use super::place::{Kind, Place};
use crate::commands::repair::{Repair, command, step, word};

const INSTALL: &str = "install the driver's libraries: the packages libcuda1 and libnvidia-ml1 of Debian, or \
    libnvidia-compute-VERSION of Ubuntu";

const CACHE: &str = "/etc/ld.so.cache";

/// Libraries that programs look up, and the symptom without them.
const WANTED: [(&str, &str); 2] = [
    ("libcuda.so.1", "CUDA programs do not start"),
    ("libnvidia-ml.so.1", "nvidia-smi and the toolkit fail"),
];

pub(super) fn all(place: &Place) -> Vec<Finding> {
    match place.kind {
        Kind::Usual => {}
        Kind::Wsl => return Vec::from_iter(of_windows()),
        Kind::Tegra => return Vec::new(),
    }
    let driver = match driver(&place.root) {
        Ok(driver) => driver,
        Err(error) => {
            let symptom = "nvidia-smi and the toolkit fail";
            let missing = || Finding::fatal(error.message(), symptom, step(INSTALL));
            return vec![mismatch(place).unwrap_or_else(missing)];
        }
    };
    let Ok(cache) = fs::read(place.path(CACHE)) else {
        let what = format!("{} cannot be read", place.path(CACHE).display());
        let symptom = "programs do not find the driver's libraries";
        return vec![Finding::wrong(what, symptom, ldconfig(place))];
    };
    let entries = entries(&cache).unwrap_or_default();
    let native = entries.iter().filter(is_native_entry);
    let directories = native.filter_map(|entry| entry.path.parent());
    let directories: BTreeSet<_> = directories.map(Path::to_owned).collect();
    let finding = |(name, symptom)| match first(&entries, name) {
        Some(path) => wrong(place, path, symptom),
        None => not_listed(place, &directories, &driver, name, symptom),
    };
    let mut findings: Vec<Finding> = WANTED.into_iter().filter_map(finding).collect();
    let manifests = driver.missing_manifests().into_iter();
    findings.extend(manifests.map(|what| {
        let symptom = "programs use no GPU for it, in containers too";
        let repair = step("install the driver's package that has the manifest");
        Finding::advice(what, symptom, repair)
    }));
    findings
}

/// Finds the files that a specification would list.
pub(super) fn driver(root: &Path) -> libnvc::Result<DriverInfo> {
    let version = procfs::module_version(&DriverRoot::open(Path::new("/"))?);
    let wanted = FileSearch::new(Contents::All);
    search::find(&DriverRoot::open(root)?, version.as_deref(), &wanted)
}

/// Finds that the libraries are of another version than the module. An installer may leave others beside those of the
/// module: that is no mismatch.
fn mismatch(place: &Place) -> Option<Finding> {
    let module = procfs::module_version(&DriverRoot::open(Path::new("/")).ok()?)?;
    let libraries = nvc_generate::driver_files::version(&place.root).ok()?;
    let what = format!("the module is of driver {module}, the libraries are of {libraries}");
    let symptom = "nvidia-smi: Driver/library version mismatch";
    let repair = "reboot, or unload the modules and load those of the libraries' driver";
    let note = "if they differ after that, too, install the libraries of the module's driver";
    Some(Finding::fatal(what, symptom, step(repair)).note(note))
}

/// Checks the libraries under WSL2, where Windows mounts its driver.
fn of_windows() -> Option<Finding> {
    const LIBRARY: &str = "/usr/lib/wsl/lib/libdxcore.so";
    (!Path::new(LIBRARY).exists()).then(|| {
        let what = format!("{LIBRARY} is missing: Windows has not mounted its driver");
        let repair =
            "install NVIDIA's driver for Windows; in Windows: wsl --update, then wsl --shutdown";
        Finding::fatal(what, "no adapters were found", step(repair))
    })
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
    Abi::of_cache_entry(entry.flags) == Some(Abi::Native)
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
    let what = match fs::read_link(&path) {
        Ok(target) => format!(
            "{shown} is a link to {}, which is missing",
            target.display()
        ),
        Err(_) => format!("{shown} is in the loader's cache, and is missing"),
    };
    let repair = step("install the driver's libraries again").and(ldconfig(place).text());
    Some(Finding::wrong(what, symptom, repair))
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

/// Describes a library that the cache does not name.
fn not_listed(
    place: &Place,
    directories: &BTreeSet<PathBuf>,
    driver: &DriverInfo,
    name: &'static str,
    symptom: &'static str,
) -> Option<Finding> {
    let stem = name.strip_suffix('1').unwrap_or(name);
    let mut files = driver.libraries(Abi::Native);
    let found = files.find(|file| file.path.file_name().to_string_lossy().starts_with(stem));
    let Some(file) = found else {
        let what = format!("{name} is missing");
        let repair = step(INSTALL);
        return Some(match name {
            // Not every machine computes.
            "libcuda.so.1" => Finding::advice(what, symptom, repair),
            _ => Finding::wrong(what, symptom, repair),
        });
    };
    let directory = file.path.parent();
    let directory = directory.as_path();
    let real = |path: &Path| {
        let path = inside(place, path);
        path.canonicalize().unwrap_or(path)
    };
    // The loader also searches the default directories.
    let mut known = directories.iter();
    (!known.any(|known| real(known) == real(directory))).then(|| {
        let file = directory.join(name);
        let what = format!("{} is not in the loader's cache", file.display());
        Finding::wrong(what, symptom, cached(place, directory))
    })
}
