//! Asks a Jetson's driver for its CUDA version and its GPUs: NVML, and libcuda if NVML does not know.
//!
//! Older Jetsons have no NVML; then no process is started unless an image requires something. Both libraries are loaded
//! by a process without privileges.

use std::fs;
use std::path::{Path, PathBuf};

use libnvc::ContainerPath;
use libnvc::host::query::QueryProgram;
use libnvc::host::{CudaFacts, DriverRoot, DriverSession, GpusAsked, ListedGpu, search};
use libnvc::plan::{CompatUse, CudaCompat};
use libnvc::request::Capabilities;
use nvc_policy::{platform, session};

use super::choice::{Choice, ChosenGpu};
use super::listing::Listing;
use super::requirements::Facts;

/// The directory of images' compatibility libraries for Orin; other GPUs have the hook's default.
const ORIN: &str = "/usr/local/cuda/compat_orin";

/// The board's name, in the device tree.
const BOARD: &str = "/proc/device-tree/model";

/// A Jetson's driver, with NVML's answers.
#[derive(Debug)]
pub struct Driver {
    root: PathBuf,
    program: QueryProgram,
    cuda: Option<String>,
    gpus: Listing,
}

impl Driver {
    /// Describes a driver without asking it.
    pub fn unasked(root: &Path, program: &QueryProgram) -> Self {
        Self {
            root: root.to_owned(),
            program: program.clone(),
            cuda: None,
            gpus: Listing::Unknown,
        }
    }

    /// Asks the driver below a root, if it has NVML, with `program`.
    pub fn ask(root: &Path, program: &QueryProgram) -> Self {
        let unasked = Self::unasked(root, program);
        let Ok(opened) = DriverRoot::open(root) else {
            return unasked;
        };
        if !search::has_library(&opened, "libnvidia-ml.so.1") {
            return unasked;
        }
        match session::open(root.to_owned(), None, Vec::new(), program, GpusAsked::All) {
            Ok(mut session) => {
                let listed = platform::listed(&mut session);
                Self::answered(root, program, &mut session, listed)
            }
            Err(error) => Self {
                gpus: Listing::Failed(error),
                ..unasked
            },
        }
    }

    /// Describes a driver with NVML's list, which `session` has got.
    pub fn answered(
        root: &Path,
        program: &QueryProgram,
        session: &mut DriverSession,
        listed: libnvc::Result<Vec<ListedGpu>>,
    ) -> Self {
        Self {
            cuda: session
                .reported_versions()
                .ok()
                .map(|versions| versions.cuda),
            gpus: match listed {
                Ok(gpus) => Listing::Gpus(gpus),
                Err(error) => Listing::Failed(error),
            },
            ..Self::unasked(root, program)
        }
    }

    /// Returns NVML's list of GPUs.
    pub fn listing(&self) -> &Listing {
        &self.gpus
    }

    /// Returns all GPUs on NVML's list.
    pub fn gpus(&self) -> &[ListedGpu] {
        match &self.gpus {
            Listing::Gpus(gpus) => gpus,
            Listing::Unknown | Listing::Failed(_) => &[],
        }
    }

    /// Returns the use of an image's CUDA compatibility libraries, if they are newer than the host's CUDA version; None
    /// unless NVML knows it. `directory` replaces Orin's directory of those libraries unless it is empty.
    pub fn compat(&self, directory: &str) -> Option<CudaCompat> {
        let cuda = self.cuda.as_ref()?;
        let models = self.gpus().iter().filter_map(|gpu| gpu.model.clone());
        let mut models: Vec<String> = models.collect();
        if models.is_empty() {
            models.extend(fs::read_to_string(BOARD).ok());
        }
        Some(compat(cuda, &models, directory))
    }

    /// Returns the facts for requirements: those of each chosen GPU, or of the first if none is chosen. Asks libcuda for
    /// those that NVML does not know, and returns its problem, if any: what stays unknown meets no requirement.
    pub fn facts(&self, choice: Option<&Choice>) -> (Vec<Facts>, Option<String>) {
        let chosen = choice.map_or(&[][..], |choice| &choice.devices);
        let arch = |index: u32| {
            let gpu = self.gpus().iter().find(|gpu| gpu.index == index)?;
            gpu.arch.clone()
        };
        let mut indices: Vec<u32> = chosen.iter().map(ChosenGpu::index).collect();
        if indices.is_empty() {
            indices.push(0);
        }
        let facts = |index: &u32| Facts {
            cuda: self.cuda.clone(),
            arch: arch(*index),
        };
        let mut all: Vec<Facts> = indices.iter().map(facts).collect();
        // CUDA's order of several GPUs is not NVML's.
        let is_alone = self.gpus().len() < 2;
        let misses = |facts: &Facts| facts.cuda.is_none() || facts.arch.is_none() && is_alone;
        let mut problem = None;
        if all.iter().any(misses) {
            let cuda = self.ask_cuda();
            problem = cuda.problem;
            for facts in &mut all {
                facts.cuda = facts.cuda.take().or(cuda.version.clone());
                if is_alone {
                    facts.arch = facts.arch.take().or(cuda.arch.clone());
                }
            }
        }
        (all, problem)
    }

    fn ask_cuda(&self) -> CudaFacts {
        session::ask_cuda(self.root.clone(), &self.program).unwrap_or_else(|error| CudaFacts {
            problem: Some(error.message()),
            ..CudaFacts::default()
        })
    }
}

/// Returns the use for a CUDA version and product names.
fn compat(cuda: &str, models: &[String], directory: &str) -> CudaCompat {
    let directory = match directory {
        "" => ORIN,
        given => given,
    };
    let is_orin = models.iter().any(|model| model.contains("Orin"));
    CudaCompat {
        host_driver: String::new(),
        host_cuda: Some(cuda.to_owned()),
        root: is_orin.then(|| ContainerPath::new(directory)),
        how: CompatUse::Configure,
        capabilities: Capabilities::all(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_orin_has_its_own_directory() {
        let own = Some(ContainerPath::new("/usr/local/cuda/compat_orin"));
        let given = Some(ContainerPath::new("/opt/compat"));
        let of = |models: &[&str], directory| {
            let models: Vec<String> = models.iter().map(ToString::to_string).collect();
            compat("12.6", &models, directory).root
        };
        assert_eq!(of(&["Orin (nvgpu)"], ""), own);
        assert_eq!(of(&["Orin (nvgpu)"], "/opt/compat"), given);
        assert_eq!(of(&["NVIDIA Thor"], "/opt/compat"), None);
        assert_eq!(of(&["Orin (nvgpu)", "NVIDIA RTX A6000"], ""), own);
    }

    #[test]
    fn a_driver_without_nvml_is_not_asked() {
        let none = Path::new("/proc/self/fdinfo");
        let driver = Driver::ask(none, &QueryProgram::ThisProcess);
        assert_eq!(driver.compat(""), None);
        assert!(matches!(driver.listing(), Listing::Unknown));
    }
}
