//! Converts results to C return values, and panics to errors.
//!
//! A panic is a bug of the library rather than of its caller. It fails the current call and all later ones on the same
//! context, whose state is then unknown; `nvc_error` reports it.

use std::any::Any;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use libnvc::{Error, ErrorKind, Result};

use crate::arg::Arg;
use crate::state::{Context, State, nvc_context};

/// The return value of a call.
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

/// Runs a call on a context; its failure becomes the context's error. Without a context the error is lost.
pub(crate) fn call<R: Reply>(
    context: Arg<'_, nvc_context>,
    body: impl FnOnce(&mut State) -> Result<R>,
) -> R::C {
    let Some(context) = Context::of(context) else {
        return R::FAILED;
    };
    let mut state = context.lock();
    let result = if state.poisoned {
        Err(internal("an earlier call on this context failed"))
    } else {
        let body = || {
            // Lets tests check that a panic does not leave the linked library.
            #[cfg(debug_assertions)]
            if crate::environment::environment(c"NVC_TEST_PANIC").is_some() {
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

/// Runs code that cannot fail; returns `otherwise` if it panics.
pub(crate) fn guard<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(otherwise)
}

fn internal(what: &str) -> Error {
    Error::new(ErrorKind::System, "internal error").with_cause(what.to_lowercase())
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
    use crate::arg::args;
    use crate::context::{nvc_context_free, nvc_context_new, nvc_error, nvc_shutdown};
    use std::ffi::CStr;

    #[test]
    fn a_panic_is_an_error_and_poisons_the_context() {
        let context = nvc_context_new();
        let message = || {
            // SAFETY: a live context.
            let text = unsafe { nvc_error(context) };
            assert!(!text.is_null());
            // SAFETY: a string that is valid until the next failing call.
            unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned()
        };
        // SAFETY: a live context.
        let arg = unsafe { args(context) };
        let done = call(arg, |_| -> Result<()> { panic!("number {}", 7) });
        assert_eq!(done, -1);
        assert_eq!(message(), "internal error: number 7");
        let done = call(arg, |_| -> Result<*mut u8> { unreachable!() });
        assert!(done.is_null());
        assert_eq!(
            message(),
            "internal error: an earlier call on this context failed"
        );
        // SAFETY: a live context.
        assert_eq!(unsafe { nvc_shutdown(context) }, 0);
        let done = call(arg, |_| Ok(()));
        assert_eq!(done, -1);
        // SAFETY: a live context, not used afterwards.
        unsafe { nvc_context_free(context) };
    }

    #[test]
    fn without_a_context_nothing_is_done() {
        // SAFETY: NULL is allowed.
        let none = unsafe { args(ptr::null_mut::<nvc_context>()) };
        let done = call(none, |_| -> Result<()> { unreachable!() });
        assert_eq!(done, -1);
        assert_eq!(guard(7, || panic!("x")), 7);
    }
}
