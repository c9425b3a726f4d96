//! Prints the names of all devices that engines find.

use libnvc::Result;
use log::{info, warn};
use nvc_cdi::Registry;

use super::spec_directories;
use crate::line::CommandLine;
use crate::logging::print;

pub(in crate::commands) fn run(line: &CommandLine) -> Result<()> {
    let registry = Registry::load(&spec_directories(line));
    for problem in registry.problems() {
        warn!("{}: {}", problem.path.display(), problem.error.message());
    }
    let names: Vec<&str> = registry.device_names().collect();
    info!("Found {} CDI devices", names.len());
    print(
        &names
            .iter()
            .map(|name| format!("{name}\n"))
            .collect::<String>(),
    )
}
