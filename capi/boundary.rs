//! Stands between C and libnvc: turns results into what C sees, and panics into errors.
//!
//! A panic is a bug of the library, not of its caller. It fails the call that it happens in and all later ones on the
//! same context, since nobody knows what state that is in; `nvc_error` says what happened.

use std::any::Any;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use libnvc::{Error, ErrorKind, Result};

use crate::context::{Context, State, nvc_context};

/// What a call gives C.
pub(crate) trait Reply {
    type C;
    const FAILED: Self::C;
    fn into_c(self) -> Self::C;
}

impl Reply for () {
    type C = c_int;
    const FAILED: c_int = -1;
    fn into_c(self) -> c_int {
        0
    }
}

impl<T> Reply for *mut T {
    type C = Self;
    const FAILED: Self = ptr::null_mut();
    fn into_c(self) -> Self {
        self
    }
}

/// Carries out a call on a context; its failure becomes the context's error. Without a context there is nowhere to put it.
///
/// # Safety
/// `context` is NULL or a context that was not freed.
pub(crate) unsafe fn call<R: Reply>(
    context: *mut nvc_context,
    body: impl FnOnce(&mut State) -> Result<R>,
) -> R::C {
    // SAFETY: the caller's promise.
    let Some(context) = (unsafe { Context::of(context) }) else {
        return R::FAILED;
    };
    let mut state = context.lock();
    let result = if state.poisoned {
        Err(internal("an earlier call on this context failed"))
    } else {
        let body = || {
            // How the tests see that a panic stays inside the linked library.
            #[cfg(debug_assertions)]
            if crate::context::environment(c"NVC_TEST_PANIC").is_some() {
                panic!("as asked");
            }
            body(&mut state)
        };
        catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
            state.poisoned = true;
            Err(internal(text_of(&*panic)))
        })
    };
    if let Err(error) = &result {
        state.fail(error);
    }
    context.show(&state);
    result.map_or(R::FAILED, Reply::into_c)
}

/// Does something that cannot fail; should it panic, the answer is `otherwise`.
pub(crate) fn guard<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(otherwise)
}

fn internal(what: &str) -> Error {
    Error::new(ErrorKind::System, "internal error").because(what)
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("panic")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::context::{nvc_context_free, nvc_context_new, nvc_error, nvc_shutdown};
    use std::ffi::CStr;

    #[test]
    fn a_panic_is_an_error_and_poisons_the_context() {
        let context = nvc_context_new();
        let message = || {
            // SAFETY: a live context.
            let text = unsafe { nvc_error(context) };
            assert!(!text.is_null());
            // SAFETY: a string that is good until the next failing call.
            unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned()
        };
        // SAFETY: a live context.
        let done = unsafe { call(context, |_| -> Result<()> { panic!("number {}", 7) }) };
        assert_eq!(done, -1);
        assert_eq!(message(), "internal error: number 7");
        // SAFETY: a live context.
        let done = unsafe { call(context, |_| -> Result<*mut u8> { unreachable!() }) };
        assert!(done.is_null());
        assert_eq!(
            message(),
            "internal error: an earlier call on this context failed"
        );
        // SAFETY: a live context.
        assert_eq!(unsafe { nvc_shutdown(context) }, 0);
        // SAFETY: a live context.
        let done = unsafe { call(context, |_| Ok(())) };
        assert_eq!(done, -1);
        // SAFETY: a live context, not used any more.
        unsafe { nvc_context_free(context) };
    }

    #[test]
    fn without_a_context_nothing_is_done() {
        // SAFETY: NULL is allowed.
        let done = unsafe { call(ptr::null_mut(), |_| -> Result<()> { unreachable!() }) };
        assert_eq!(done, -1);
        assert_eq!(guard(7, || panic!("x")), 7);
    }
}
