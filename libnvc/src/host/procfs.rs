//! Reads the kernel module's files in /proc/driver/nvidia.

use std::os::fd::AsFd;

use log::{info, warn};
use nix::errno::Errno;

use crate::directory;
use crate::error::{Error, errno_text};
use crate::host::{DriverRoot, ProcFile};
use crate::inroot;
use crate::path::HostPath;
use crate::read_file;

/// Directory of the kernel module's files.
pub(crate) const DIRECTORY: &str = "/proc/driver/nvidia";

/// Size limit: the files have a few hundred bytes, unless something else is in their place.
const MAX_SIZE: u64 = 1 << 20;

/// Limit of listed GPUs, with `.` and `..`.
const MAX_GPUS: usize = 4098;

/// Returns the text files that containers get a copy of, as far as they exist: `params`, `version` and `registry`.
///
/// The copy of `params` tells the container's programs not to create device nodes.
pub(crate) fn files(root: &DriverRoot) -> Vec<ProcFile> {
    let names = ["params", "version", "registry"];
    let read = |name: &&str| match read_file(root, name) {
        Ok(file) => Some(file),
        Err(errno) => {
            let path = root.join(&HostPath::new(DIRECTORY).join(name));
            match errno {
                Errno::ENOENT => info!("missing {}", path.display()),
                _ => warn!("skipping {}: {}", path.display(), errno_text(errno)),
            }
            None
        }
    };
    names.iter().filter_map(read).collect()
}

/// Returns the `params` for a container; None if the driver has none, or none that allows programs to create nodes.
///
/// # Errors
/// `open failed: /proc/driver/nvidia/params: <cause>`.
pub(crate) fn container_params(root: &DriverRoot) -> crate::error::Result<Option<ProcFile>> {
    let path = HostPath::new(DIRECTORY).join("params");
    let failed = |errno| Error::file("open failed", root.join(&path), errno);
    let original = match root.read(&path) {
        Err(Errno::ENOENT) => return Ok(None),
        read => read.map_err(failed)?,
    };
    let params = read_file(root, "params").map_err(failed)?;
    Ok((params.content.as_bytes() != original).then_some(params))
}

fn read_file(root: &DriverRoot, name: &str) -> Result<ProcFile, Errno> {
    let file = root.open_file(&HostPath::new(DIRECTORY).join(name))?;
    let mode = inroot::stat(file.as_fd())?.st_mode & 0o7777;
    let bytes = read_file::read(file, MAX_SIZE)?;
    let text = String::from_utf8_lossy(&bytes);
    let content = match name {
        "params" => without_device_creation(&text),
        _ => text.into_owned(),
    };
    Ok(ProcFile {
        name: name.to_owned(),
        mode,
        content,
    })
}

/// Returns the module's parameters with `ModifyDeviceFiles` off.
pub(crate) fn without_device_creation(params: &str) -> String {
    let edited = |line: &str| match line.trim_end_matches('\n') {
        "ModifyDeviceFiles: 1" => line.replace('1', "0"),
        _ => line.to_owned(),
    };
    params.split_inclusive('\n').map(edited).collect()
}

/// Returns a GPU's directory, if it exists; the domain has eight digits in `busid`, and eight or four in the
/// directory's name.
pub fn gpu_directory(root: &DriverRoot, busid: &str) -> Option<HostPath> {
    let gpus = HostPath::new(DIRECTORY).join("gpus");
    let names = [Some(busid), busid.strip_prefix("0000")];
    let mut paths = names.into_iter().flatten().map(|name| gpus.join(name));
    paths.find(|path| {
        root.exists(path).unwrap_or_else(|errno| {
            let path = root.join(path);
            log::warn!("skipping {}: {}", path.display(), errno_text(errno));
            false
        })
    })
}

