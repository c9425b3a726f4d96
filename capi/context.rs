//! Creates contexts, and opens the driver for them.

use std::ffi::{c_char, c_int};
use std::ptr;

use libc::{gid_t, uid_t};

use crate::arg::args;
use crate::boundary::{call, guard};
use crate::config::{nothing, nvc_config, settings};
use crate::handles::{self, Kind};
use crate::memory::{one, release};
use crate::state::{Context, nvc_context};

/// Size of the longest option string including its terminating zero; longer ones are rejected.
pub const NVC_ARG_MAX: usize = 256;

/// Creates a context. It does nothing until nvc_init.
///
/// Returns a context, to be released with nvc_context_free.
#[unsafe(no_mangle)]
pub extern "C" fn nvc_context_new() -> *mut nvc_context {
    guard(ptr::null_mut(), || {
        let context = Box::new(Context::new());
        handles::give(Kind::Context, Box::into_raw(context)).cast()
    })
}

/// Releases a context, the driver opened by nvc_init and the error text. NULL is allowed.
///
/// Containers and driver and device information of this context stay valid; they are released separately.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvc_context_free(ctx: *mut nvc_context) {
    if let Some(context) = handles::take(Kind::Context, ctx.cast::<Context>()) {
        // SAFETY: `nvc_context_new` made it from a box, and the caller gives it up.
        guard((), || drop(unsafe { Box::from_raw(context) }));
    }
}

/// Creates a configuration with every field at its default: NULL, (uid_t)-1, (gid_t)-1, no IMEX channels.
///
/// Returns a configuration, to be released with nvc_config_free.
#[unsafe(no_mangle)]
pub extern "C" fn nvc_config_new() -> *mut nvc_config {
    guard(ptr::null_mut(), || {
        let config = nvc_config {
            uid: uid_t::MAX,
            gid: gid_t::MAX,
            ..nothing()
        };
        handles::give(Kind::Config, one(config))
    })
}

/// Releases a configuration. The strings of its fields still belong to the caller. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvc_config_free(cfg: *mut nvc_config) {
    if let Some(config) = handles::take(Kind::Config, cfg) {
        // SAFETY: `nvc_config_new` made it, and the caller gives it up.
        unsafe { release(config) };
    }
}

/// Opens the driver: loads kernel modules if asked to, starts a process that loads NVML, and waits until that has
/// answered. The process has ended when the function returns.
///
/// cfg may be NULL: all defaults. It is copied; the caller may change or release it afterwards.
/// opts may be NULL: no options. Words are separated by spaces:
///   load-kmods               load the kernel modules and create the device nodes
///   no-create-imex-channels  with load-kmods: do not create the nodes of IMEX channels
///
/// A context that is already initialised stays unchanged. After a failure the context is as before, and the call may be
/// repeated. While a context is initialised, a debug log is appended to the file named by the environment variable
/// NVC_DEBUG_FILE.
///
/// The shared object looks for the program nvc-query in ../libexec/libnvidia-container, in libnvidia-container, in
/// ../../libexec/libnvidia-container, in its own directory (all relative to its own file), and in the directory set at
/// build time; the static library only in the last one. If the program is missing, or the bounding set of the process
/// would leave it without CAP_SYS_CHROOT, CAP_SETUID and CAP_SETGID although it needs them, a process with one thread
/// forks instead, with a copy of all its memory. With more threads this is an error: initialise the library earlier.
///
/// Returns 0, or -1 with an error: "invalid argument" for an empty path, "invalid option: ...", "too many options",
/// "change root failed: ...", "load library failed: ...", "nvml error: ...", "driver rpc error: ...", "process creation
/// failed: ...".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvc_init(
    ctx: *mut nvc_context,
    cfg: *const nvc_config,
    opts: *const c_char,
) -> c_int {
    // SAFETY: nvc.h requires of the caller what `args` requires.
    let (ctx, cfg, opts) = unsafe { args((ctx, cfg, opts)) };
    call(ctx, |state| state.init(|| settings(cfg), &opts.words("")))
}

/// Closes the driver opened by nvc_init. The context may be initialised again; a context that is not initialised stays
/// unchanged.
///
/// Returns 0, or -1 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvc_shutdown(ctx: *mut nvc_context) -> c_int {
    // SAFETY: nvc.h requires of the caller what `args` requires.
    let ctx = unsafe { args(ctx) };
    let Some(context) = Context::of(ctx) else {
        return -1;
    };
    // Not through `call`: a context that a panic has poisoned can still be shut down.
    guard(-1, || {
        let mut state = context.lock();
        state.close();
        context.show(&state);
        0
    })
}

/// Returns the text of the context's last error; NULL if there was none yet, and for a NULL context.
///
/// A call that succeeds keeps the text of an earlier failure: call this only after a failure. The text belongs to the
/// context. It is valid until the next call on the context that fails, and until nvc_context_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvc_error(ctx: *mut nvc_context) -> *const c_char {
    // SAFETY: nvc.h requires of the caller what `args` requires.
    let ctx = unsafe { args(ctx) };
    let Some(context) = Context::of(ctx) else {
        return ptr::null();
    };
    guard(ptr::null(), || context.lock().message())
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use libnvc::Error;

    use super::*;

    #[test]
    fn messages_are_printable_lines() {
        let context = nvc_context_new();
        // SAFETY: a live context.
        let arg = unsafe { args(context) };
        let failed = call(arg, |_| {
            let odd = "/image/\x1b[31m\nE1121 forged\0";
            Err::<(), _>(Error::file("open failed", odd, nix::errno::Errno::ENOENT))
        });
        assert_eq!(failed, -1);
        // SAFETY: a live context.
        let message = unsafe { nvc_error(context) };
        // SAFETY: the text of a live context, terminated.
        let message = unsafe { CStr::from_ptr(message) };
        let text = "open failed: /image/\\x1b[31m\\x0aE1121 forged\\x00: no such file or directory";
        assert_eq!(message.to_str(), Ok(text));
        // SAFETY: a live context, not used afterwards.
        unsafe { nvc_context_free(context) };
    }

    #[test]
    fn upstreams_command_line_asks_not_to_pivot() {
        let context = nvc_context_new();
        // SAFETY: inside the context.
        let byte = unsafe { context.cast::<u8>().add(68) };
        // SAFETY: inside the context, as upstream's command line does it.
        unsafe { byte.write(1) };
        // SAFETY: a live context.
        let arg = unsafe { args(context) };
        let seen = call(arg, |state| {
            assert!(state.no_pivot);
            Ok(())
        });
        assert_eq!(seen, 0);
        // SAFETY: inside the context.
        assert_eq!(unsafe { byte.read() }, 1);
        // SAFETY: a live context, not used afterwards.
        unsafe { nvc_context_free(context) };
    }
}
