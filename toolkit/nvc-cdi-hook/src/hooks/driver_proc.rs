//! Hides other GPUs and MIG capabilities in the container's /proc/driver/nvidia.
//!
//! The container's devices are those with nodes in its /dev, identified by number rather than name. A tmpfs with only
//! their entries is mounted over the directories in the container's /proc, unless another program has already covered
//! them.

use std::collections::HashSet;
use std::ffi::CString;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use libnvc::HostPath;
use libnvc::host::majors::{self, GPU_DRIVERS, majors};
use libnvc::plan::{CapabilityFiles, DriverProc, Intent, What};
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, fstat, fstatfs, major, minor, mkdirat, open, openat,
    statat,
};
use rustix::io::Errno;

use super::tmpfs;
use crate::Result;
use crate::arguments::Given;
use crate::report::Report;
use crate::root::{MOST_NAMES, Root, own_name};
use crate::volume;

const DIRECTORY: &str = "/proc/driver/nvidia";
const GPUS: &str = "/proc/driver/nvidia/gpus";
const CAPABILITIES: &str = "/proc/driver/nvidia/capabilities";
const PROC_SUPER_MAGIC: u64 = 0x9fa0;
/// Minor numbers of control nodes start here.
const FIRST_CONTROL: u32 = 254;
/// Depth of the capability tree: gpu, mig, gi, ci.
const DEEPEST: usize = 8;

pub(super) fn run(_given: &Given, root: &Root, report: &mut Report) -> Result<()> {
    hide(root, report).map(drop)
}

/// The tmpfs mounts over directories of the driver.
#[derive(Debug, Default)]
pub(super) struct Covers(Vec<OwnedFd>);

impl Covers {
    /// Unmounts them.
    pub(super) fn detach(&self) {
        for tmpfs in &self.0 {
            let _ = tmpfs::detach(tmpfs);
        }
    }
}

/// Hides other GPUs, or changes nothing.
pub(super) fn hide(root: &Root, report: &mut Report) -> Result<Covers> {
    let mut covers = Covers::default();
    let done = cover_both(root, report, &mut covers);
    done.inspect_err(|_| covers.detach())?;
    Ok(covers)
}

fn cover_both(root: &Root, report: &mut Report, covers: &mut Covers) -> Result<()> {
    let shown = Shown::of(root)?;
    for (path, wanted) in [
        (GPUS, shown.gpu_directories()),
        (CAPABILITIES, shown.capability_files()),
    ] {
        let path = Path::new(path);
        let Some(target) = root.find(path)? else {
            continue;
        };
        let failed = |errno| root.failure("hiding GPUs failed", path, errno);
        if !is_the_drivers(path, target.as_fd()).map_err(failed)? {
            report.step(&format!("{} is not the driver's: it stays", path.display()));
            continue;
        }
        if wanted.is_all {
            continue;
        }
        let cover = cover(root, path, target.as_fd(), &wanted.paths);
        covers.0.push(cover.map_err(failed)?);
    }
    Ok(())
}

/// Returns the intent that shows the container's GPUs and capabilities, or all of them, with the changed parameters;
/// None if another program has already covered the driver's directory.
pub(super) fn intent(root: &Root, filtered: bool, report: &mut Report) -> Result<Option<Intent>> {
    let path = Path::new(DIRECTORY);
    let Some(target) = root.find(path)? else {
        return Ok(None);
    };
    let failed = |errno| root.failure("hiding GPUs failed", path, errno);
    if !is_the_drivers(path, target.as_fd()).map_err(failed)? {
        report.step(&format!("{} is not the driver's: it stays", path.display()));
        return Ok(None);
    }
    let mut shown = Shown::of(root)?;
    if !filtered {
        shown.is_all = true;
    }
    let files = shown.capability_files().paths.into_iter();
    let files = files.map(|file| HostPath::new(CAPABILITIES).join(file));
    Ok(Some(Intent::required(What::DriverProc(DriverProc {
        gpus: shown.gpu_directories().paths,
        capabilities: CapabilityFiles::Some(files.collect()),
    }))))
}

/// A container's devices by minor number.
#[derive(Debug, Default)]
struct Shown {
    gpus: HashSet<u32>,
    capabilities: HashSet<u32>,
    /// Show everything, whatever devices the container has.
    is_all: bool,
}

