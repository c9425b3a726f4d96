//! Adds IMEX channels to containers.

use std::ffi::c_int;

use libnvc::{Result, plan};

use crate::boundary::call;
use crate::container::{Container, nvc_container};
use crate::context::{State, nvc_context};
use crate::memory::{invalid_argument, slice, value};

/// An IMEX channel. Filled in by the caller.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvc_imex_channel {
    /// Its number, from 0.
    pub id: c_int,
}

/// IMEX channels.
#[repr(C)]
#[derive(Debug)]
pub struct nvc_imex_info {
    /// An array; NULL if there are none.
    pub chans: *mut nvc_imex_channel,
    /// Number of channels.
    pub nchans: usize,
}

/// Returns the numbers of channels.
///
/// # Safety
/// Its array has as many channels as it says.
pub(crate) unsafe fn channel_numbers(info: &nvc_imex_info) -> Result<Vec<u32>> {
    // SAFETY: the caller's promise.
    let channels = unsafe { slice(info.chans, info.nchans) }?;
    channels.iter().copied().map(number).collect()
}

fn number(channel: nvc_imex_channel) -> Result<u32> {
    u32::try_from(channel.id).map_err(|_| invalid_argument())
}

/// Adds an IMEX channel to a container: its device node and the right to open it.
///
/// Returns 0, or -1 with an error, for instance "stat failed: ..." for a channel without a node.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvc_imex_channel_mount(
    ctx: *mut nvc_context,
    cnt: *const nvc_container,
    chan: *const nvc_imex_channel,
) -> c_int {
    // SAFETY: the header's demands on the caller.
    let container = || unsafe { Container::of(cnt) };
    // SAFETY: the header's demands on the caller.
    let channel = || unsafe { value(chan) };
    let body = |state: &mut State| {
        let session = &mut state.driver()?.session;
        let container = container()?;
        let node = session.imex_channel(number(*channel()?)?)?;
        state.apply(container, &plan::imex_channel(&node, &container.request))
    };
    // SAFETY: the header's demands on the caller.
    unsafe { call(ctx, body) }
}