/// A GPU as the kernel module describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleGpu {
    /// Its PCI address, the name of its directory: `0000:3b:00.0`.
    pub busid: String,
    /// `GPU-…`; empty if the module does not know it.
    pub uuid: String,
    /// Minor number of its node.
    pub minor: Option<u32>,
    /// True if it is on the PCI bus; a SoC's display is not.
    pub is_pci: bool,
    /// True if the module was told to leave it out, so that NVML does not list it.
    pub is_excluded: bool,
    /// Name of the product.
    pub model: String,
}

impl ModuleGpu {
    /// Returns the UUID, if the module knows it: until the GPU was first attached, it has question marks.
    pub(crate) fn known_uuid(&self) -> Option<&str> {
        (self.uuid.starts_with("GPU-") && !self.uuid.contains('?')).then_some(&*self.uuid)
    }

    /// Reads a GPU's `information`.
    fn of(busid: String, information: &str) -> Self {
        let field = |name: &str| {
            let mut lines = information.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value.map_or("", str::trim)
        };
        Self {
            busid,
            uuid: field("GPU UUID").to_owned(),
            minor: number(information, "Device Minor"),
            is_pci: field("Bus Type").starts_with("PCI"),
            is_excluded: field("GPU Excluded") == "Yes",
            model: field("Model").to_owned(),
        }
    }
}

/// Returns the GPUs that the kernel module lists, sorted by address; none if it is not loaded.
pub fn gpus(root: &DriverRoot) -> Vec<ModuleGpu> {
    let gpus = HostPath::new(DIRECTORY).join("gpus");
    let mut names = Vec::new();
    // A list that is cut short is as good as the rest of it.
    let _ = root.open_file(&gpus).and_then(|directory| {
        directory::list(directory.as_fd(), &mut { MAX_GPUS }, |entry| {
            names.extend(entry.name.to_str().map(str::to_owned));
        })
    });
    names.retain(|name| name != "." && name != "..");
    names.sort();
    let read = |name: String| {
        let text = root.read(&gpus.join(&name).join("information"));
        let text = text.unwrap_or_default();
        ModuleGpu::of(name, &String::from_utf8_lossy(&text))
    };
    names.into_iter().map(read).collect()
}

/// Returns the kernel module's version, if it is loaded.
pub fn module_version(root: &DriverRoot) -> Option<String> {
    parse_version(&text_of(root, "version")).map(str::to_owned)
}

/// Returns the text of one of the module's files; empty without it.
pub(crate) fn text_of(root: &DriverRoot, name: &str) -> String {
    let bytes = root.read(&HostPath::new(DIRECTORY).join(name));
    String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
}

/// Extracts the version from a line such as `NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03  Mon May 12 …`.
pub(crate) fn parse_version(text: &str) -> Option<&str> {
    let line = text.lines().find_map(|l| l.strip_prefix("NVRM version:"))?;
    line.split_whitespace().find(|word| {
        word.contains('.')
            && word.starts_with(|c: char| c.is_ascii_digit())
            && word
                .bytes()
                .all(|byte| byte.is_ascii_digit() || byte == b'.')
    })
}

