//! Finds the driver's files when a container starts, for specifications that do not list them (`--style=live`).
//!
//! The version is that of the loaded kernel module. NVML is not used: this process is already in the container's
//! cgroup, and may open only the container's GPUs.

use std::path::Path;

use libnvc::host::search::{self, Contents, FileSearch};
use libnvc::host::{DriverRoot, procfs};
use libnvc::options::CudaCompatMode;
use libnvc::plan::{Intent, Item, What};
use libnvc::request::{Capabilities, Policy, Request};
use libnvc::{Error, ErrorKind, HostPath, Result};
use nvc_options::Given;
use nvc_program::hook_names;

/// Plans the files of the loaded driver for this image. Sources are paths of the host.
pub(super) fn find(given: &Given) -> Result<Vec<Intent>> {
    let top = Path::new(super::driver_root(given));
    let host = DriverRoot::open(Path::new("/"))?;
    let version = procfs::module_version(&host).ok_or_else(|| {
        let error = Error::new(
            ErrorKind::DriverUnavailable,
            "the driver's version is unknown",
        );
        error.with_cause("no /proc/driver/nvidia/version; is the module loaded?")
    })?;
    let paths = |name: &str| given.list(name).map(HostPath::new).collect();
    let wanted = FileSearch {
        libraries: paths("library-search-path"),
        configuration: paths("config-search-path"),
        explicit: given.flag("explicit-driver-libraries"),
        no_compat32: given.flag("no-compat32"),
        no_sockets: given.flag("no-ipc"),
        ..FileSearch::new(Contents::All)
    };
    let root = DriverRoot::open(top)?;
    let driver = search::find(&root, Some(&version), &wanted)?;
    let is_in = |hook: &str| given.list("without").all(|name| name != hook);
    let request = Request {
        capabilities: Capabilities::all(),
        policy: Policy {
            cuda_compat: CudaCompatMode::Ldconfig,
            ..Policy::default()
        },
        ..Request::default()
    };
    let mut intents = Item::Whole(&driver).plan(&request);
    intents.retain(|intent| match &intent.what {
        What::Mount(_) | What::Sockets(_) => true,
        What::Link(_) | What::Alias(_) => is_in(hook_names::CREATE_SYMLINKS),
        What::LibraryPath(_) => is_in(hook_names::UPDATE_LDCACHE),
        What::CudaCompat(_) => is_in(hook_names::ENABLE_CUDA_COMPAT),
        // The specification has the rest.
        _ => false,
    });
    for intent in &mut intents {
        intent.put_below(top, top);
    }
    Ok(intents)
}
