//! Maps the driver's capabilities, files below /proc/driver/nvidia/capabilities, to their device nodes.
//!
//! A capability (of MIG: configure, monitor, access to an instance) is granted by access to a device. A capability's
//! file names the device's minor number, /proc/devices the major one. /proc/devices and the list of all minor numbers
//! belong to the kernel and are read from the caller's /proc; the files are read from the driver root.

use std::os::fd::AsFd;
use std::path::Path;

use nix::errno::Errno;

use crate::directory;
use crate::error::{Error, ErrorKind, Result};
use crate::host::nodes::CAPABILITY_DIRECTORY;
use crate::host::{
    CharDrivers, DeviceNode, DriverRoot, MigAccess, MigDevice, majors, nodes, procfs,
};
use crate::path::HostPath;
use crate::read_file;

/// Directory of the capabilities.
pub const CAPABILITIES: &str = "/proc/driver/nvidia/capabilities";

const MIG_MINORS: &str = "/proc/driver/nvidia-caps/mig-minors";
/// Name of their driver in /proc/devices.
pub(crate) const DRIVER: &str = "nvidia-caps";
/// Depth of the directory: gpu, mig, gi, ci.
const MAX_DEPTH: usize = 8;
/// Limit of its files; the largest machines have some thousands.
const MAX_FILES: usize = 1 << 16;

/// The driver's way of granting capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// The driver has no capabilities.
    None,
    /// By access to files in /proc, as in the first drivers with MIG.
    Proc,
    /// By access to devices.
    Devices,
}

/// The machine's capability devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    major: Option<u32>,
}

impl Capabilities {
    /// Reads the kernel's tables.
    pub fn discover() -> Self {
        let major = majors::major_of(DRIVER).unwrap_or_else(|error| {
            if error.errno() != Some(Errno::ENOENT) {
                log::warn!("skipping the capabilities' devices: {}", error.message());
            }
            None
        });
        Self { major }
    }

    /// Returns the driver's way of granting capabilities.
    pub fn style(self) -> Style {
        if self.major.is_some() {
            Style::Devices
        } else if Path::new(CAPABILITIES).exists() {
            Style::Proc
        } else {
            Style::None
        }
    }

    /// Returns true if there are devices, so that the other methods can succeed.
    pub(crate) fn has_devices(self) -> bool {
        self.major.is_some()
    }

    /// Returns the device of a capability's file, e.g. `/proc/driver/nvidia/capabilities/mig/config`.
    ///
    /// # Errors
    /// `unable to get cap device attributes: <file>: <cause>`.
    pub fn device(self, root: &DriverRoot, file: &HostPath) -> Result<DeviceNode> {
        let operation = "unable to get cap device attributes";
        let bytes = root.read(file).map_err(|errno| {
            let error = Error::system(operation, errno).of(file);
            match errno {
                Errno::ENOENT => error.with_kind(ErrorKind::NotFound),
                _ => error,
            }
        })?;
        let minor = minor_of(&String::from_utf8_lossy(&bytes));
        let malformed = |cause: &str| {
            let error = Error::new(ErrorKind::Malformed, operation).of(file);
            error.because(cause)
        };
        let minor = minor.ok_or_else(|| malformed("no device number in it"))?;
        self.node(minor)
            .ok_or_else(|| malformed("no nvidia-caps in /proc/devices"))
    }

    /// Returns the devices of all capabilities that each GPU can have, whether or not the instances exist; None if
    /// capabilities are not devices.
    ///
    /// # Errors
    /// Those of [`MigMinors::read`].
    pub fn of_gpus(self, minors: &[u32]) -> Result<Option<Vec<Vec<DeviceNode>>>> {
        if !self.has_devices() {
            return Ok(None);
        }
        if minors.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let table = MigMinors::read()?;
        let nodes = |gpu: &u32| {
            let minors = table.of_gpu(*gpu).into_iter();
            minors.filter_map(|minor| self.node(minor)).collect()
        };
        Ok(Some(minors.iter().map(nodes).collect()))
    }