/// Returns the number on the line `<key>: <number>`.
pub(crate) fn number(text: &str, key: &str) -> Option<u32> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim().parse().ok())?
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn versions_of_both_sorts_of_module() {
        for (text, version) in [
            (
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03  Mon May 12 10:00:00 UTC 2025\nGCC version:  gcc version 12.2.0\n",
                Some("535.261.03"),
            ),
            (
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release Build  (dvs@x)  Thu Feb 22 2024\n",
                Some("550.54.14"),
            ),
            ("GCC version:  gcc version 12.2.0\n", None),
            ("NVRM version: none\n", None),
            ("", None),
        ] {
            assert_eq!(parse_version(text), version);
        }
    }

    #[test]
    fn gpus_as_the_module_describes_them() {
        let dir = tempfile::tempdir().unwrap();
        let root = || DriverRoot::open(dir.path()).unwrap();
        assert_eq!(gpus(&root()), []);
        for (busid, text) in [
            (
                "0005:09:00.0",
                "GPU UUID: \t GPU-1\nBus Type: \t PCIe\nDevice Minor: \t 1\n",
            ),
            ("0000:00:00.0", "Bus Type: \t Unknown\nDevice Minor: \t 2\n"),
            ("0006:01:00.0", "Bus Type: \t PCIe\n"),
            ("0001:01:00.0", "Device Minor: 3\nBus Type: \t PCI\n"),
        ] {
            let at = dir.path().join("proc/driver/nvidia/gpus").join(busid);
            std::fs::create_dir_all(&at).unwrap();
            std::fs::write(at.join("information"), text).unwrap();
        }
        let gpu = |busid: &str, uuid: &str, minor, is_pci| ModuleGpu {
            busid: busid.into(),
            uuid: uuid.into(),
            minor,
            is_pci,
            is_excluded: false,
            model: String::new(),
        };
        let expected = [
            gpu("0000:00:00.0", "", Some(2), false),
            gpu("0001:01:00.0", "", Some(3), true),
            gpu("0005:09:00.0", "GPU-1", Some(1), true),
            gpu("0006:01:00.0", "", None, true),
        ];
        assert_eq!(gpus(&root()), expected);
    }

    #[test]
    fn numbers_by_key() {
        let text = "DeviceFileMinor: 138\nDeviceFileMode: 292\nRmMsg: \"\"\nDevice Minor: \t 3\n";
        assert_eq!(number(text, "DeviceFileMinor"), Some(138));
        assert_eq!(number(text, "Device Minor"), Some(3));
        assert_eq!(number(text, "DeviceFile"), None);
        assert_eq!(number(text, "RmMsg"), None);
        assert_eq!(number("X: 4294967296", "X"), None);
    }

    #[test]
    fn copies_for_containers() {
        let dir = tempfile::tempdir().unwrap();
        let nvidia = dir.path().join("proc/driver/nvidia");
        std::fs::create_dir_all(&nvidia).unwrap();
        std::fs::write(nvidia.join("params"), "A: 1\nModifyDeviceFiles: 1\nB: 1\n").unwrap();
        std::fs::write(nvidia.join("version"), "NVRM version: x 1.2\n").unwrap();
        let readable = std::fs::Permissions::from_mode(0o444);
        std::fs::set_permissions(nvidia.join("params"), readable).unwrap();
        let root = DriverRoot::open(dir.path()).unwrap();
        let files = files(&root);
        let names: Vec<_> = files.iter().map(|file| &*file.name).collect();
        assert_eq!(names, ["params", "version"]);
        assert_eq!(files[0].content, "A: 1\nModifyDeviceFiles: 0\nB: 1\n");
        for other in ["ModifyDeviceFiles: 11\n", "ModifyDeviceFiles: 1 \n"] {
            assert_eq!(without_device_creation(other), other);
        }
        assert_eq!(files[0].mode, 0o444);
        assert_eq!(module_version(&root).unwrap(), "1.2");
    }

    #[test]
    fn a_gpu_has_either_name() {
        let dir = tempfile::tempdir().unwrap();
        let gpus = dir.path().join("proc/driver/nvidia/gpus");
        for name in ["0000:3b:00.0", "00000001:00:00.0"] {
            std::fs::create_dir_all(gpus.join(name)).unwrap();
        }
        let root = DriverRoot::open(dir.path()).unwrap();
        let find = |busid: &str| gpu_directory(&root, busid).map(|path| path.to_string());
        let path = |name: &str| Some(format!("/proc/driver/nvidia/gpus/{name}"));
        assert_eq!(find("00000000:3b:00.0"), path("0000:3b:00.0"));
        assert_eq!(find("00000001:00:00.0"), path("00000001:00:00.0"));
        assert_eq!(find("00000000:af:00.0"), None);
        assert_eq!(find("10000000:3b:00.0"), None);
    }
}
