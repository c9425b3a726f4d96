//! Determines the kind of machine, without querying the driver.

use std::path::Path;

use crate::mode::has_tegra_files;

/// Returns true if GPUs are added by a Jetson's file lists.
///
/// A Tegra system with a management library also counts if its GPU is integrated, according to that library. All Tegra
/// systems with both have an integrated GPU, so the library is not queried.
pub fn is_tegra() -> bool {
    has_tegra_files(Path::new("/"))
}
