//! Holds the state of one user of the library: configuration, driver, last error.

use std::cell::UnsafeCell;
use std::ffi::{CStr, CString, OsStr, OsString, c_char, c_int};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libc::{gid_t, uid_t};
use libnvc::apply::{ApplyOptions, apply};
use libnvc::debuglog::printable;
use libnvc::host::query::QueryProgram;
use libnvc::host::{DriverConfig, DriverSession, Identity};
use libnvc::options::LibraryOptions;
use libnvc::plan::Intent;
use libnvc::{Error, ErrorKind, HostPath, Result, kmods};

use crate::arg::{Arg, args};
use crate::boundary::{call, guard};
use crate::container::Container;
use crate::handles::{self, Kind};
use crate::imex::{channel_numbers, nvc_imex_channel, nvc_imex_info};
use crate::logfile::{self, LogUser};
use crate::memory::{invalid_argument, one, release, text};
use crate::program;

/// Size of the longest option string including its terminating zero; longer ones are rejected.
pub const NVC_ARG_MAX: usize = 256;

/// A user of the library: one driver root, one configuration, one error. Created by nvc_context_new.
#[derive(Debug)]
pub struct nvc_context {
    _opaque: [u8; 0],
}

/// How to reach the driver. Created by nvc_config_new; the caller sets the fields.
#[repr(C)]
#[derive(Debug)]
pub struct nvc_config {
    /// The driver root. NULL: "/".
    pub root: *mut c_char,
    /// The ld.so.cache below the driver root. NULL: "/etc/ld.so.cache".
    pub ldcache: *mut c_char,
    /// The user that the driver's library runs as. (uid_t)-1: the overflow user, which owns nothing.
    pub uid: uid_t,
    /// Its group. (gid_t)-1: the overflow group.
    pub gid: gid_t,
    /// The IMEX channels whose device nodes the option "load-kmods" creates.
    pub imex: nvc_imex_info,
}

/// The first bytes of a context; upstream's command line reads them, and writes `no_pivot`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Front {
    pub(crate) initialized: u8,
    pub(crate) error: FrontError,
    pub(crate) cfg: nvc_config,
    pub(crate) mnt_ns: c_int,
    pub(crate) no_pivot: u8,
    pub(crate) dxcore: [usize; 3],
}

/// The last error, in a context's first bytes.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct FrontError {
    pub(crate) code: c_int,
    pub(crate) message: *const c_char,
}

/// A context: upstream's first bytes, followed by our own state.
#[repr(C)]
pub(crate) struct Context {
    pub(crate) front: UnsafeCell<Front>,
    state: Mutex<State>,
}

/// The functions' state.
#[derive(Debug, Default)]
pub(crate) struct State {
    driver: Option<Driver>,
    error_code: c_int,
    message: Option<CString>,
    no_pivot: bool,
    /// True if a call panicked.
    pub(crate) poisoned: bool,
}

/// The driver of an initialised context.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) session: DriverSession,
    asked: [bool; 2],
    shown: Shown,
    _log: Option<LogUser>,
}

/// A kind of question. The first question of each kind uses the answer from the context's initialisation; later ones
/// query again.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Question {
    Driver,
    Devices,
}

/// The active configuration as C strings.
#[derive(Debug)]
struct Shown {
    root: CString,
    ldcache: CString,
    identity: Identity,
    channels: Vec<nvc_imex_channel>,
}

impl Context {
    /// Returns the context of a C pointer; None for NULL.
    pub(crate) fn of<'a>(context: Arg<'a, nvc_context>) -> Option<&'a Self> {
        let context: *const Self = handles::check(Kind::Context, context.pointer()).cast();
        // SAFETY: NULL or alive for 'a, as of every `Arg`; and every nvc_context is the front of a `Context`.
        unsafe { context.as_ref() }
    }

    /// Waits for other threads' calls on this context.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let front = self.front.get();
        // SAFETY: inside the context, which is alive; only C writes this field, in the calling thread.
        state.no_pivot = unsafe { (*front).no_pivot } != 0;
        state
    }

    /// Exposes the state to C; the caller holds the lock of `state`.
    pub(crate) fn show(&self, state: &State) {
        let shown = Front {
            initialized: state.driver.is_some().into(),
            error: FrontError {
                code: state.error_code,
                message: state.message.as_deref().map_or(ptr::null(), CStr::as_ptr),
            },
            cfg: state
                .driver
                .as_ref()
                .map_or_else(nothing, |driver| driver.shown.for_c()),
            mnt_ns: -1,
            no_pivot: state.no_pivot.into(),
            dxcore: [0; 3],
        };
        // SAFETY: inside the context, which is alive; other threads wait for the lock.
        unsafe { self.front.get().write(shown) };
    }
}

