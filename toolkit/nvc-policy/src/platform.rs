//! Determines the kind of machine, without querying the driver.

use std::path::Path;

/// Returns true if GPUs are added by a Jetson's file lists.
///
/// A Tegra system with a management library also counts if its GPU is integrated, according to that library. All Tegra
/// systems with both have an integrated GPU, so the library is not queried.
pub fn is_tegra() -> bool {
    has_tegra_files(Path::new("/"))
}

/// Returns true if this machine has the files of a Tegra system.
pub fn has_tegra_files(root: &Path) -> bool {
    let release = root.join("etc/nv_tegra_release");
    let is_file = std::fs::metadata(release).is_ok_and(|facts| facts.is_file());
    is_file || {
        let family = std::fs::read(root.join("sys/devices/soc0/family")).unwrap_or_default();
        family
            .get(..5)
            .is_some_and(|start| start.eq_ignore_ascii_case(b"tegra"))
    }
}
