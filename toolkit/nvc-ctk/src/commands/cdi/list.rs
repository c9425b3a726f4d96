//! Prints the names of all devices that engines find.

use libnvc::Result;
use log::{info, warn};
use nvc_cdi::Registry;

use super::{MAKE_ONE, named, spec_directories};
use crate::line::CommandLine;
use crate::logging::print;

pub(in crate::commands) fn run(line: &CommandLine) -> Result<()> {
    let directories = spec_directories(line);
    let registry = Registry::load(&directories);
    for problem in registry.problems() {
        warn!("{}: {}", problem.path.display(), problem.error.message());
    }
    let names: Vec<&str> = registry.device_names().collect();
    info!("Found {} CDI devices", names.len());
    if names.is_empty() && registry.problems().is_empty() {
        warn!(
            "no specification in {} has devices: {MAKE_ONE}",
            named(&directories)
        );
    }
    print(
        &names
            .iter()
            .map(|name| format!("{name}\n"))
            .collect::<String>(),
    )
}
