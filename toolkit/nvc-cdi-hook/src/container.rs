//! Carries out a hook's intents in its container, all or nothing.

use std::os::fd::OwnedFd;
use std::path::Path;

use libnvc::apply::{ApplyOptions, apply};
use libnvc::container::{Container, ContainerConfig};
use libnvc::host::DriverRoot;
use libnvc::options::{CudaCompatMode, Ldconfig};
use libnvc::plan::{CompatUse, Intent, What};
use libnvc::request::ImageOptions;
use libnvc::{Error, ErrorKind, Result, Target};
use nix::sys::stat::{Mode, umask};
use nix::unistd::chdir;
use nvc_oci::state::State;
use nvc_options::Given;

use crate::hooks::Hook;
use crate::report::Report;
use crate::state;

/// Reads the container's state, from standard input or from a file.
pub(crate) fn state(given: &Given, report: &mut Report) -> Result<State> {
    match given.text("container-spec") {
        Some(path) => {
            let text = state::read_file(path)?;
            report.silence_if_redirected(&text);
            state::parse(&text)
        }
        None => state::parse(report.state().as_ref().map_err(Clone::clone)?),
    }
}

/// Opens the root of the container in the state.
pub(crate) fn open(given: &Given, report: &mut Report) -> Result<OwnedFd> {
    let state = state(given, report)?;
    // Runtimes start hooks with any umask; with 0 libnvc would make directories that every user of the container can
    // write to.
    umask(Mode::from_bits_truncate(0o022));
    let root = state::open_root(&state)?;
    // From here on no path is relative to a directory that the image controls.
    chdir("/").map_err(|errno| Error::file("chdir failed", "/", errno))?;
    Ok(root)
}

/// Applies the intents of a hook.
pub(crate) fn change(
    root: OwnedFd,
    intents: &[Intent],
    hook: &Hook,
    given: &Given,
    report: &mut Report,
) -> Result<()> {
    if intents.is_empty() {
        return Ok(());
    }
    let is_loaders = |intent: &Intent| matches!(intent.what, What::LibraryPath(_));
    let loader = intents.iter().any(is_loaders);
    let compat = intents.iter().find_map(|intent| match &intent.what {
        What::CudaCompat(compat) => Some(match compat.how {
            CompatUse::Search => CudaCompatMode::Ldconfig,
            CompatUse::Mount => CudaCompatMode::Mount,
            CompatUse::Configure => CudaCompatMode::Disabled,
        }),
        _ => None,
    });
    let container = Container::discover(ContainerConfig {
        target: Target::Here { root },
        image: ImageOptions {
            ldconfig: if loader {
                ldconfig(given)?
            } else {
                Ldconfig::Auto
            },
            ..ImageOptions::default()
        },
        compat: compat.unwrap_or(CudaCompatMode::Disabled),
        device_cgroup: false,
        loader,
        user: None,
    })?;
    let options = ApplyOptions {
        // No path is relative, and this process ends: root, directory and umask do not matter.
        stay: true,
        no_volumes: !hook.uses_volumes,
        ..ApplyOptions::default()
    };
    let done = apply(
        intents,
        &DriverRoot::open(Path::new("/"))?,
        &container,
        options,
    )?;
    for skipped in done.skipped {
        report.warning(&skipped.message());
    }
    Ok(())
}

/// Returns the host's ldconfig that the arguments name, if they do; upstream's accept an @ before it.
fn ldconfig(given: &Given) -> Result<Ldconfig> {
    let word = given.text("ldconfig-path").unwrap_or_default();
    let path = word.strip_prefix('@').unwrap_or(word);
    match Ldconfig::parse(path.as_ref()) {
        _ if path.is_empty() => Ok(Ldconfig::Auto),
        Ldconfig::Auto => Ok(Ldconfig::Auto),
        _ if path.starts_with('/') => Ok(Ldconfig::Host(path.into())),
        _ => {
            let text = format!("--ldconfig-path {path} is not an absolute path");
            Err(Error::new(ErrorKind::InvalidArgument, text))
        }
    }
}
