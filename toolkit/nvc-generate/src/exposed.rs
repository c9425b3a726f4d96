//! Leaves out of a plan what a user other than root and the caller could exchange until the container starts.
//!
//! A specification is read by engines at any later time, and a hook's arguments are read when the container starts. So
//! every intent whose source is a path of the host passes here before it is rendered or handed over.

use std::path::Path;

use libnvc::plan::{Intent, Need, What};
use libnvc::{HostPath, Result};
use nvc_hostfile::HandedPaths;

use crate::Find;

/// Judges the intents of a machine, each directory once.
#[derive(Debug, Default)]
pub(crate) struct Exposure {
    paths: HandedPaths,
    /// Why files are left out, each with the first file and the number of the others.
    left_out: Vec<(String, usize)>,
}

impl Exposure {
    /// Checks the directories below a driver root in which a hook will look for files.
    ///
    /// # Errors
    /// One is exposed.
    pub(crate) fn of_roots(root: &Path, options: &Find) -> Result<()> {
        let searched = options.library_search.iter().chain(&options.config_search);
        let searched = searched.map(|path| HostPath::new(path).below(root));
        let mut exposure = Self::default();
        // A name in it, so that the directory counts; one that does not exist, since /lib is often a link to a directory.
        searched
            .chain([root.to_owned()])
            .try_for_each(|path| exposure.must_name(&path.join(".nvidia")))
    }

    /// Checks the device nodes below a root.
    ///
    /// # Errors
    /// They are exposed.
    pub(crate) fn of_nodes(root: &Path) -> Result<()> {
        let nodes = root.join("dev");
        // A root that has none is another error, and names none.
        if !nodes.exists() {
            return Ok(());
        }
        Self::default().must_name(&nodes)
    }

    /// Leaves intents with exposed sources out, and returns the warnings.
    ///
    /// # Errors
    /// A required one is exposed.
    pub(crate) fn of(intents: &mut Vec<Intent>) -> Result<Vec<String>> {
        let mut exposure = Self::default();
        exposure.judge(intents)?;
        Ok(exposure.warnings())
    }

    fn judge(&mut self, intents: &mut Vec<Intent>) -> Result<()> {
        let mut refused = Ok(());
        intents.retain(|intent| {
            let source = match &intent.what {
                What::Mount(mount) => mount.source.as_path(),
                What::Device(device) => device.source.as_path(),
                _ => return true,
            };
            if intent.need == Need::BestEffort {
                return self.may_name(source);
            }
            let found = self.must_name(source);
            let is_allowed = found.is_ok();
            if refused.is_ok() {
                refused = found;
            }
            is_allowed
        });
        refused
    }

    /// Fails if a path is exposed.
    ///
    /// # Errors
    /// It names the path, the directory and who could exchange it.
    fn must_name(&mut self, path: &Path) -> Result<()> {
        let found = self.paths.check(path);
        found.map_err(|error| error.context(format!("{} is left out", path.display())))
    }

    /// Returns true if a path is not exposed; otherwise there is a warning.
    fn may_name(&mut self, path: &Path) -> bool {
        let Err(error) = self.paths.check(path) else {
            return true;
        };
        let why = error.message();
        match self.left_out.iter_mut().find(|(known, _)| *known == why) {
            Some((_, more)) => *more += 1,
            None => self.left_out.push((why, 0)),
        }
        false
    }

    /// Returns a warning for each directory.
    fn warnings(self) -> Vec<String> {
        let warning = |(why, more): (String, usize)| match more {
            0 => format!("left out: {why}"),
            more => format!("left out, and {more} more there: {why}"),
        };
        self.left_out.into_iter().map(warning).collect()
    }
}
