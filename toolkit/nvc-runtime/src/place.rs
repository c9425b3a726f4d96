//! Finds a container's bundle and config.json, as the low-level runtime finds them.

use std::path::{Path, PathBuf};

use nvc_oci::paths;

use crate::arguments::{Bundle, Line};
use crate::error::{Result, refused};
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
        let bundle = match &line.bundle {
            Bundle::Here => PathBuf::from("."),
            Bundle::At(directory) => PathBuf::from(directory),
            Bundle::Missing => return None,
        };
        let file = match bundle.to_str() {
            Some(directory) => paths::clean(&format!("{directory}/config.json")).into(),
            None => bundle.join("config.json"),
        };
        Some(Self { bundle, file })
    }

    /// Checks that the paths are UTF-8, because hooks get them in JSON.
    ///
    /// # Errors
    /// One of them is not UTF-8.
    pub(crate) fn check(&self) -> Result<()> {
        for path in [&self.bundle, &self.file] {
            let absolute = std::path::absolute(path);
            if absolute.is_ok_and(|path| path.to_str().is_none()) {
                let text = format!("{}: the path is not UTF-8", path.display());
                return Err(refused(text).hint("rename the container's bundle"));
            }
        }
        Ok(())
    }
}
