//! Finds the driver's files when a container starts, for specifications that do not list them (`--style=live`).
//!
//! The version is that of the loaded kernel module. NVML is not used: this process is already in the container's
//! cgroup, and may open only the container's GPUs.

use std::path::Path;

use libnvc::host::search::{self, Contents, FileSearch};
use libnvc::host::{DriverRoot, procfs};
use libnvc::options::CudaCompatMode;
use libnvc::plan::{Intent, Item, Mount, Place, Sockets, What};
use libnvc::request::{Capabilities, Placement, Policy, Request};
use libnvc::{ContainerPath, Error, ErrorKind, HostPath, Result};
use nvc_options::Given;

/// The driver's files, as intents.
#[derive(Debug, Default)]
pub(super) struct DriverFiles {
    /// Mounts and links.
    pub(super) intents: Vec<Intent>,
    /// The directories of the libraries.
    pub(super) folders: Vec<ContainerPath>,
    /// The driver's version.
    pub(super) version: String,
}

/// Finds the files of the loaded driver.
pub(super) fn find(given: &Given) -> Result<DriverFiles> {
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
    let mut found = DriverFiles {
        version,
        ..DriverFiles::default()
    };
    for intent in Item::Whole(&driver).plan(&request()) {
        found.take(intent, top);
    }
    Ok(found)
}

/// Returns a request for all files, at their host paths.
fn request() -> Request {
    Request {
        capabilities: Capabilities::all(),
        policy: Policy {
            cuda_compat: CudaCompatMode::Disabled,
            placement: Placement::AsHost,
            ..Policy::default()
        },
        ..Request::default()
    }
}

impl DriverFiles {
    /// Keeps mounts, links and library directories. Changes sources to paths below the host's root, which also contains
    /// procfs.
    fn take(&mut self, intent: Intent, top: &Path) {
        let need = intent.need;
        match intent.what {
            What::Mount(mount) => {
                let source = HostPath::new(mount.source.below(top));
                let what = What::Mount(Mount { source, ..mount });
                self.intents.push(Intent { need, what });
            }
            what @ (What::Link(_) | What::Alias(_)) => self.intents.push(Intent { need, what }),
            What::Sockets(sockets) => {
                let root = HostPath::new(sockets.root.below(top));
                let what = What::Sockets(Sockets { root, ..sockets });
                self.intents.push(Intent { need, what });
            }
            What::LibraryPath(libraries) => {
                let paths = libraries.directories.into_iter();
                self.folders.extend(paths.filter_map(|place| match place {
                    Place::At(path) => Some(path),
                    _ => None,
                }));
            }
            What::Device(_)
            | What::CudaCompat(_)
            | What::DriverProc(_)
            | What::EglProfile(_)
            | What::Env(_)
            | What::Mode(_) => {}
        }
    }
}
