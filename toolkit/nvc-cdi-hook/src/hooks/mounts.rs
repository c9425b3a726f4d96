//! Mounts files that our runtime leaves to the hook, because their places are on a volume of the container.
//!
//! An engine would create the mount points on the volume; libnvc gives the files other places.

use std::os::unix::fs::FileTypeExt as _;

use libnvc::host::FileClass;
use libnvc::plan::{Intent, Mount, Place, What};
use libnvc::{ContainerPath, Error, ErrorKind, HostPath, Result};
use nvc_options::Given;

/// Returns the intents of the requested mounts.
pub(super) fn intents(given: &Given) -> Result<Vec<Intent>> {
    given.list("mount").map(parse).collect()
}

/// Parses `SOURCE::PLACE`.
fn parse(word: &str) -> Result<Intent> {
    let invalid = || {
        Error::new(
            ErrorKind::InvalidArgument,
            format!("invalid --mount \"{word}\""),
        )
    };
    let (source, place) = word.split_once("::").ok_or_else(invalid)?;
    if !source.starts_with('/') || !place.starts_with('/') || place.contains("::") {
        return Err(invalid());
    }
    let place = ContainerPath::new(place);
    let class = class(source, &place);
    let what = What::Mount(Mount {
        source: HostPath::new(source),
        place: Place::At(place),
        class,
    });
    // As in a plan for `configure`: a container can work without its other files.
    Ok(match class {
        FileClass::Library => Intent::required(what),
        _ => Intent::best_effort(what),
    })
}

/// Returns the class of a file, by its place: only those of libraries and programs have other places. Directories are
/// those of daemons' sockets.
fn class(source: &str, place: &ContainerPath) -> FileClass {
    let found = std::fs::metadata(source);
    if found.is_ok_and(|found| found.is_dir() || found.file_type().is_socket()) {
        return FileClass::Socket;
    }
    let name = place.file_name().to_string_lossy().into_owned();
    let directory = place.parent();
    if name.starts_with("lib") && name.contains(".so") {
        FileClass::Library
    } else if matches!(directory.file_name().to_str(), Some("bin" | "sbin")) {
        FileClass::Program
    } else {
        FileClass::Data
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_parsed() {
        for (place, expected) in [
            ("/usr/lib64/libcuda.so.1", FileClass::Library),
            ("/usr/bin/nvidia-smi", FileClass::Program),
            ("/etc/vulkan/icd.d/nvidia_icd.json", FileClass::Data),
        ] {
            let intent = parse(&format!("/host/x::{place}")).unwrap();
            let What::Mount(mount) = intent.what else {
                panic!("{intent:?}");
            };
            assert_eq!(mount.source, HostPath::new("/host/x"));
            assert_eq!(mount.place, Place::At(ContainerPath::new(place)));
            assert_eq!(mount.class, expected, "{place}");
        }
        let intent = parse("/tmp::/tmp/nvidia-mps").unwrap();
        assert!(matches!(intent.what, What::Mount(mount) if mount.class == FileClass::Socket));
        for word in ["", "/a", "a::/b", "/a::b", "/a::/b::/c"] {
            assert!(parse(word).is_err(), "{word}");
        }
    }
}
