//! Runs several hooks in one process: their arguments keep their names, hooks without arguments are flags.
//!
//! The intents of all hooks form one list, which is applied all or nothing: if a required one fails, everything is
//! undone; if any other one fails, only that one is undone, with a warning.

use libnvc::plan::{Intent, Need, What};
use libnvc::{Error, ErrorKind, Result};
use nvc_options::table::flag as switch;
use nvc_options::{Given, Opt};
use nvc_program::hook_names;

use super::{
    Intents, cuda_compat, discover, driver, library_path, list, mounts, sockets, symlinks, text,
};

/// Version of the arguments.
const VERSION: &str = "1";

/// The hooks without arguments.
const FLAGS: [(&str, Intents); 3] = [
    (hook_names::DISABLE_NODE_MODIFICATION, driver::params),
    (hook_names::FILTER_DRIVER_PROC, driver::devices),
    (hook_names::UPDATE_PROFILE, driver::profile),
];

pub(super) const OPTIONS: &[Opt] = &[
    text("version", "NUMBER", "The form of the arguments: 1"),
    list("link", "TARGET::LINK", "As create-symlinks"),
    list(
        "mount",
        "SOURCE::PLACE",
        "Mount a file of the host; libraries and programs go elsewhere if PLACE is on a volume",
    ),
    text("host-driver-version", "VERSION", "As enable-cuda-compat"),
    text("host-cuda-version", "VERSION", "As enable-cuda-compat"),
    text("cuda-compat-container-root", "DIR", "As enable-cuda-compat"),
    text("ldconfig-path", "FILE", "As update-ldcache"),
    list("folder", "DIR", "As update-ldcache"),
    flag(hook_names::DISABLE_NODE_MODIFICATION),
    flag(hook_names::FILTER_DRIVER_PROC),
    flag(hook_names::UPDATE_PROFILE),
    switch("discover", "Find the driver's files now, and mount them"),
    text("driver-root", "DIR", "The driver root"),
    sockets::DAEMON,
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
    switch("no-compat32", "Find no 32-bit libraries"),
    switch(
        "explicit-driver-libraries",
        "Also find libraries that images usually contain",
    ),
    list("without", "HOOK", "Leave out this hook's part of the files"),
];

const fn flag(name: &'static str) -> Opt {
    switch(name, "Like the hook of this name")
}

pub(super) fn intents(given: &Given) -> Result<Vec<Intent>> {
    if given.text("version") != Some(VERSION) {
        let version = given.text("version").unwrap_or("none");
        let text = format!("unsupported version of the arguments: {version}, expected {VERSION}");
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    let found = if given.flag("discover") {
        discover::find(given)?
    } else {
        discover::DriverFiles::default()
    };
    with(given, found)
}

/// Returns the intents for the arguments and the driver's files: those of the hooks, one after the other.
fn with(given: &Given, found: discover::DriverFiles) -> Result<Vec<Intent>> {
    let is_in = |hook: &str| given.list("without").all(|name| name != hook);
    let mut intents = found.intents;
    if !is_in(hook_names::CREATE_SYMLINKS) {
        intents.retain(|intent| !matches!(intent.what, What::Link(_)));
    }
    intents.extend(mounts::intents(given)?);
    intents.extend(sockets::intents(given)?);
    // A directory of the image at the path of a link must not prevent the container from starting.
    intents.extend(symlinks::links(given, Need::BestEffort)?);
    if is_in(hook_names::ENABLE_CUDA_COMPAT) {
        intents.extend(cuda_compat::intent(given, &found.version));
    }
    let mut folders = library_path::folders(given)?;
    if is_in(hook_names::UPDATE_LDCACHE) {
        folders.extend(found.folders);
    }
    let need = if given.flag("discover") || given.list("mount").next().is_some() {
        Need::Required
    } else {
        Need::WherePermitted
    };
    intents.extend(library_path::intent(folders, need));
    for (name, of) in FLAGS {
        if given.flag(name) {
            intents.extend(of(given)?);
        }
    }
    Ok(intents)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::ffi::OsString;

    use libnvc::plan::{Link, Place};
    use libnvc::{ContainerPath, HostPath};

    use super::*;
    use crate::arguments::options;
    use crate::hooks::find;

    fn given(hook: &str, line: &str) -> Given {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        options(find(hook).unwrap().options, &words).unwrap()
    }

    fn of(hook: &str, line: &str) -> Vec<Intent> {
        find(hook).unwrap().intents.unwrap()(&given(hook, line)).unwrap()
    }

    const LINKS: &str = "--link a::/usr/b,c::/usr/d/";
    const COMPAT: &str = "--host-driver-version 535.1 --cuda-compat-container-root /compat";
    const FOLDERS: &str = "--folder /usr/lib,/opt/lib";

    /// Only the need of links differs.
    #[test]
    fn it_is_the_other_hooks_together() {
        let flags = FLAGS.map(|(name, _)| format!("--{name}")).join(" ");
        let merged = of(
            "merged",
            &format!("--version=1 {LINKS} {COMPAT} {FOLDERS} {flags}"),
        );
        let mut others = of("create-symlinks", LINKS);
        for link in &mut others {
            link.need = Need::BestEffort;
        }
        others.extend(of("enable-cuda-compat", COMPAT));
        others.extend(of("update-ldcache", FOLDERS));
        others.extend(FLAGS.iter().flat_map(|(name, _)| of(name, "")));
        assert_eq!(merged.len(), 7);
        assert_eq!(merged, others);
        assert_eq!(of("merged", "--version=1"), []);
    }

    #[test]
    fn parts_of_the_drivers_files_can_be_left_out() {
        let link = |at: &str| {
            Intent::best_effort(What::Link(Link {
                at: Place::At(ContainerPath::new(at)),
                target: "x".into(),
                replaces: true,
            }))
        };
        let library = HostPath::new("/usr/lib/libcuda.so.1");
        let place = Place::same(&library);
        let mount = Intent::required(What::Mount(libnvc::plan::Mount {
            source: library,
            place,
            class: libnvc::host::FileClass::Library,
        }));
        let with = |line: &str| {
            let found = discover::DriverFiles {
                intents: vec![link("/found"), mount.clone()],
                folders: vec![ContainerPath::new("/usr/lib")],
                version: "535.1".into(),
            };
            with(&given("merged", &format!("--version=1 {line}")), found).unwrap()
        };
        let all = with("--link x::/given");
        assert_eq!(all[..3], [link("/found"), mount.clone(), link("/given")]);
        assert_eq!(all.len(), 5);
        assert_eq!(
            with("--without create-symlinks,update-ldcache,enable-cuda-compat"),
            std::slice::from_ref(&mount)
        );
    }

    #[test]
    fn other_versions_are_refused() {
        for line in ["--version=2", "--no-ipc"] {
            let refused = intents(&given("merged", line)).unwrap_err().message();
            assert!(refused.ends_with("expected 1"), "{refused}");
        }
    }
}
