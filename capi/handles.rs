//! Remembers in debug builds what C holds, so that a handle that was released is recognised without touching it.
//!
//! Using one is undefined, as with `free`; release builds do not look. What a debug build finds it says on standard
//! error, and then fails the call instead of the process.

/// What a handle is to.
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

    /// By the complement of their addresses: leak checkers would take an address for a reference.
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
            eprintln!("libnvidia-container: {address:#x} is no {kind:?}: was it released?");
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

/// A handle that goes out.
pub(crate) fn give<T>(kind: Kind, handle: *mut T) -> *mut T {
    known::add(kind, handle.addr());
    handle
}

/// A handle that comes in; NULL if it is none.
pub(crate) fn check<T>(kind: Kind, handle: *const T) -> *const T {
    if handle.is_null() || known::has(kind, handle.addr()) {
        handle
    } else {
        std::ptr::null()
    }
}

/// A handle that comes in to be released; none if there is nothing to do.
pub(crate) fn take<T>(kind: Kind, handle: *mut T) -> Option<*mut T> {
    (!handle.is_null() && known::take(kind, handle.addr())).then_some(handle)
}
