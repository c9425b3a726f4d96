//! Prints the names of all devices that engines find.

use libnvc::Result;
use log::{info, warn};
use nvc_cdi::Registry;
use serde_json::json;

use super::{MAKE_ONE, named, spec_directories};
use crate::commands::wants_json;
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
    if wants_json(line)? {
        let devices = names.iter().filter_map(|name| {
            let file = &registry.device(name)?.0.path;
            Some(json!({ "name": name, "file": file }))
        });
        let devices: Vec<_> = devices.collect();
        return print(&format!("{:#}\n", json!({ "devices": devices })));
    }
    print(
        &names
            .iter()
            .map(|name| format!("{name}\n"))
            .collect::<String>(),
    )
}
