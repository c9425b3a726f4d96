//! Adds IMEX channels to containers.

use std::ffi::c_int;

use libnvc::plan::Item;

use crate::arg::args;
use crate::boundary::call;
use crate::config::{channel_number, nvc_imex_channel};
use crate::container::{Container, nvc_container};
use crate::state::{State, nvc_context};

/// Adds an IMEX channel to a container: its device node and the right to open it.
///
/// Returns 0, or -1 with an error, for instance "stat failed: ..." for a channel without a node.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvc_imex_channel_mount(
    ctx: *mut nvc_context,
    cnt: *const nvc_container,
    chan: *const nvc_imex_channel,
) -> c_int {
    // SAFETY: nvc.h requires of the caller what `args` requires.
    let (ctx, cnt, chan) = unsafe { args((ctx, cnt, chan)) };
    let body = |state: &mut State| {
        let driver = state.driver()?;
        let container = Container::of(cnt)?;
        let node = driver.session.imex_channel(channel_number(*chan.get()?)?)?;
        container.apply(state, &Item::ImexChannel(&node).plan(&container.request))
    };
    call(ctx, body)
}
