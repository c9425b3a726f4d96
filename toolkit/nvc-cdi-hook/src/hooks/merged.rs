//! Runs several hooks in one process: their arguments keep their names, hooks without arguments are flags.
//!
//! All parts become intents of one plan, which libnvc applies: if a required part fails, everything is undone; if any
//! other part fails, only that part is undone, with a warning.

use std::path::PathBuf;

use libnvc::ContainerPath;
use libnvc::plan::{EglProfile, Intent, LibraryPath, Link, Place, What};

use super::library_path::{self, Image};
use super::{application_profile, cuda_compat, discover, driver_proc, list, symlinks, text};
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

pub(super) fn run(given: &Given, root: &Root, report: &mut Report) -> Result<()> {
    if given.text("version") != Some(VERSION) {
        let version = given.text("version").unwrap_or("none");
        return Err(Failure::new(format!(
            "arguments of version {version}: this program knows {VERSION}"
        )));
    }
    let image = Image::open(given, root)?;
    let intents = intents(given, root, report)?;
    // The plan's view of procfs always includes the changed parameters. A filter without the parameters is not part of
    // the plan, so it comes first: its mounts are detached if the plan fails.
    let covers = match filters(given) && !changes_parameters(given) {
        true => driver_proc::hide(root, report)?,
        false => driver_proc::Covers::default(),
    };
    let done = image.apply(&intents, root, report);
    done.inspect_err(|_| covers.detach())?;
    replace_files(&intents, root, report);
    Ok(())
}

/// Replaces existing files by links, as create-symlinks does: an image can have a library of another driver there. A
/// plan only creates missing links, so that it can be undone. This step comes last, because no later step can fail.
fn replace_files(intents: &[Intent], root: &Root, report: &mut Report) {
    for intent in intents {
        let What::Link(Link {
            at: Place::At(path),
            target,
        }) = &intent.what
        else {
            continue;
        };
        let replaced = symlinks::replace(root, &target.to_string_lossy(), path.as_path());
        if let Err(failure) = replaced {
            report.warning(&failure.to_string());
        }
    }
}

fn filters(given: &Given) -> bool {
    given.flag("filter-driver-proc")
}

fn changes_parameters(given: &Given) -> bool {
    given.flag("disable-device-node-modification")
}

/// Returns the intents for the arguments.
fn intents(given: &Given, root: &Root, report: &mut Report) -> Result<Vec<Intent>> {
    let mut found = match given.flag("discover") {
        true => discover::find(given)?,
        false => discover::DriverFiles::default(),
    };
    let is_out = |hook: &str| given.list("without").any(|name| name == hook);
    let mut intents = std::mem::take(&mut found.intents);
    if is_out("create-symlinks") {
        intents.retain(|intent| !matches!(intent.what, What::Link(_)));
    }
    for (target, link) in symlinks::pairs(given)? {
        intents.push(Intent::best_effort(What::Link(Link {
            at: Place::At(ContainerPath::new(link)),
            target: PathBuf::from(target),
        })));
    }
    let mut folders = library_path::folders(given)?;
    if !is_out("update-ldcache") {
        folders.append(&mut found.folders);
    }
    if !is_out("enable-cuda-compat") {
        let compat = cuda_compat::directory(given, &found.version, root, report)?;
        folders.splice(0..0, compat.map(ContainerPath::new));
    }
    if !folders.is_empty() {
        intents.push(Intent::required(What::LibraryPath(LibraryPath {
            directories: folders.into_iter().map(Place::At).collect(),
        })));
    }
    if changes_parameters(given) {
        intents.extend(driver_proc::intent(root, filters(given), report)?);
    }
    if given.flag("update-application-profile") {
        let minors = application_profile::minors_of(root)?;
        let profile = (!minors.is_empty()).then_some(What::EglProfile(EglProfile { minors }));
        intents.extend(profile.map(Intent::best_effort));
    }
    Ok(intents)
}