impl State {
    /// Stores a failure as the context's error.
    pub(crate) fn fail(&mut self, error: &Error) {
        for error in error.cleanup() {
            log::warn!("cleaning up: {}", error.message());
        }
        if let Some(advice) = error.advice() {
            log::info!("{}: hint: {advice}", error.message());
        }
        // Callers print it: one line, without control characters from the image's file names.
        let text = error.message().replace(['\n', '\0'], " ");
        self.message = CString::new(printable(&text).as_bytes()).ok();
        self.error_code = error.errno().map_or(-1, |errno| errno as c_int);
    }

    /// Returns the driver of an initialised context.
    pub(crate) fn driver(&mut self) -> Result<&mut Driver> {
        let uninitialized = || Error::new(ErrorKind::InvalidArgument, "context uninitialized");
        self.driver.as_mut().ok_or_else(uninitialized)
    }

    /// Returns the driver of a context, if it is initialised.
    pub(crate) fn driver_if_any(&self) -> Option<&Driver> {
        self.driver.as_ref()
    }

    /// Applies a plan to a container.
    pub(crate) fn apply(&mut self, container: &Container, intents: &[Intent]) -> Result<()> {
        let (compat_libraries, placed) = (container.compat_libraries()?, container.placed());
        let options = ApplyOptions {
            no_pivot: self.no_pivot,
            stay: false,
            compat_libraries: Some(&compat_libraries),
            placed: &placed,
        };
        let root = self.driver()?.session.root();
        let report = apply(intents, root, &container.found, options)?;
        for reason in &report.skipped {
            log::warn!("going on without it: {}", reason.message());
        }
        container.note_placed(report.placed);
        Ok(())
    }

    fn init(&mut self, config: impl FnOnce() -> Result<DriverConfig>, options: &str) -> Result<()> {
        if self.driver.is_some() {
            return Ok(());
        }
        let mut config = config()?;
        config.options = LibraryOptions::parse(options)?;
        let log = logfile::open();
        config.program = QueryProgram::Helper(program::find());
        let shown = Shown::of(&config);
        kmods::prepare(&config);
        let mut session = DriverSession::open(&config)?;
        session.ready()?;
        // The query process ends with the thread that started it, which may be gone by the next call.
        session.settle();
        self.driver = Some(Driver {
            session,
            asked: [false; 2],
            shown,
            _log: log,
        });
        Ok(())
    }
}

impl Driver {
    /// Returns the session, with answers newer than the last question of this kind.
    pub(crate) fn ask(&mut self, question: Question) -> Result<&mut DriverSession> {
        let [driver, devices] = &mut self.asked;
        let asked = match question {
            Question::Driver => driver,
            Question::Devices => devices,
        };
        if std::mem::replace(asked, true) {
            self.session.renew()?;
            self.session.settle();
        }
        Ok(&mut self.session)
    }
}

impl Shown {
    fn of(config: &DriverConfig) -> Self {
        let text = |path: &OsStr| CString::new(path.as_bytes()).unwrap_or_default();
        let ldcache = config.ldcache.as_ref().map(HostPath::as_path);
        let channels = config.imex_channels.iter().copied();
        Self {
            root: text(config.root.as_os_str()),
            ldcache: text(
                ldcache.map_or(OsStr::new(libnvc::host::DEFAULT_LDCACHE), |p| p.as_os_str()),
            ),
            identity: Identity {
                uid: config.uid,
                gid: config.gid,
            },
            channels: channels
                .map(|id| nvc_imex_channel {
                    id: id.cast_signed(),
                })
                .collect(),
        }
    }

    fn for_c(&self) -> nvc_config {
        nvc_config {
            root: self.root.as_ptr().cast_mut(),
            ldcache: self.ldcache.as_ptr().cast_mut(),
            uid: self.identity.uid,
            gid: self.identity.gid,
            imex: nvc_imex_info {
                chans: self.channels.as_ptr().cast_mut(),
                nchans: self.channels.len(),
            },
        }
    }
}

