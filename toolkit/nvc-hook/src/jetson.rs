//! Refuses a Jetson's GPUs, which a hook cannot add: only the runtime reads the file lists of a Jetson's operating
//! system.

use std::path::PathBuf;

use libnvc::host::DriverSession;
use libnvc::options::DriverOptions;
use libnvc::{Error, ErrorKind, Result};
use nvc_policy::config::{self, Config};
use nvc_policy::platform;

/// Refuses a Jetson's GPUs, which are integrated or beside one that is: only the runtime can add them.
pub(crate) fn refuse(session: &mut DriverSession, config: &Config) -> Result<()> {
    // While NVML is busy.
    session.look_ahead(DriverOptions::empty());
    let listed = platform::listed(session);
    if platform::is_jetson(platform::is_tegra(&root(config)), &listed) {
        let said = format!(
            "automatic mode csv ({}: {})",
            config::MODE,
            config.mode_origin()
        );
        return Err(refused(&said));
    }
    // Other failures are reported in their turn.
    Ok(())
}

/// Returns the driver root.
pub(crate) fn root(config: &Config) -> PathBuf {
    match config.cli.root.as_str() {
        "" => "/".into(),
        root => root.into(),
    }
}

/// Returns the error for a Jetson's GPU.
pub(crate) fn refused(said: &str) -> Error {
    let text = format!(
        "{}: {said}: a hook cannot add the devices of a Jetson",
        crate::NAME
    );
    let hint = "use the NVIDIA runtime (docker: --runtime=nvidia instead of --gpus)";
    Error::new(ErrorKind::InvalidArgument, text).hint(hint)
}
