//! Finds the NVIDIA GPUs on the PCI bus, from sysfs.

use std::cell::OnceCell;
use std::fs;
use std::path::{Path, PathBuf};

/// The kernel's list of PCI devices.
pub const DEVICES: &str = "/sys/bus/pci/devices";

/// The number of NVIDIA GPUs. They are counted on first use, because a server has hundreds of devices on its buses.
#[derive(Debug, Default)]
pub(super) struct GpuCount(OnceCell<Option<u32>>);

impl GpuCount {
    /// Returns the number; None if sysfs is unavailable.
    pub(super) fn get(&self) -> Option<u32> {
        *self.0.get_or_init(|| {
            let count = gpus_in(Path::new(DEVICES))?.count();
            u32::try_from(count).ok()
        })
    }
}

#[cfg(test)]
impl From<Option<u32>> for GpuCount {
    fn from(number: Option<u32>) -> Self {
        Self(OnceCell::from(number))
    }
}

/// Returns true if a device exists, by its name in sysfs.
pub(super) fn has(name: &str) -> bool {
    Path::new(DEVICES).join(name).exists()
}

/// Returns the directories of the GPUs; None if sysfs is unavailable.
pub fn gpus() -> Option<Vec<PathBuf>> {
    gpus_in(Path::new(DEVICES)).map(Iterator::collect)
}

fn gpus_in(devices: &Path) -> Option<impl Iterator<Item = PathBuf>> {
    let is_gpu = |device: &PathBuf| {
        let reads = |name: &str, prefix: &str| {
            fs::read_to_string(device.join(name)).is_ok_and(|text| text.starts_with(prefix))
        };
        // NVIDIA; all kinds of display controllers.
        reads("vendor", "0x10de") && reads("class", "0x03")
    };
    let devices = fs::read_dir(devices).ok()?.flatten();
    Some(devices.map(|device| device.path()).filter(is_gpu))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn counts_display_controllers_of_the_vendor() {
        let dir = tempfile::tempdir().unwrap();
        for (name, vendor, class) in [
            ("vga", "0x10de", "0x030000"),
            ("3d", "0x10de", "0x030200"),
            ("audio", "0x10de", "0x040300"),
            ("switch", "0x10de", "0x068000"),
            ("other", "0x1002", "0x030000"),
        ] {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("vendor"), format!("{vendor}\n")).unwrap();
            fs::write(dir.path().join(name).join("class"), format!("{class}\n")).unwrap();
        }
        fs::create_dir(dir.path().join("empty")).unwrap();
        let count = |path: &Path| gpus_in(path).map(Iterator::count);
        assert_eq!(count(dir.path()), Some(2));
        assert_eq!(count(&dir.path().join("nowhere")), None);
    }

    #[test]
    fn devices_are_found_by_name() {
        let all = fs::read_dir(DEVICES).into_iter().flatten().flatten();
        let mut names = all.filter_map(|entry| entry.file_name().into_string().ok());
        assert!(names.all(|name| has(&name)));
        assert!(!has("0000:ff:1f.9"));
    }
}