    fn node(self, minor: u32) -> Option<DeviceNode> {
        let path = format!("{CAPABILITY_DIRECTORY}/nvidia-cap{minor}");
        Some(DeviceNode::new(path, self.major?, minor))
    }
}

/// Returns all files of capabilities with their minor numbers, as far as the driver lists them.
pub(crate) fn files(root: &DriverRoot) -> Vec<(HostPath, Option<u32>)> {
    let files = texts(root).into_iter();
    files
        .map(|(file, text)| (file, text.as_deref().and_then(minor_of)))
        .collect()
}

/// Returns the minor number that the contents of a capability's file name.
pub(crate) fn minor_of(text: &str) -> Option<u32> {
    procfs::number(text, "DeviceFileMinor")
}

/// Returns all files of capabilities with their contents; None for a directory that is not known whole.
pub(crate) fn texts(root: &DriverRoot) -> Vec<(HostPath, Option<String>)> {
    let mut files = Vec::new();
    collect(
        root,
        &HostPath::new(CAPABILITIES),
        MAX_DEPTH,
        &mut { MAX_FILES },
        &mut files,
    );
    files
}

fn collect(
    root: &DriverRoot,
    directory: &HostPath,
    depth: usize,
    most: &mut usize,
    files: &mut Vec<(HostPath, Option<String>)>,
) {
    let mut entries = Vec::new();
    let listed = root.open_file(directory).and_then(|fd| {
        directory::list(fd.as_fd(), most, |entry| {
            if entry.name != "." && entry.name != ".." {
                entries.push((directory.join(entry.name), entry.kind == libc::DT_DIR));
            }
        })
    });
    if !matches!(listed, Ok(()) | Err(Errno::ENOENT)) || depth == 0 {
        // Not everything is known.
        files.push((directory.clone(), None));
        return;
    }
    entries.sort();
    for (path, is_directory) in entries {
        if is_directory {
            collect(root, &path, depth - 1, most, files);
            continue;
        }
        let text = root.read(&path).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        files.push((path, Some(text)));
    }
}

/// The names of all capabilities with their minor numbers, as the kernel's table has them: over a hundred of each GPU.
#[derive(Clone, Debug, Default)]
pub struct MigMinors(pub(crate) Vec<(String, u32)>);

impl From<&str> for MigMinors {
    /// Takes the table's text, with lines such as `gpu0/gi0/ci0/access 4`.
    fn from(text: &str) -> Self {
        let pairs = text.lines().filter_map(|line| {
            let (name, minor) = line.split_once(' ')?;
            Some((name.to_owned(), minor.trim().parse().ok()?))
        });
        Self(pairs.collect())
    }
}

impl MigMinors {
    /// Reads the table.
    ///
    /// # Errors
    /// `unable to open file for reading: /proc/driver/nvidia-caps/mig-minors: <cause>`.
    pub fn read() -> Result<Self> {
        let text = read_file::read_path(MIG_MINORS).map_err(|errno| {
            Error::file("unable to open file for reading", MIG_MINORS, errno)
                .hint("MIG devices need the driver's capability devices")
        })?;
        Ok(Self::from(&*String::from_utf8_lossy(&text)))
    }

    /// Returns the minor number of a capability, such as `config`.
    pub fn number(&self, name: &str) -> Option<u32> {
        let mut all = self.0.iter();
        all.find_map(|(known, minor)| (known == name).then_some(*minor))
    }

    /// Returns the minor numbers of all capabilities that a GPU can have.
    fn of_gpu(&self, gpu: u32) -> Vec<u32> {
        let start = format!("gpu{gpu}/");
        let own = self.0.iter().filter(|(name, _)| name.starts_with(&start));
        own.map(|(_, minor)| *minor).collect()
    }

    /// Returns the minor numbers of the nodes that give access to a MIG device; None if the table does not list them.
    pub fn numbers(&self, gpu: u32, mig: &MigDevice) -> Option<[u32; 2]> {
        let [of_gi, of_ci] = names(gpu, mig);
        Some([self.number(&of_gi)?, self.number(&of_ci)?])
    }