/// The wanted content of a directory.
#[derive(Debug)]
struct Wanted {
    /// Paths below it.
    paths: Vec<String>,
    /// True if that is everything.
    is_all: bool,
}

impl Shown {
    fn of(root: &Root) -> Result<Self> {
        let devices = fs::read(majors::PATH).unwrap_or_default();
        let mut shown = Self::default();
        for (directory, drivers) in [
            ("/dev", &GPU_DRIVERS[..]),
            ("/dev/nvidia-caps", &["nvidia-caps"][..]),
        ] {
            let path = Path::new(directory);
            let Some(found) = root.directory(path)? else {
                continue;
            };
            let majors = drivers.iter().flat_map(|driver| majors(&devices, driver));
            let majors: Vec<u32> = majors.collect();
            let minors = confirmed(root, &found, path, &majors)
                .map_err(|errno| root.failure("reading failed", path, errno))?;
            if directory == "/dev" {
                shown.gpus = minors;
                shown.gpus.retain(|&minor| minor < FIRST_CONTROL);
            } else {
                shown.capabilities = minors;
            }
        }
        Ok(shown)
    }

    fn has(&self, some: &HashSet<u32>, minor: u32) -> bool {
        self.is_all || some.contains(&minor)
    }

    /// Returns the directories of the container's GPUs.
    fn gpu_directories(&self) -> Wanted {
        let mut wanted = Wanted {
            paths: Vec::new(),
            is_all: true,
        };
        for (name, _) in entries(Path::new(GPUS)) {
            let text = fs::read_to_string(format!("{GPUS}/{name}/information"));
            let minor = number(&text.unwrap_or_default(), "Device Minor");
            match minor.is_some_and(|minor| self.has(&self.gpus, minor)) {
                true => wanted.paths.push(name),
                false => wanted.is_all = false,
            }
        }
        wanted
    }

    /// Returns the files of the container's capabilities.
    fn capability_files(&self) -> Wanted {
        let mut wanted = Wanted {
            paths: Vec::new(),
            is_all: true,
        };
        self.collect(Path::new(CAPABILITIES), "", 0, &mut wanted);
        wanted
    }

    fn collect(&self, directory: &Path, below: &str, depth: usize, wanted: &mut Wanted) {
        if depth > DEEPEST {
            wanted.is_all = false;
            return;
        }
        for (name, kind) in entries(directory) {
            let path = format!("{below}{name}");
            let entry = directory.join(name);
            if kind == FileType::Directory {
                self.collect(&entry, &format!("{path}/"), depth + 1, wanted);
                continue;
            }
            let text = fs::read_to_string(entry).unwrap_or_default();
            let minor = number(&text, "DeviceFileMinor");
            match minor.is_some_and(|minor| self.has(&self.capabilities, minor)) {
                true => wanted.paths.push(path),
                false => wanted.is_all = false,
            }
        }
    }
}

/// Returns the names and types in one of the driver's directories in the host's procfs; none if it does not exist. The
/// standard library's iterator would panic if close(2) failed.
fn entries(directory: &Path) -> Vec<(String, FileType)> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = open(directory, flags, Mode::empty()).and_then(Dir::new);
    let entries = opened.into_iter().flatten().flatten().map(|entry| {
        let name = entry.file_name().to_string_lossy();
        (name.into_owned(), entry.file_type())
    });
    entries
        .filter(|(name, _)| name != "." && name != "..")
        .collect()
}

/// Returns the number after a name in one of the driver's texts.
fn number(text: &str, name: &str) -> Option<u32> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix(name));
    line?.trim_start().strip_prefix(':')?.trim().parse().ok()
}

/// Returns minor numbers and names of a directory's character devices of some drivers.
fn nodes(directory: &OwnedFd, majors: &[u32]) -> Result<Vec<(u32, CString)>, Errno> {
    let mut nodes = Vec::new();
    for entry in Dir::read_from(directory)?.take(MOST_NAMES) {
        let entry = entry?;
        let Ok(stat) = statat(directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) else {
            continue;
        };
        let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
        if is_device && majors.contains(&major(stat.st_rdev)) {
            nodes.push((minor(stat.st_rdev), entry.file_name().to_owned()));
        }
    }
    Ok(nodes)
}

