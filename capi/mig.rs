//! Adds MIG devices and the right to manage them to containers.

use std::ffi::c_int;

use libnvc::host::MigDevice;
use libnvc::host::nvcaps::CAPABILITIES;
use libnvc::plan::{Item, PartKind};
use libnvc::{HostPath, Result};

use crate::arg::{Arg, args};
use crate::boundary::call;
use crate::container::{Container, nvc_container};
use crate::device::nvc_mig_device;
use crate::memory::invalid_argument;
use crate::state::{State, nvc_context};

impl nvc_mig_device {
    /// Converts a caller's MIG device.
    fn to_mig(device: Arg<'_, Self>) -> Result<MigDevice> {
        let path = |field| {
            let text = device.string(field)?;
            text.map(HostPath::new).ok_or_else(invalid_argument)
        };
        let numbers = device.get()?;
        Ok(MigDevice {
            index: 0,
            uuid: String::new(),
            gi: numbers.gi,
            ci: numbers.ci,
            gi_caps_path: path(|device| &device.gi_caps_path)?,
            ci_caps_path: path(|device| &device.ci_caps_path)?,
            graphics: None,
        })
    }
}

/// Adds a MIG device to a container: the capabilities of its GPU instance and its compute instance.
///
/// This does not add the GPU: call nvc_device_mount for dev->parent as well.
///
/// Returns 0, or -1 with an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvc_mig_device_access_caps_mount(
    ctx: *mut nvc_context,
    cnt: *const nvc_container,
    dev: *const nvc_mig_device,
) -> c_int {
    // SAFETY: nvc.h requires of the caller what `args` requires.
    let (ctx, cnt, dev) = unsafe { args((ctx, cnt, dev)) };
    let body = |state: &mut State| {
        let session = &mut state.driver()?.session;
        let container = Container::of(cnt)?;
        let device = nvc_mig_device::to_mig(dev)?;
        let access = session.mig_access(&device)?;
        let name = format!("{}/{}", device.gi, device.ci);
        container.apply_device(state, PartKind::MigDevice, name, Item::MigAccess(&access))
    };
    call(ctx, body)
}

/// Allows a container to create and destroy MIG instances.
///
/// Returns 0, or -1 with an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvc_mig_config_global_caps_mount(
    ctx: *mut nvc_context,
    cnt: *const nvc_container,
) -> c_int {
    // SAFETY: nvc.h requires of the caller what `args` requires.
    let (ctx, cnt) = unsafe { args((ctx, cnt)) };
    call(ctx, |state| mount_global(state, cnt, "config"))
}

/// Allows a container to monitor all MIG instances of the machine.
///
/// Returns 0, or -1 with an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvc_mig_monitor_global_caps_mount(
    ctx: *mut nvc_context,
    cnt: *const nvc_container,
) -> c_int {
    // SAFETY: nvc.h requires of the caller what `args` requires.
    let (ctx, cnt) = unsafe { args((ctx, cnt)) };
    call(ctx, |state| mount_global(state, cnt, "monitor"))
}

fn mount_global(state: &mut State, cnt: Arg<'_, nvc_container>, capability: &str) -> Result<()> {
    let session = &mut state.driver()?.session;
    let container = Container::of(cnt)?;
    let file = HostPath::new(CAPABILITIES).join("mig").join(capability);
    let node = session.capability_node(&file)?;
    let nodes = node.map(|node| vec![node]);
    let intents = Item::MigGlobal(nodes.as_deref()).plan(&container.request);
    container.apply(state, &intents)
}
