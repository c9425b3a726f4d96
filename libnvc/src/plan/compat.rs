//! Selects the CUDA compatibility libraries of an image to use.

use std::cmp::Ordering;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::intent::{CompatUse, CudaCompat};
use crate::error::{Error, ErrorKind, Result};
use crate::host::catalogue;
use crate::path::ContainerPath;
use crate::require::compare_versions;

/// The only libcuda in an image's directory of compatibility libraries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CompatLibrary {
    /// Its directory, with links resolved.
    pub(crate) directory: ContainerPath,
    /// The end of its name, after `libcuda.so.`.
    pub(crate) version: String,
    pub(crate) note: Option<CompatNote>,
}

/// What a compatibility libcuda says about itself, in an ELF note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CompatNote {
    /// Its CUDA version.
    pub(crate) cuda: String,
    /// Major versions of the drivers that it supports.
    pub(crate) drivers: Vec<u64>,
}

impl CompatNote {
    /// Parses the note's JSON, whose keys may be in any case; None if it names no CUDA version.
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        let text = value.split(|byte| *byte == 0).next()?;
        let object: serde_json::Map<_, _> = serde_json::from_slice(text).ok()?;
        let get = |wanted: &str| {
            let mut pairs = object.iter();
            pairs.find_map(|(key, value)| key.eq_ignore_ascii_case(wanted).then_some(value))
        };
        let drivers = get("driver").and_then(serde_json::Value::as_array);
        let drivers = drivers.into_iter().flatten();
        Some(Self {
            cuda: get("CUDA version")?.as_str()?.to_owned(),
            drivers: drivers.filter_map(serde_json::Value::as_u64).collect(),
        })
    }
}

impl CudaCompat {
    /// Returns the libraries to mount: those of another driver generation whose capability the container requests.
    pub(crate) fn mounted<'f>(&self, found: &'f [ContainerPath]) -> Vec<&'f ContainerPath> {
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
    pub(crate) fn searched(&self, found: &[ContainerPath]) -> Vec<ContainerPath> {
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

    /// Returns true if the loader should search the directory of the image's only libcuda first.
    ///
    /// # Errors
    /// The host driver's version is not one.
    pub(crate) fn configures(&self, library: &CompatLibrary) -> Result<bool> {
        let is_newer = |one, other| compare_versions(one, other) == Some(Ordering::Greater);
        let host = plain(&self.host_driver);
        let major = leading_number(host.as_bytes());
        if major.is_none() && !host.is_empty() {
            let error = Error::new(ErrorKind::InvalidArgument, "invalid driver version");
            return Err(error.of(host));
        }
        Ok(match (&library.note, self.host_cuda.as_deref()) {
            (Some(note), _) if !host.is_empty() => {
                let fits = major.is_some_and(|major| note.drivers.contains(&major));
                fits && is_newer(&library.version, host)
            }
            (Some(note), Some(cuda)) => is_newer(&note.cuda, plain(cuda)),
            (_, Some(_)) => false,
            (_, None) => leading_number(library.version.as_bytes()) > major,
        })
    }
}

/// Returns a version without the `v` that some programs put before it.
fn plain(version: &str) -> &str {
    version.strip_prefix('v').unwrap_or(version)
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
#[allow(clippy::unwrap_used)]
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
    fn a_newer_library_is_configured() {
        let configures = |driver: &str, cuda: &str, version: &str, note: Option<(&str, &[u64])>| {
            let note = note.map(|(cuda, drivers)| CompatNote {
                cuda: cuda.into(),
                drivers: drivers.into(),
            });
            let library = CompatLibrary {
                directory: ContainerPath::new("/x"),
                version: version.into(),
                note,
            };
            let compat = CudaCompat {
                host_driver: driver.into(),
                host_cuda: Some(cuda.to_owned()).filter(|cuda| !cuda.is_empty()),
                ..compat(CompatUse::Configure)
            };
            compat.configures(&library).unwrap()
        };
        assert!(configures("535.1", "", "550.2", None));
        assert!(!configures("550.1", "", "550.2", None));
        assert!(!configures("535.1", "12.2", "550.2", None));
        assert!(configures("550.1", "", "550.2", Some(("12.6", &[550]))));
        assert!(!configures("551.1", "", "560.2", Some(("12.6", &[550]))));
        assert!(!configures("550.3", "", "550.2", Some(("12.6", &[550]))));
        assert!(configures("", "12.2", "1.1", Some(("12.6", &[]))));
        assert!(configures("", "12.6", "1.1", Some(("12.10", &[]))));
        assert!(!configures("", "12.8", "1.1", Some(("12.6", &[]))));
        assert!(configures("v550.1", "", "550.2", Some(("12.6", &[550]))));
        assert!(!configures("v550.3", "", "550.2", Some(("12.6", &[550]))));
        assert!(configures("", "v12.2", "1.1", Some(("12.6", &[]))));
    }

    #[test]
    fn notes_are_json() {
        let text = br#"{"format":1, "CUDA version": "12.6", "driver": [535, 550], "device": []}"#;
        let note = CompatNote {
            cuda: "12.6".into(),
            drivers: vec![535, 550],
        };
        assert_eq!(CompatNote::parse(text), Some(note.clone()));
        let upper = String::from_utf8_lossy(text).replace("driver", "Driver") + "\0";
        assert_eq!(CompatNote::parse(upper.as_bytes()), Some(note));
        let alone = CompatNote::parse(br#"{"cuda version": "12.6"}"#).unwrap();
        assert!(alone.drivers.is_empty());
        for odd in ["", "x", "[]", "{}", r#"{"CUDA version": 12}"#] {
            assert_eq!(CompatNote::parse(odd.as_bytes()), None, "{odd}");
        }
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
