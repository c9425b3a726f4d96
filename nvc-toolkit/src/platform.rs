//! Tells what kind of machine this is, without asking the driver.

use std::path::Path;

use crate::mode::has_tegra_files;

/// Whether GPUs are given by the lists of files that a Jetson has.
///
/// A Tegra system with a management library is one too if its GPU is part of the chip, which that library says; all
/// Tegra systems that have both are such systems, so it is not asked.
pub fn is_tegra() -> bool {
    has_tegra_files(Path::new("/"))
}
