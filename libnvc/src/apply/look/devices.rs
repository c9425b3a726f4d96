//! Finds the devices that a container has nodes of, and may open.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstatat};

use super::ContainerView;
use crate::apply::volumes::authority::{Authority, Callers};
use crate::container::Container;
use crate::directory;
use crate::directory::open_child;
use crate::error::Result;
use crate::host::majors::{self, GPU_DRIVERS, majors};
use crate::host::{DeviceNumber, DriverRoot, nodes, nvcaps};
use crate::inroot::{self, kind};
use crate::path::HostPath;
use crate::read_file;

/// Limit of names read in a directory, which the image may have filled.
const MAX_NAMES: usize = 1 << 16;
/// Minor numbers of control nodes start here.
const FIRST_CONTROL: u32 = 254;

/// The minor numbers of a container's devices.
#[derive(Debug, Default)]
pub(super) struct OwnDevices {
    pub(super) gpus: HashSet<u32>,
    pub(super) capabilities: HashSet<u32>,
}

/// A node of a character device.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) name: OsString,
    pub(super) number: DeviceNumber,
}

impl OwnDevices {
    /// Finds those of a container, in whose device cgroup the caller is.
    pub(super) fn of(container: &Container, host: &DriverRoot) -> Result<Self> {
        let look = ContainerView::new(container, host);
        let table = read_file::read_path(majors::PATH).unwrap_or_default();
        let find = |directory: &str, drivers: &[&str], usage: OFlag| {
            let path = Path::new(directory);
            let Some(found) = look.directory(path)? else {
                return Ok(HashSet::new());
            };
            let majors = drivers.iter().flat_map(|driver| majors(&table, driver));
            let majors: Vec<u32> = majors.collect();
            look.confirmed(&found, path, &majors, usage)
        };
        let mut gpus = find("/dev", &GPU_DRIVERS, OFlag::O_RDWR)?;
        gpus.retain(|minor| *minor < FIRST_CONTROL);
        Ok(Self {
            gpus,
            // Programs only read them: they have mode 0444.
            capabilities: find(
                nodes::CAPABILITY_DIRECTORY,
                &[nvcaps::DRIVER],
                OFlag::O_RDONLY,
            )?,
        })
    }
}

impl ContainerView<'_> {
    /// Returns the minor numbers of some drivers' devices that are really the container's. If the host has nodes of
    /// these drivers, one must have the number. Unless the runtime made the container's nodes, the device rules must
    /// allow opening them for this usage.
    fn confirmed(
        &self,
        found: &OwnedFd,
        path: &Path,
        majors: &[u32],
        usage: OFlag,
    ) -> Result<HashSet<u32>> {
        let failed = |errno| self.failed("reading failed", path, errno);
        let of_drivers = |directory: BorrowedFd<'_>| {
            let mut nodes = nodes(directory)?;
            nodes.retain(|node| majors.contains(&node.number.major));
            Ok::<_, Errno>(nodes)
        };
        let mut own = of_drivers(found.as_fd()).map_err(failed)?;
        if own.is_empty() {
            return Ok(HashSet::new());
        }
        let hosts = self.host.open_file(&HostPath::new(path));
        let hosts = hosts.and_then(|hosts| of_drivers(hosts.as_fd()));
        // The nodes may be in the tree of a driver container.
        if let Ok(hosts) = hosts
            && !hosts.is_empty()
        {
            let minors: HashSet<u32> = hosts.iter().map(|node| node.number.minor).collect();
            own.retain(|node| minors.contains(&node.number.minor));
        }
        // A volume, which the engine may have filled from the image, can have any nodes; the host's /dev has all.
        let is_made = self.is_for_container_alone(found.as_fd())?;
        // Opening a GPU can take seconds, so each is opened once however many nodes it has.
        let mut allowed = HashMap::new();
        let descriptors = inroot::own_descriptors().map_err(failed)?;
        for node in own {
            let is_allowed = allowed.entry(node.number.minor).or_insert(is_made);
            *is_allowed = *is_allowed || may_open(found, &node, usage, descriptors.as_fd());
        }
        let allowed = allowed.into_iter().filter(|(_, is_allowed)| *is_allowed);
        Ok(allowed.map(|(minor, _)| minor).collect())
    }

    /// Returns true if a directory is on a tmpfs that a runtime mounted for this container alone.
    fn is_for_container_alone(&self, directory: BorrowedFd<'_>) -> Result<bool> {
        let failed = |errno| self.failed("stat failed", Path::new("/dev"), errno);
        let descriptors = inroot::own_descriptors().map_err(failed)?;
        let callers = Callers::record(self.container, &descriptors)?;
        let authority = Authority::new(callers, self.container, self.root(), &descriptors)?;
        authority.is_for_container_alone(directory).map_err(failed)
    }
}

