//! Selects the CUDA compatibility libraries of an image to use.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::intent::{CompatUse, CudaCompat};
use crate::host::catalogue;
use crate::path::ContainerPath;

impl CudaCompat {
    /// Returns the libraries to mount: those of another driver generation whose capability the container requests.
    pub fn mounted<'f>(&self, found: &'f [ContainerPath]) -> Vec<&'f ContainerPath> {
        if self.how != CompatUse::Mount {
            return Vec::new();
        }
        let ours = leading_number(self.host_driver.as_bytes());
        let is_wanted = |library: &&ContainerPath| {
            let theirs = generation(library.file_name());
            let known = catalogue::library_of(library.file_name());
            theirs.is_some()
                && theirs != ours
                && known.is_some_and(|known| known.is_wanted(self.capabilities))
        };
        found.iter().filter(is_wanted).collect()
    }

    /// Returns the directories of the libraries newer than the driver, which the loader should search first.
    pub fn searched(&self, found: &[ContainerPath]) -> Vec<ContainerPath> {
        if self.how != CompatUse::Search {
            return Vec::new();
        }
        let ours = leading_number(self.host_driver.as_bytes());
        let newer = found
            .iter()
            .filter(|library| generation(library.file_name()) > ours);
        let mut directories: Vec<_> = newer.map(ContainerPath::parent).collect();
        directories.dedup();
        directories
    }
}

/// Returns the driver generation in a library's name: 550 of `libcuda.so.550.54.14`.
fn generation(name: &OsStr) -> Option<u64> {
    let name = name.as_bytes();
    let at = name.windows(4).position(|part| part == b".so.")?;
    leading_number(name.get(at + 4..)?)
}

fn leading_number(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(text.get(..digits)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capability::Capabilities;

    fn compat(how: CompatUse) -> CudaCompat {
        CudaCompat {
            host_driver: "535.1".into(),
            host_cuda: None,
            root: None,
            how,
            capabilities: Capabilities::COMPUTE,
        }
    }

    fn found() -> Vec<ContainerPath> {
        let directory = ContainerPath::new("/usr/local/cuda-12.4/compat");
        let names = [
            "libcuda.so.550.1",
            "libcuda.so.535.9",
            "libcuda.so.470.1",
            "libother.so.550.1",
        ];
        names.map(|name| directory.join(name)).to_vec()
    }

    #[test]
    fn other_generations_of_known_libraries_are_mounted() {
        let found = found();
        let mounted = compat(CompatUse::Mount).mounted(&found);
        // Includes the older one.
        assert_eq!(mounted, [&found[0], &found[2]]);
        assert!(compat(CompatUse::Search).mounted(&found).is_empty());
    }

    #[test]
    fn directories_of_newer_libraries_are_searched() {
        let searched = compat(CompatUse::Search).searched(&found());
        assert_eq!(
            searched,
            [ContainerPath::new("/usr/local/cuda-12.4/compat")]
        );
        assert!(compat(CompatUse::Mount).searched(&found()).is_empty());
        assert!(
            compat(CompatUse::Search)
                .searched(&found()[1..3])
                .is_empty()
        );
    }

    #[test]
    fn generations_compare_as_numbers() {
        let generation = |name: &str| generation(OsStr::new(name));
        assert_eq!(generation("libcuda.so.550.54.14"), Some(550));
        assert_eq!(generation("libcuda.so.1000.1"), Some(1000));
        assert_eq!(generation("libcuda.so.x"), None);
        assert_eq!(generation("libcuda.so"), None);
        assert!(generation("libcuda.so.1000.1") > generation("libcuda.so.999.1"));
    }
}
