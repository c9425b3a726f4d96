//! Runs several hooks in one process: their arguments keep their names, hooks without arguments are flags.

use super::{
    application_profile, cuda_compat, device_node_modification, driver_proc, library_path, list,
    symlinks, text,
};
use crate::arguments::{Given, Opt};
use crate::report::Report;
use crate::root::Root;
use crate::{Failure, Result};

/// Version of the arguments.
const VERSION: &str = "1";

pub(super) const OPTIONS: &[Opt] = &[
    text("version", "NUMBER", "The form of the arguments: 1"),
    list("link", "TARGET::LINK", "As create-symlinks"),
    text("host-driver-version", "VERSION", "As enable-cuda-compat"),
    text("host-cuda-version", "VERSION", "As enable-cuda-compat"),
    text("cuda-compat-container-root", "DIR", "As enable-cuda-compat"),
    text("ldconfig-path", "FILE", "As update-ldcache"),
    list("folder", "DIR", "As update-ldcache"),
    flag("disable-device-node-modification"),
    flag("filter-driver-proc"),
    flag("update-application-profile"),
];

const fn flag(name: &'static str) -> Opt {
    Opt {
        name,
        value: None,
        is_list: false,
        help: "As the hook of this name",
    }
}

pub(super) fn run(given: &Given, root: &Root, report: &mut Report) -> Result<()> {
    if given.text("version") != Some(VERSION) {
        let version = given.text("version").unwrap_or("none");
        return Err(Failure::new(format!(
            "arguments of version {version}: this program knows {VERSION}"
        )));
    }
    let has = |name: &str| given.text(name).is_some();
    if has("link") {
        symlinks::run(given, root, report)?;
    }
    // Before the library path, which makes the loader search the directory that this adds.
    cuda_compat::run(given, root, report)?;
    if has("folder") {
        library_path::run(given, root, report)?;
    }
    if given.flag("disable-device-node-modification") {
        device_node_modification::run(given, root, report)?;
    }
    if given.flag("filter-driver-proc") {
        driver_proc::run(given, root, report)?;
    }
    if given.flag("update-application-profile") {
        application_profile::run(given, root, report)?;
    }
    Ok(())
}
