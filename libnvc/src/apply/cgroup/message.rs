//! Formats messages about device cgroups.

use nix::errno::Errno;

use crate::error::Error;
use crate::hint::Setting;
use crate::host::DeviceNumber;

/// Adds a hint to a failure for lack of privilege.
pub(super) fn explain(error: Error) -> Error {
    if matches!(error.errno(), Some(Errno::EPERM | Errno::EACCES)) {
        error.hint(Setting::NoCgroups.between(
            "device cgroups can only be changed with CAP_SYS_ADMIN on the host; in rootless and nested containers \
             leave them alone with ",
            "",
        ))
    } else {
        error
    }
}

/// Formats the devices' numbers for messages.
pub(super) fn list(devices: &[DeviceNumber]) -> String {
    let numbers: Vec<_> = devices.iter().map(DeviceNumber::to_string).collect();
    numbers.join(", ")
}