fn nothing() -> nvc_config {
    nvc_config {
        root: ptr::null_mut(),
        ldcache: ptr::null_mut(),
        uid: 0,
        gid: 0,
        imex: nvc_imex_info {
            chans: ptr::null_mut(),
            nchans: 0,
        },
    }
}

unsafe extern "C" {
    fn secure_getenv(name: *const c_char) -> *const c_char;
}

/// Returns an environment variable, unless the program has privileges that its caller lacks.
pub(crate) fn environment(name: &CStr) -> Option<OsString> {
    // SAFETY: a NUL-terminated name.
    let value = unsafe { secure_getenv(name.as_ptr()) };
    // SAFETY: NULL or a string, copied immediately; changing the environment in another thread at the same time would
    // violate getenv(3)'s own rule.
    let found = unsafe { text(value) }?;
    Some(OsString::from_vec(found.as_bytes().to_vec()))
}

/// Converts C's configuration, with defaults for unset fields.
fn driver_config(config: Arg<'_, nvc_config>) -> Result<DriverConfig> {
    let overflow = Identity::overflow;
    let mut driver = DriverConfig::default();
    if let Some(seconds) = environment(c"NVC_DRIVER_TIMEOUT") {
        let seconds = seconds.to_str().and_then(|text| text.parse().ok());
        driver.deadline = seconds
            .filter(|seconds| (1..=86400).contains(seconds))
            .map_or(driver.deadline, Duration::from_secs);
    }
    if config.is_null() {
        let Identity { uid, gid } = overflow()?;
        return Ok(DriverConfig { uid, gid, ..driver });
    }
    let root = config.string(|config| &config.root)?;
    let ldcache = config.string(|config| &config.ldcache)?;
    if root.is_some_and(OsStr::is_empty) || ldcache.is_some_and(OsStr::is_empty) {
        return Err(invalid_argument());
    }
    driver.imex_channels = channel_numbers(config.part(|config| &config.imex)?)?;
    let config = config.get()?;
    driver.root = root.map_or(driver.root, PathBuf::from);
    driver.ldcache = ldcache.map(HostPath::new);
    driver.uid = config.uid;
    driver.gid = config.gid;
    if config.uid == uid_t::MAX {
        driver.uid = overflow()?.uid;
    }
    if config.gid == gid_t::MAX {
        driver.gid = overflow()?.gid;
    }
    Ok(driver)
}

/// Creates a context. It does nothing until nvc_init.
///
/// Returns a context, to be released with nvc_context_free.
#[unsafe(no_mangle)]
pub extern "C" fn nvc_context_new() -> *mut nvc_context {
    guard(ptr::null_mut(), || {
        let front = Front {
            initialized: 0,
            error: FrontError {
                code: 0,
                message: ptr::null(),
            },
            cfg: nothing(),
            mnt_ns: 0,
            no_pivot: 0,
            dxcore: [0; 3],
        };
        let context = Box::new(Context {
            front: UnsafeCell::new(front),
            state: Mutex::default(),
        });
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
    // SAFETY: nvc.h demands of the caller what `args` does.
    let (ctx, cfg, opts) = unsafe { args((ctx, cfg, opts)) };
    call(ctx, |state| {
        state.init(|| driver_config(cfg), &opts.words(""))
    })
}

/// Closes the driver opened by nvc_init. The context may be initialised again; a context that is not initialised stays
/// unchanged.
///
/// Returns 0, or -1 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvc_shutdown(ctx: *mut nvc_context) -> c_int {
    // SAFETY: nvc.h demands of the caller what `args` does.
    let ctx = unsafe { args(ctx) };
    let Some(context) = Context::of(ctx) else {
        return -1;
    };
    // Not through `call`: a context that a panic has poisoned can still be shut down.
    guard(-1, || {
        let mut state = context.lock();
        state.driver = None;
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
    // SAFETY: nvc.h demands of the caller what `args` does.
    let ctx = unsafe { args(ctx) };
    let Some(context) = Context::of(ctx) else {
        return ptr::null();
    };
    guard(ptr::null(), || {
        let state = context.lock();
        state.message.as_deref().map_or(ptr::null(), CStr::as_ptr)
    })
}

#[cfg(test)]
mod tests {
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
        let text = "open failed: /image/?[31m E1121 forged : no such file or directory";
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