    /// Returns the nodes that give access to a MIG device: its GPU instance's, then its compute instance's. Adds the
    /// reasons why others are missing to `missing`.
    ///
    /// # Errors
    /// The table does not list the device.
    pub fn access(
        &self,
        gpu: u32,
        mig: &MigDevice,
        (dev_root, drivers): (&DriverRoot, &CharDrivers),
        missing: &mut Vec<String>,
    ) -> Result<Vec<MigAccess>> {
        let mut found = Vec::new();
        let directories = [&mig.gi_caps_path, &mig.ci_caps_path];
        for (name, directory) in names(gpu, mig).into_iter().zip(directories) {
            let unknown =
                || Error::new(ErrorKind::Malformed, format!("{MIG_MINORS} has no {name}"));
            let minor = self.number(&name).ok_or_else(unknown)?;
            let path = HostPath::new(format!("{CAPABILITY_DIRECTORY}/nvidia-cap{minor}"));
            let node = nodes::at(dev_root, &path, drivers);
            let node = node.map_err(|error| missing.push(error.message())).ok();
            let file = directory.join("access");
            found.push(MigAccess { file, node });
        }
        Ok(found)
    }
}

/// Returns the names of the capabilities that give access to a MIG device: its GPU instance's, its compute instance's.
fn names(gpu: u32, mig: &MigDevice) -> [String; 2] {
    let (gi, ci) = (mig.gi, mig.ci);
    [
        format!("gpu{gpu}/gi{gi}/access"),
        format!("gpu{gpu}/gi{gi}/ci{ci}/access"),
    ]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_of_each_gpu() {
        let text = "config 1\nmonitor 2\ngpu1/gi0/access 138\ngpu1/gi0/ci0/access 139\ngpu10/gi0/access 1353\nodd\ngpu1/x y\n";
        let expected = [(0, vec![]), (1, vec![138, 139]), (10, vec![1353])];
        let table = MigMinors::from(text);
        for (gpu, minors) in expected {
            assert_eq!(table.of_gpu(gpu), minors);
        }
    }

    #[test]
    fn files_have_minor_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("proc/driver/nvidia/capabilities");
        let root = DriverRoot::open(dir.path()).unwrap();
        assert_eq!(files(&root), []);
        for (name, text) in [
            ("mig/config", "DeviceFileMinor: 1\n"),
            ("gpu0/mig/gi1/access", "DeviceFileMinor: 12\n"),
            ("odd", "DeviceFileMinor 3\n"),
        ] {
            let path = top.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let path = |name: &str| HostPath::new(CAPABILITIES).join(name);
        let expected = [
            (path("gpu0/mig/gi1/access"), Some(12)),
            (path("mig/config"), Some(1)),
            (path("odd"), None),
        ];
        assert_eq!(files(&root), expected);
        std::fs::create_dir_all(top.join("a/b/c/d/e/f/g/h/i")).unwrap();
        assert!(files(&root).iter().any(|(_, minor)| minor.is_none()));
    }

    #[test]
    fn a_file_leads_to_its_device() {
        let dir = tempfile::tempdir().unwrap();
        let mig = dir.path().join("proc/driver/nvidia/capabilities/mig");
        std::fs::create_dir_all(&mig).unwrap();
        std::fs::write(
            mig.join("config"),
            "DeviceFileMinor: 1\nDeviceFileMode: 256\n",
        )
        .unwrap();
        std::fs::write(mig.join("odd"), "nonsense\n").unwrap();
        let root = DriverRoot::open(dir.path()).unwrap();
        let capabilities = Capabilities { major: Some(234) };
        let device = |name: &str| {
            let file = HostPath::new(CAPABILITIES).join("mig").join(name);
            capabilities.device(&root, &file)
        };
        let node = device("config").unwrap();
        assert_eq!(node.path, HostPath::new("/dev/nvidia-caps/nvidia-cap1"));
        assert_eq!(
            node.number,
            crate::host::DeviceNumber {
                major: 234,
                minor: 1
            }
        );
        let error = device("gone").unwrap_err();
        assert_eq!(
            error.message(),
            "unable to get cap device attributes: /proc/driver/nvidia/capabilities/mig/gone: no such file or directory"
        );
        assert_eq!(device("odd").unwrap_err().kind(), ErrorKind::Malformed);
    }
}
