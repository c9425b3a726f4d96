//! Talks to libnvc: everything the commands want of the library goes through here, in upstream's order.
//!
//! A session is one driver root, one NVML query and one moment: `info`, `list` and `configure` open one, discover, and
//! then print or apply.

use std::path::Path;

use libnvc::host::{DriverInfo, Gpu};
use libnvc::options::{ContainerOptions, DriverOptions, LibraryOptions};
use libnvc::plan::{Ldconfig, Plan};
use libnvc::select::LostGpu;
use libnvc::{Error, ErrorKind, HostPath, Result};
use nix::errno::Errno;

use crate::choice::Choice;
use crate::listing::CapabilityNodes;
use crate::user::Identity;

/// How the driver is reached.
#[derive(Debug)]
pub(crate) struct Settings<'a> {
    pub(crate) root: &'a Path,
    /// Below the driver root.
    pub(crate) ldcache: &'a Path,
    /// As whom NVML runs.
    pub(crate) identity: Identity,
    pub(crate) options: LibraryOptions,
    /// Channels for which `load-kmods` creates nodes.
    pub(crate) imex_channels: &'a [u32],
}

/// The GPUs of the machine.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) lost: Vec<LostGpu>,
}

/// Which container is meant, and what it may get.
#[derive(Debug)]
pub(crate) struct ContainerWish<'a> {
    /// A process in the container (supervised), or the caller's parent (standalone): the options say which.
    pub(crate) pid: i32,
    pub(crate) rootfs: &'a Path,
    pub(crate) options: ContainerOptions,
    /// `None`: the host's own.
    pub(crate) ldconfig: Option<&'a Ldconfig>,
    /// Confine ldconfig with a moved mount and chroot, for want of pivot_root.
    pub(crate) no_pivot: bool,
}

/// What discovery knows about a container.
#[derive(Debug)]
pub(crate) struct Container {}

/// What a plan is made from.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) container: &'a Container,
    pub(crate) driver: &'a DriverInfo,
    pub(crate) devices: &'a Devices,
    pub(crate) choice: &'a Choice,
    pub(crate) imex_channels: &'a [u32],
}

/// An open driver root with its NVML query.
#[derive(Debug)]
pub(crate) struct Session {}

impl Session {
    /// Loads kernel modules if asked to, opens the driver root and starts the NVML query.
    pub(crate) fn open(settings: &Settings<'_>) -> Result<Self> {
        let empty = |path: &Path| path.as_os_str().is_empty();
        if empty(settings.root) || empty(settings.ldcache) {
            return Err(Error::new(ErrorKind::InvalidArgument, "invalid argument")
                .hint("--root and --ldcache need a path"));
        }
        missing("Session::open")
    }

    /// Discovers the container.
    pub(crate) fn container(&self, wish: &ContainerWish<'_>) -> Result<Container> {
        let empty = match wish.ldconfig {
            Some(Ldconfig::Host(path)) => path.as_os_str().is_empty(),
            Some(Ldconfig::Image(path)) => path.as_path() == Path::new("/"),
            None => false,
        };
        if empty {
            return Err(Error::new(ErrorKind::InvalidArgument, "invalid argument")
                .hint("--ldconfig needs a path, e.g. @/sbin/ldconfig"));
        }
        missing("Session::container")
    }

    /// Discovers the driver's files.
    pub(crate) fn driver_info(&self, _options: DriverOptions) -> Result<DriverInfo> {
        missing("Session::driver_info")
    }

    /// Discovers the GPUs.
    pub(crate) fn devices(&self) -> Result<Devices> {
        missing("Session::devices")
    }

    /// Decides what the container gets.
    pub(crate) fn plan(&self, _facts: &Facts<'_>) -> Result<Plan> {
        missing("Session::plan")
    }

    /// Gives the container what `plan` says, or nothing.
    ///
    /// # Errors
    /// Of kind `LdCache` where ldconfig is the reason.
    pub(crate) fn apply(&self, _container: &Container, _plan: &Plan) -> Result<()> {
        missing("Session::apply")
    }
}

impl CapabilityNodes for Session {
    fn node(&self, _access: &HostPath) -> Option<HostPath> {
        None
    }

    fn nodes_of_gpu(&self, _minor: u32) -> Result<Option<Vec<HostPath>>> {
        missing("Session::nodes_of_gpu")
    }
}

fn missing<T>(what: &str) -> Result<T> {
    Err(Error::new(ErrorKind::System, what).because(Errno::ENOSYS.desc()))
}
