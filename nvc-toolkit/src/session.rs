//! Asks the driver's NVML, in a process that is a fork of this program.

use std::path::PathBuf;

use libnvc::Result;
use libnvc::host::query::QueryProgram;
use libnvc::host::{DriverConfig, DriverSession};

/// Starts the query of the driver below a root.
///
/// A fork is faster than executing this program again. It copies memory that may hold the container's configuration,
/// which the host's driver may see.
///
/// # Errors
/// Those of [`DriverSession::open`].
pub(crate) fn open(root: PathBuf) -> Result<DriverSession> {
    DriverSession::open(&DriverConfig {
        root,
        program: QueryProgram::ThisProcess,
        ..DriverConfig::default()
    })
}
