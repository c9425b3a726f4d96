//! Chooses the files that a request gets: those of its capabilities, and the libraries that these need.

use std::collections::HashSet;

use crate::capability::Capabilities;
use crate::host::catalogue::{is_wanted, opened_by_path};
use crate::host::{Abi, DriverFile, DriverInfo};
use crate::request::Request;

/// The files of a request.
pub(super) struct Chosen<'a> {
    capabilities: Capabilities,
    /// Needed libraries, by their files' names.
    needed: HashSet<(Abi, &'a str)>,
}

impl<'a> Chosen<'a> {
    /// Finds out what the files of the request's capabilities need, and what those need in turn.
    pub(super) fn of(driver: &'a DriverInfo, request: &Request) -> Self {
        let mut chosen = Self {
            capabilities: request.capabilities,
            needed: HashSet::new(),
        };
        let all = || driver.files.iter().chain(&driver.graphics);
        let mut waiting: Vec<&DriverFile> = all().filter(|file| chosen.has(file)).collect();
        while let Some(file) = waiting.pop() {
            for name in &file.needs {
                if chosen.needed.insert((file.abi, name)) {
                    waiting.extend(all().filter(|other| is(other, file.abi, name)));
                }
            }
        }
        chosen
    }

    /// Returns true if the request gets a file.
    pub(super) fn has(&self, file: &DriverFile) -> bool {
        let is_needed = || {
            let mut needed = self.needed.iter();
            needed.any(|(abi, name)| is(file, *abi, name))
        };
        let is_opened = || {
            let opened = opened_by_path(file.path.file_name());
            opened.is_some_and(|opened| self.capabilities.include(opened.capability))
        };
        (file.abi == Abi::Native || self.capabilities.contains(Capabilities::COMPAT32))
            && (is_wanted(file.class, file.capability, self.capabilities)
                || is_opened()
                || is_needed())
    }
}

fn is(file: &DriverFile, abi: Abi, name: &str) -> bool {
    file.abi == abi && file.path.file_name() == name
}
