//! Tracks C's handles in debug builds, so that a released handle is detected without dereferencing it.
//!
//! Using a released handle is undefined behaviour, as with `free`; release builds do not check. A debug build reports
//! it on standard error, and fails the call instead of crashing.

/// Type of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Config,
    Container,
    ContainerConfig,
    Context,
    DeviceInfo,
    DriverInfo,
}

#[cfg(debug_assertions)]
mod known {
    use std::collections::BTreeMap;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::Kind;

    /// Keyed by the complement of the addresses: leak checkers would take an address for a reference.
    static LIVE: Mutex<BTreeMap<usize, Kind>> = Mutex::new(BTreeMap::new());

    fn live() -> MutexGuard<'static, BTreeMap<usize, Kind>> {
        LIVE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(kind: Kind, address: usize) {
        live().insert(!address, kind);
    }

    pub(crate) fn has(kind: Kind, address: usize) -> bool {
        let found = live().get(&!address) == Some(&kind);
        if !found {
            nvc_program::messages::write_line(&format!(
                "libnvidia-container: {address:#x} is no {kind:?}: was it released?"
            ));
        }
        found
    }

    pub(crate) fn take(kind: Kind, address: usize) -> bool {
        has(kind, address) && live().remove(&!address).is_some()
    }
}

#[cfg(not(debug_assertions))]
mod known {
    use super::Kind;

    pub(crate) fn add(_: Kind, _: usize) {}

    pub(crate) fn has(_: Kind, _: usize) -> bool {
        true
    }

    pub(crate) fn take(_: Kind, _: usize) -> bool {
        true
    }
}

/// Records a handle returned to C.
pub(crate) fn give<T>(kind: Kind, handle: *mut T) -> *mut T {
    known::add(kind, handle.addr());
    handle
}

/// Checks a handle received from C; NULL if it is invalid.
pub(crate) fn check<T>(kind: Kind, handle: *const T) -> *const T {
    if handle.is_null() || known::has(kind, handle.addr()) {
        handle
    } else {
        std::ptr::null()
    }
}

/// Checks a handle received from C for release; None if there is nothing to do.
pub(crate) fn take<T>(kind: Kind, handle: *mut T) -> Option<*mut T> {
    (!handle.is_null() && known::take(kind, handle.addr())).then_some(handle)
}
