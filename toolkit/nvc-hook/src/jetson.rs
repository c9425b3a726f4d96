//! Refuses a Jetson's GPUs, integrated or beside one that is, which a hook cannot add: only the runtime reads the file
//! lists of a Jetson's operating system.

use libnvc::{Error, ErrorKind, Result};
use nvc_policy::config::Config;
use nvc_policy::image::Devices;
use nvc_policy::mode::{self, ChosenMode, Mode};

/// Refuses a request whose mode is a Jetson's. This program adds devices in every other mode.
pub(crate) fn refuse(
    config: &Config,
    devices: &Devices,
    is_jetson: impl FnOnce() -> bool,
) -> Result<()> {
    if config.hook.skip_mode_detection {
        return Ok(());
    }
    let ChosenMode { mode, said } = mode::choose(config, devices, is_jetson, Mode::Legacy)?;
    if mode != Mode::Csv {
        return Ok(());
    }
    let text = format!(
        "{}: {said}: a hook cannot add the devices of a Jetson",
        crate::NAME
    );
    let hint = "use the NVIDIA runtime (docker: --runtime=nvidia instead of --gpus)";
    Err(Error::new(ErrorKind::InvalidArgument, text).hint(hint))
}
