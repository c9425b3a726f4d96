//! Applies a plan, which the runtime or a specification hands over: all or nothing.
//!
//! A required intent's failure undoes everything, any other one's only that intent, with a warning.

use libnvc::plan::{Intent, handover};
use libnvc::{Error, ErrorKind, Result};
use nvc_options::table::flag as switch;
use nvc_options::{Given, Opt};
use nvc_program::hook_names;

use super::{discover, list, text};

pub(super) const OPTIONS: &[Opt] = &[
    text("plan", "JSON", "The plan"),
    switch(
        "by-runtime",
        "The runtime, not a specification, has the hook",
    )
    .hidden(),
    text("ldconfig-path", "FILE", "As update-ldcache"),
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
    switch("no-compat32", "Find no 32-bit libraries"),
    switch(
        "explicit-driver-libraries",
        "Also find libraries that images usually contain",
    ),
    list("without", "HOOK", "Leave out this hook's part of the files"),
];

pub(super) fn intents(given: &Given) -> Result<Vec<Intent>> {
    let plan = given.text("plan").ok_or_else(|| {
        let text = format!("{}: --plan is missing", hook_names::APPLY);
        Error::new(ErrorKind::InvalidArgument, text)
    })?;
    let planned = handover::decode(plan)?;
    let mut intents = if given.flag("discover") {
        discover::find(given)?
    } else {
        Vec::new()
    };
    intents.extend(planned);
    Ok(intents)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::ffi::OsString;

    use libnvc::plan::{Link, Place, What};
    use libnvc::{ContainerPath, HostPath};

    use super::*;
    use crate::arguments::options;
    use crate::hooks::find;

    fn of(hook: &str, words: &[&str]) -> Result<Vec<Intent>> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let hook = find(hook).unwrap();
        hook.intents.unwrap()(&options(hook.options, &words)?)
    }

    #[test]
    fn the_plan_is_one_word() {
        let link = Intent::best_effort(What::Link(Link {
            at: Place::At(ContainerPath::new("/usr/lib/a,b\"=")),
            target: "x".into(),
            replaces: true,
        }));
        let library = HostPath::new("/usr/lib/libcuda.so.1");
        let place = Place::Library("libcuda.so.1".into());
        let class = libnvc::host::FileClass::Library;
        let plan = [link, Intent::mount(library, place, class)];
        let text = handover::encode(&plan).unwrap();
        let joined = format!("--plan={text}");
        assert_eq!(of("apply", &[&joined]).unwrap(), plan);
        assert_eq!(of("apply", &["--plan", &text]).unwrap(), plan);
        for words in [&[][..], &["--plan="], &["--plan", "{}"]] {
            assert!(of("apply", words).is_err(), "{words:?}");
        }
    }
}
