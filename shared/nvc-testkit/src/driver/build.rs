//! Builds a driver root by its options.

use std::path::Path;
use std::process::Command;
use std::{fs, io};

use super::builder::Builder;
use super::root::Driver;
use super::{contents, hardware, layout, nodes, procfs};
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
            libraries: self.library_dir.clone(),
            majors,
            modules: procfs::majors_of(&self.profile.hardware.modules, majors),
            left_out: Vec::new(),
        };
        contents::write(self, &driver)?;
        hardware::sysfs(&driver)?;
        if self.nodes {
            nodes::write(self, &mut driver)?;
        } else {
            driver.left_out.push("device nodes: not wanted".into());
        }
        // NVML must not miss what this process cannot make.
        driver.profile.layout.is_lenient |= !driver.left_out.is_empty();
        let told = self.profile.layout.driver_root.as_deref();
        for root in [Some("/"), told].into_iter().flatten() {
            let path = driver.path(root).join("etc/nvidia-sim/profile");
            files::file(&path, driver.profile.to_string(), 0o644)?;
        }
        layout::apply(&driver)?;
        for edit in &self.edits {
            edit(&driver.root)?;
        }
        run(Command::new(userland::host_ldconfig())
            .arg("-r")
            .arg(&driver.root))?;
        if self.profile.layout.has_no_cache {
            // ldconfig has made the links that a package contains.
            fs::remove_file(driver.path("/etc/ld.so.cache"))?;
            fs::remove_file(driver.path("/etc/ld.so.conf"))?;
        }
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
