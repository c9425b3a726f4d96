//! Builds a driver root by its options.

use std::path::Path;
use std::process::Command;
use std::{fs, io};

use super::builder::Builder;
use super::root::Driver;
use super::{contents, hardware, nodes, procfs};
use crate::{files, userland};

impl Builder {
    /// Creates the root in a directory, which must be empty or missing.
    ///
    /// # Errors
    /// A file cannot be created, except for device nodes without the privilege.
    pub fn build(&self, root: impl AsRef<Path>) -> io::Result<Driver> {
        let root = root.as_ref();
        files::directory(root)?;
        let majors = self.majors.unwrap_or_else(procfs::majors);
        let mut driver = Driver {
            root: fs::canonicalize(root)?,
            profile: self.profile.clone(),
            majors,
            modules: procfs::majors_of(&self.profile.hardware.modules, majors),
            left_out: Vec::new(),
        };
        files::file(
            &driver.path("/etc/nvidia-sim/profile"),
            self.profile.to_string(),
            0o644,
        )?;
        contents::write(self, &driver)?;
        hardware::sysfs(&driver)?;
        if self.nodes {
            nodes::write(self, &mut driver)?;
        } else {
            driver.left_out.push("device nodes: not wanted".into());
        }
        for edit in &self.edits {
            edit(&driver.root)?;
        }
        run(Command::new(userland::host_ldconfig())
            .arg("-r")
            .arg(&driver.root))?;
        Ok(driver)
    }
}

fn run(command: &mut Command) -> io::Result<()> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{command:?}: {text}")))
}
