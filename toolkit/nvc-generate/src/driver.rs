//! Finds the driver's files with libnvc, according to the options, and builds the request for them.

use std::path::PathBuf;

use libnvc::host::search::{self, Contents, FileSearch};
use libnvc::host::{DriverInfo, DriverRoot, DriverSession, GpusAsked};
use libnvc::options::CudaCompatMode;
use libnvc::plan::Intent;
use libnvc::request::{Capabilities, Placement, Policy, Request};
use libnvc::{HostPath, Result};
use nvc_policy::session;

use super::{Find, Mode};
use crate::exposed::Exposure;
use crate::nodes::Nodes;

/// The libraries of NVIDIA's switch and device management, which only managers use.
const NVSDM: [&str; 3] = ["libnvsdm.so.1", "libibumad.so.3", "libibmad.so.5"];

/// Returns the device nodes of the options' tree.
pub(super) fn nodes(options: &Find) -> Nodes {
    Nodes::new(options.dev_root.clone())
}

/// Changes sources, which are below the driver root and the root of the device nodes, to paths of the host. Leaves out
/// what another user could exchange there, and returns the warnings.
///
/// # Errors
/// Another user could exchange something that is required.
pub(super) fn on_host(intents: &mut Vec<Intent>, options: &Find) -> Result<Vec<String>> {
    let root = root(options);
    for intent in intents.iter_mut() {
        intent.put_below(&root, &options.dev_root);
    }
    Exposure::of(intents)
}

/// Returns the canonical driver root. Found paths would not start with a symlink or a relative path.
pub(super) fn root(options: &Find) -> PathBuf {
    let path = &options.driver_root;
    std::fs::canonicalize(path).unwrap_or_else(|_| path.clone())
}

/// Starts the query of the driver about these GPUs.
pub(super) fn session(options: &Find, gpus: GpusAsked) -> Result<DriverSession> {
    let directories = options.library_search.iter().map(HostPath::new).collect();
    // The driver root is where they are anyway, if it has some.
    let dev_root = Some(options.dev_root.clone()).filter(|root| *root != options.driver_root);
    session::open(root(options), dev_root, directories, &options.query, gpus)
}

/// Opens the root of the device nodes, which nobody else may exchange.
pub(super) fn dev_root(options: &Find) -> Result<DriverRoot> {
    let path = &options.dev_root;
    let root = DriverRoot::open(path).map_err(|error| {
        let error = error.context("no device nodes");
        if *path == options.driver_root {
            return error;
        }
        error.hint("name the directory that has /dev with --dev-root")
    })?;
    Exposure::of_nodes(path)?;
    Ok(root)
}

/// Returns all files of the driver. `version` is the kernel driver's; if it is unknown, that of the libraries.
pub(super) fn files(options: &Find, version: Option<&str>) -> Result<DriverInfo> {
    let root = DriverRoot::open(&root(options))?;
    search::find(&root, version, &search(options, Contents::All))
}

/// Returns what to find, and the directories that the options name.
pub(super) fn search(options: &Find, contents: Contents) -> FileSearch {
    let paths = |paths: &[PathBuf]| paths.iter().map(HostPath::new).collect();
    let listed = |text: &str| {
        let directories = text.split(':').filter(|path| path.starts_with('/'));
        directories.map(HostPath::new).collect()
    };
    FileSearch {
        libraries: paths(&options.library_search),
        configuration: paths(&options.config_search),
        data: listed(&options.data_dirs),
        programs: listed(&options.path),
        explicit: options.explicit_driver_libraries,
        further: if options.mode == Mode::Management {
            NVSDM.to_vec()
        } else {
            Vec::new()
        },
        no_compat32: options.no_compat32,
        no_sockets: options.no_ipc,
        ..FileSearch::new(contents)
    }
}

/// Returns the policy of plans: for unknown images, files are where the host has them.
pub fn policy(placement: Placement) -> Policy {
    Policy {
        cuda_compat: CudaCompatMode::Ldconfig,
        placement,
        before_start: true,
        ..Policy::default()
    }
}

/// Returns a request for everything a driver has.
pub(super) fn request(placement: Placement) -> Request {
    Request {
        capabilities: Capabilities::all(),
        policy: policy(placement),
        ..Request::default()
    }
}
