//! Describes a simulated driver root that was built: its paths, its profile, its major numbers.

use std::io;
use std::path::{Path, PathBuf};

use super::native::{NATIVE, NATIVE_32};
use super::procfs::Majors;
use crate::files;
use crate::profile::{MigMode, Profile};

/// A simulated driver root.
#[derive(Debug)]
pub struct Driver {
    pub(super) root: PathBuf,
    pub(super) profile: Profile,
    pub(super) libraries: String,
    pub(super) majors: Majors,
    /// Other drivers, with their major numbers.
    pub(super) modules: Vec<(String, u32)>,
    pub(super) left_out: Vec<String>,
}

impl Driver {
    /// Returns the root directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the host path of a file in the root.
    pub fn path(&self, inside: impl AsRef<Path>) -> PathBuf {
        files::below(&self.root, inside.as_ref())
    }

    /// Returns the host path of a library, named up to `.so`.
    pub fn library(&self, stem: &str) -> PathBuf {
        let version = &self.profile.driver;
        self.path(format!("{}/{stem}.so.{version}", self.libraries))
    }

    /// Returns the driver's answers.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Returns the major numbers of its devices.
    pub fn majors(&self) -> Majors {
        self.majors
    }

    /// Expands placeholders in a text: `VER` is the driver's version, `LIB32` and `LIB` are Debian's multiarch
    /// directories, `CAPS`, `IMEX` and `UVM` the major numbers.
    pub fn fill(&self, text: &str) -> String {
        text.replace("VER", &self.profile.driver)
            .replace("LIB32", &format!("usr/lib/{}", NATIVE_32.0))
            .replace("LIB", &format!("usr/lib/{}", NATIVE.0))
            .replace("CAPS", &self.majors.caps.to_string())
            .replace("IMEX", &self.majors.imex.to_string())
            .replace("UVM", &self.majors.uvm.to_string())
    }

    /// Returns the files that could not be created, with the reasons.
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// Changes the answers from now on; missing entry points and procfs files stay as built.
    ///
    /// # Errors
    /// The profile cannot be written.
    pub fn answer(&self, profile: &Profile) -> io::Result<()> {
        let path = self.path("/etc/nvidia-sim/profile");
        files::file(&path, profile.to_string(), 0o644)
    }

    /// Returns the expected output of `nvidia-smi -L` in a container with GPU `index` and those MIG devices (NVML's
    /// indices).
    pub fn listing(&self, index: usize, mig_slots: &[u32]) -> String {
        let Some(gpu) = self.profile.gpus.get(index) else {
            return String::new();
        };
        let mut text = format!("GPU 0: {} (UUID: {})\n", gpu.model, gpu.uuid);
        let on_gpu = self
            .profile
            .mig_devices
            .iter()
            .filter(|mig| mig.gpu == index);
        let wanted = on_gpu.filter(|mig| gpu.mig == MigMode::On && mig_slots.contains(&mig.slot));
        for (place, mig) in wanted.enumerate() {
            text += &format!(
                "  MIG {:<15} Device {place:2}: (UUID: {})\n",
                mig.name, mig.uuid
            );
        }
        text
    }
}
