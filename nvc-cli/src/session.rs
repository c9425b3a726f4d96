//! Talks to libnvc: everything the commands want of the library goes through here.
//!
//! A session is one driver root, one NVML query and one moment: `info`, `list` and `configure` open one, discover, and
//! then print or apply.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use libnvc::container::{Container, ContainerConfig};
use libnvc::host::query::QueryProgram;
use libnvc::host::{DeviceInfo, DriverConfig, DriverInfo, DriverSession, DriverVersions, Gpu, HostedCapability};
use libnvc::options::{DriverOptions, LibraryOptions};
use libnvc::plan::{self, Plan};
use libnvc::select::MigSelection;
use libnvc::{HostPath, Result, apply};

use crate::choice::Choice;
use crate::listing::CapabilityNodes;
use crate::user::Identity;

/// How long NVML may take where `NVC_DRIVER_TIMEOUT` says nothing: a machine with many GPUs and without persistence
/// mode needs more than upstream's ten seconds.
const DEADLINE: Duration = Duration::from_secs(30);

/// How the driver is reached.
#[derive(Debug)]
pub(crate) struct Settings<'a> {
    pub(crate) root: &'a Path,
    /// Below the driver root; none if the caller named none.
    pub(crate) ldcache: Option<&'a Path>,
    /// As whom NVML runs.
    pub(crate) identity: Identity,
    pub(crate) options: LibraryOptions,
    /// Channels for which `load-kmods` creates nodes.
    pub(crate) imex_channels: &'a [u32],
}

/// An open driver root with its NVML query.
#[derive(Debug)]
pub(crate) struct Session(DriverSession);