/// Returns the character devices in a directory, up to a limit of names.
pub(super) fn nodes(directory: BorrowedFd<'_>) -> Result<Vec<Node>, Errno> {
    let fd = inroot::open_to_list(directory)?;
    // Without privileges a runtime binds the host's node to a regular file, which is what the directory lists.
    let kinds = [libc::DT_CHR, libc::DT_REG, libc::DT_UNKNOWN];
    let can_be_node = |entry: directory::Entry<'_>| kinds.contains(&entry.kind);
    let names = directory::names(fd.as_fd(), MAX_NAMES, can_be_node)?;
    let node = |name: OsString| {
        let stat = fstatat(directory, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW).ok()?;
        let number = device(&stat)?;
        Some(Node { name, number })
    };
    Ok(names.into_iter().filter_map(node).collect())
}

/// Returns the number of a character device.
fn device(stat: &FileStat) -> Option<DeviceNumber> {
    (kind(stat) == SFlag::S_IFCHR).then(|| DeviceNumber::from_rdev(stat.st_rdev))
}

/// Returns true for `nvidia<digits>`.
pub(in crate::apply) fn is_gpu_name(name: &OsStr) -> bool {
    let digits = name.as_bytes().strip_prefix(b"nvidia");
    digits.is_some_and(|digits| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit))
}

/// Returns true if modes and device rules allow opening a node for its usage. It is opened by reference and checked first: the image may
/// exchange it for another device.
fn may_open(directory: &OwnedFd, node: &Node, usage: OFlag, descriptors: BorrowedFd<'_>) -> bool {
    let open = || {
        let found = open_child(directory.as_fd(), &node.name)?;
        if device(&inroot::stat(found.as_fd())?) != Some(node.number) {
            return Ok(false);
        }
        let flags = usage | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let name = found.as_raw_fd().to_string();
        match openat(descriptors, name.as_str(), flags, Mode::empty()) {
            Err(Errno::EPERM | Errno::EACCES) => Ok(false),
            _ => Ok::<_, Errno>(true),
        }
    };
    open().unwrap_or(false)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use nix::mount::{MsFlags, mount, umount};
    use nix::sched::{CloneFlags, unshare};

    use super::*;
    use crate::apply::volumes::rights::Rights;

    /// As in a rootless container, and with what else an image may have in its /dev.
    #[test]
    #[ignore = "needs root"]
    fn a_node_over_a_regular_file_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("null");
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink("/dev/null", directory.path().join("link")).unwrap();
        let none = None::<&str>;
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        mount(none, "/", none, MsFlags::MS_PRIVATE | MsFlags::MS_REC, none).unwrap();
        mount(Some("/dev/null"), &file, none, MsFlags::MS_BIND, none).unwrap();
        let opened = std::fs::File::open(directory.path()).unwrap();
        let found = nodes(opened.as_fd()).unwrap();
        let numbers: Vec<_> = found
            .iter()
            .map(|node| (node.number.major, node.number.minor))
            .collect();
        assert_eq!(numbers, [(1, 3)]);
        umount(&file).unwrap();
    }

    /// As a rootless container's root, who has no rights over the host's files, sees MIG's capabilities.
    #[test]
    #[ignore = "needs root"]
    fn a_node_that_is_only_read_need_not_be_writable() {
        use nix::sys::stat::mknod;
        let directory = tempfile::tempdir().unwrap();
        let mode = Mode::from_bits_truncate(0o444);
        let number = DeviceNumber { major: 1, minor: 3 };
        mknod(
            &directory.path().join("cap"),
            SFlag::S_IFCHR,
            mode,
            nix::sys::stat::makedev(1, 3),
        )
        .unwrap();
        let opened = OwnedFd::from(std::fs::File::open(directory.path()).unwrap());
        let node = Node {
            name: "cap".into(),
            number,
        };
        let ask = |usage| {
            let opened = &opened;
            let node = &node;
            std::thread::scope(|scope| {
                let ask = move || {
                    let descriptors = inroot::own_descriptors().unwrap();
                    let ask = || Ok(may_open(opened, node, usage, descriptors.as_fd()));
                    Rights::AsOwner.act(ask).unwrap()
                };
                scope.spawn(ask).join().unwrap()
            })
        };
        assert!(ask(OFlag::O_RDONLY));
        assert!(!ask(OFlag::O_RDWR));
    }

    #[test]
    fn gpus_have_numbers() {
        let is_gpu = |name: &str| is_gpu_name(OsStr::new(name));
        assert!(is_gpu("nvidia0") && is_gpu("nvidia12"));
        assert!(
            !is_gpu("nvidia") && !is_gpu("nvidiactl") && !is_gpu("nvidia-uvm") && !is_gpu("x0")
        );
    }
}
