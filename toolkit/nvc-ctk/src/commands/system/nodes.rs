//! Creates the driver's control nodes; existing ones stay unchanged.

use std::path::Path;

use libnvc::host::DeviceNumber;
use libnvc::{Result, kmods};
use log::info;

use super::{CONTROL, load_modules, major};
use crate::line::CommandLine;

pub(in crate::commands) fn run(line: &CommandLine) -> Result<()> {
    let (root, dry_run) = (line.text("root"), line.flag("dry-run"));
    if line.flag("load-kernel-modules") {
        load_modules(root, dry_run)?;
    }
    if line.flag("control-devices") {
        let dev_root = line
            .given("dev-root")
            .filter(|root| !root.is_empty())
            .unwrap_or(root);
        control_nodes(Path::new(dev_root), dry_run)?;
    }
    Ok(())
}

/// Creates the control nodes below `<root>/dev`.
pub(super) fn control_nodes(root: &Path, dry_run: bool) -> Result<()> {
    for (name, driver, minor) in CONTROL {
        let major = major(driver)?;
        if dry_run {
            let path = root.join("dev").join(name);
            info!("mknod --mode=0666 {} c {major} {minor}", path.display());
            continue;
        }
        kmods::create_node(root, name, DeviceNumber { major, minor })?;
    }
    Ok(())
}
