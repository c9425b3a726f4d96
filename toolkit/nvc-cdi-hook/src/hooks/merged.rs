//! Runs several hooks in one process: their arguments keep their names, hooks without arguments are flags.
//!
//! Its intents are theirs in one list, which is applied all or nothing: if a required one fails, everything is undone; if
//! any other one fails, only that one is undone, with a warning.

use libnvc::plan::{Intent, Need, What};
use libnvc::{Error, ErrorKind, Result};

use super::{Intents, cuda_compat, discover, driver, library_path, list, symlinks, text};
use crate::arguments::{Given, Opt};

/// Version of the arguments.
const VERSION: &str = "1";

/// The hooks without arguments.
const FLAGS: [(&str, Intents); 3] = [
    ("disable-device-node-modification", driver::params),
    ("filter-driver-proc", driver::devices),
    ("update-application-profile", driver::profile),
];

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
    switch("discover", "Find the driver's files now, and mount them"),
    text("driver-root", "DIR", "The driver root"),
    list(
        "library-search-path",
        "DIR",
        "Where libraries are found, below the driver root",
    ),
    list(
        "config-search-path",
        "DIR",
        "Where configuration files are found, below the driver root",
    ),
    switch("no-ipc", "Find no sockets of daemons"),
    switch(
        "explicit-driver-libraries",
        "Also find libraries that images usually contain",
    ),
    list("without", "HOOK", "Leave out this hook's part of the files"),
];

const fn flag(name: &'static str) -> Opt {
    switch(name, "Like the hook of this name")
}

const fn switch(name: &'static str, help: &'static str) -> Opt {
    Opt {
        name,
        value: None,
        is_list: false,
        help,
    }
}

pub(super) fn intents(given: &Given) -> Result<Vec<Intent>> {
    if given.text("version") != Some(VERSION) {
        let version = given.text("version").unwrap_or("none");
        let text = format!("arguments of version {version}: this program knows {VERSION}");
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    let found = match given.flag("discover") {
        true => discover::find(given)?,
        false => discover::DriverFiles::default(),
    };
    with(given, found)
}

/// Returns the intents for the arguments and the driver's files: those of the hooks, one after the other.
fn with(given: &Given, found: discover::DriverFiles) -> Result<Vec<Intent>> {
    let is_in = |hook: &str| given.list("without").all(|name| name != hook);
    let mut intents = found.intents;
    if !is_in("create-symlinks") {
        intents.retain(|intent| !matches!(intent.what, What::Link(_)));
    }
    // A directory of the image in the place of a link must not prevent the container from starting.
    intents.extend(symlinks::links(given, Need::BestEffort)?);
    if is_in("enable-cuda-compat") {
        intents.extend(cuda_compat::intent(given, &found.version));
    }
    let mut folders = library_path::folders(given)?;
    if is_in("update-ldcache") {
        folders.extend(found.folders);
    }
    intents.extend(library_path::intent(folders));
    for (name, of) in FLAGS {
        if given.flag(name) {
            intents.extend(of(given)?);
        }
    }
    Ok(intents)
}
