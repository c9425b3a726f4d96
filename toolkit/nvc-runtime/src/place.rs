//! Finds a container's bundle and config.json, as the low-level runtime finds them.

use std::path::{Path, PathBuf};

use nvc_oci::paths;

use crate::arguments::{Bundle, Line};
use crate::{crun, crun_line};

/// The places of a container's files.
#[derive(Debug)]
pub(crate) struct Place {
    /// The directory at which relative paths in config.json start.
    pub bundle: PathBuf,
    /// config.json.
    pub file: PathBuf,
}

impl Place {
    /// Returns the places for a command line; None if the bundle's option lacks its value.
    pub(crate) fn find(line: &Line, runtime: &Path) -> Option<Self> {
        if crun::is_crun(runtime) {
            let (bundle, file) = crun_line::specification(&line.arguments);
            return Some(Self { bundle, file });
        }
        let directory = match &line.bundle {
            Bundle::Here => ".".into(),
            Bundle::At(directory) => directory.to_string_lossy(),
            Bundle::Missing => return None,
        };
        Some(Self {
            file: paths::clean(&format!("{directory}/config.json")).into(),
            bundle: directory.into_owned().into(),
        })
    }
}
