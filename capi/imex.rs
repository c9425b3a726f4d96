//! Adds IMEX channels to containers.

use std::ffi::c_int;

use libnvc::{Result, plan};

use crate::arg::{Arg, args};
use crate::boundary::call;
use crate::container::{Container, nvc_container};
use crate::context::{State, nvc_context};
use crate::memory::invalid_argument;

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
pub(crate) fn channel_numbers(info: Arg<'_, nvc_imex_info>) -> Result<Vec<u32>> {
    let channels = info.array(|info| (&info.chans, &info.nchans))?;
    channels.map(|channel| number(*channel.get()?)).collect()
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
    // SAFETY: nvc.h demands of the caller what `args` does.
    let (ctx, cnt, chan) = unsafe { args((ctx, cnt, chan)) };
    let body = |state: &mut State| {
        let session = &mut state.driver()?.session;
        let container = Container::of(cnt)?;
        let node = session.imex_channel(number(*chan.get()?)?)?;
        state.apply(container, &plan::imex_channel(&node, &container.request))
    };
    call(ctx, body)
}
