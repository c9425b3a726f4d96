//! Reports how the driver grants capabilities, and which device grants one.

use std::ffi::{c_char, c_int};
use std::path::Path;

use libnvc::host::DriverRoot;
use libnvc::host::nvcaps::{Capabilities, Style};
use libnvc::{HostPath, Result};

use crate::arg::args;
use crate::boundary::{call, guard};
use crate::driver::{device_id, nvc_device_node};
use crate::memory::{invalid_argument, path};
use crate::state::{State, nvc_context};

/// nvc_nvcaps_style: the driver has no capabilities.
pub const NVC_NVCAPS_STYLE_NONE: c_int = 0;
/// nvc_nvcaps_style: capabilities are granted by files below /proc/driver/nvidia/capabilities.
pub const NVC_NVCAPS_STYLE_PROC: c_int = 1;
/// nvc_nvcaps_style: capabilities are granted by devices below /dev/nvidia-caps.
pub const NVC_NVCAPS_STYLE_DEV: c_int = 2;

/// Returns how the driver grants capabilities: one of NVC_NVCAPS_STYLE_NONE, _PROC and _DEV.
///
/// Needs no context. May be called by any thread at any time.
#[unsafe(no_mangle)]
pub extern "C" fn nvc_nvcaps_style() -> c_int {
    guard(NVC_NVCAPS_STYLE_NONE, || {
        match Capabilities::discover().style() {
            Style::None => NVC_NVCAPS_STYLE_NONE,
            Style::Proc => NVC_NVCAPS_STYLE_PROC,
            Style::Devices => NVC_NVCAPS_STYLE_DEV,
        }
    })
}

/// Finds the device of a capability, given the path of the capability's file, for instance
/// "/proc/driver/nvidia/capabilities/mig/config".
///
/// The context need not be initialised; the driver root is then "/". On success node->path belongs to the caller, who
/// releases it with free(); on failure node is not changed.
///
/// Returns 0, or -1 with an error: "invalid argument" for NULL, "unable to get cap device attributes: ...".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvc_nvcaps_device_from_proc_path(
    ctx: *mut nvc_context,
    cap_path: *const c_char,
    node: *mut nvc_device_node,
) -> c_int {
    // SAFETY: nvc.h requires of the caller what `args` requires.
    let (ctx, cap_path) = unsafe { args((ctx, cap_path)) };
    let body = |state: &mut State| {
        let file = cap_path
            .text()
            .filter(|_| !node.is_null())
            .ok_or_else(invalid_argument)?;
        let device = device(state, &HostPath::new(file))?;
        // SAFETY: not NULL, so nvc.h demands memory for a record; what is in it is overwritten without being read.
        unsafe { node.write(device) };
        Ok(())
    };
    call(ctx, body)
}

fn device(state: &State, file: &HostPath) -> Result<nvc_device_node> {
    let device = match state.driver_if_any() {
        Some(driver) => driver
            .session
            .capabilities()
            .device(driver.session.root(), file)?,
        None => Capabilities::discover().device(&DriverRoot::open(Path::new("/"))?, file)?,
    };
    Ok(nvc_device_node {
        path: path(device.path.as_path()),
        id: device_id(device.number),
    })
}