/// Returns the devices that the container may have: the host has a node with the number if it has any, and, unless the
/// runtime made the container's nodes, the device rules allow opening the container's.
fn confirmed(
    root: &Root,
    found: &OwnedFd,
    path: &Path,
    majors: &[u32],
) -> Result<HashSet<u32>, Errno> {
    let mut shown = nodes(found, majors)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let host = open(path, flags, Mode::empty()).ok();
    // A volume, which the engine may have filled from the image, can have any nodes; the host's /dev has all.
    let is_made = volume::is_on_private_tmpfs(root.path(), found.as_fd())?;
    let of_host = host.and_then(|host| nodes(&host, majors).ok());
    // The nodes may be in the tree of a driver container.
    if let Some(of_host) = of_host.filter(|nodes| !nodes.is_empty()) {
        shown.retain(|(minor, _)| of_host.iter().any(|(host, _)| host == minor));
    }
    // Opening a GPU can take seconds, so each is opened once however many nodes it has.
    let mut allowed = HashSet::new();
    for (minor, name) in shown {
        if !allowed.contains(&minor) && (is_made || may_open(found, &name, majors, minor)) {
            allowed.insert(minor);
        }
    }
    Ok(allowed)
}

/// Returns true if the device rules allow opening a node. It is opened by reference and checked first: the image may
/// exchange it for another device.
fn may_open(directory: &OwnedFd, name: &CString, majors: &[u32], of: u32) -> bool {
    let by_reference = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(node) = openat(directory, name.as_c_str(), by_reference, Mode::empty()) else {
        return false;
    };
    let is_it = fstat(&node).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
            && majors.contains(&major(stat.st_rdev))
            && minor(stat.st_rdev) == of
    });
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = || open(own_name(node.as_fd()), flags, Mode::empty());
    is_it && !matches!(opened(), Err(Errno::PERM | Errno::ACCESS))
}

/// Returns true if a file of the container is the driver's own: on procfs, or identical to the host's.
pub(super) fn is_the_drivers(path: &Path, target: BorrowedFd<'_>) -> Result<bool, Errno> {
    let kind = u64::try_from(fstatfs(target)?.f_type).unwrap_or_default();
    let (own, host) = (fstat(target)?, rustix::fs::stat(path));
    let is_same = host.is_ok_and(|host| (host.st_dev, host.st_ino) == (own.st_dev, own.st_ino));
    Ok(kind == PROC_SUPER_MAGIC || is_same)
}

/// Mounts a tmpfs over a directory, in which only some entries are visible.
fn cover(
    root: &Root,
    path: &Path,
    target: BorrowedFd<'_>,
    wanted: &[String],
) -> Result<OwnedFd, Errno> {
    let tmpfs = tmpfs::new(wanted.len() * DEEPEST + 16)?;
    let mut mounts = Vec::new();
    for name in wanted {
        // Entries that vanish concurrently are omitted.
        let Ok(Some(found)) = root.find(&path.join(name)) else {
            continue;
        };
        let is_directory = FileType::from_raw_mode(fstat(&found)?.st_mode) == FileType::Directory;
        let place = make(&tmpfs, name, is_directory)?;
        mounts.push((tmpfs::clone(found.as_fd())?, place));
    }
    tmpfs::confine(target)?;
    tmpfs::attach(tmpfs.as_fd(), target)?;
    let fill = || {
        for (mount, place) in &mounts {
            tmpfs::attach(mount.as_fd(), place.as_fd())?;
        }
        tmpfs::seal(tmpfs.as_fd())
    };
    fill().inspect_err(|_| {
        let _ = tmpfs::detach(&tmpfs);
    })?;
    Ok(tmpfs)
}

/// Creates a mount point in the tmpfs, with its parent directories.
fn make(tmpfs: &OwnedFd, name: &str, is_directory: bool) -> Result<OwnedFd, Errno> {
    let mode = Mode::from_raw_mode(0o555);
    let by_reference = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut directory = openat(tmpfs, ".", by_reference, Mode::empty())?;
    let mut parts = name.split('/').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() && !is_directory {
            let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            return openat(&directory, part, flags, Mode::from_raw_mode(0o444));
        }
        match mkdirat(&directory, part, mode) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        directory = openat(&directory, part, by_reference, Mode::empty())?;
    }
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read() {
        assert_eq!(
            number("Model: \tx\nDevice Minor: \t 3\n", "Device Minor"),
            Some(3)
        );
        assert_eq!(number("DeviceFileMinor: 12\n", "DeviceFileMinor"), Some(12));
        assert_eq!(number("DeviceFileMinor 12\n", "DeviceFileMinor"), None);
    }
}
