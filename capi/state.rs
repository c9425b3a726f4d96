//! Holds the state of one user of the library: driver, last error.

use std::cell::UnsafeCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use libnvc::host::query::QueryProgram;
use libnvc::host::{DriverConfig, DriverSession};
use libnvc::printable;
use libnvc::{Error, ErrorKind, Result, kmods};

use crate::arg::Arg;
use crate::config::{ConfigStrings, Settings, nothing, nvc_config};
use crate::handles::{self, Kind};
use crate::logfile::{self, LogUser};
use crate::options;
use crate::program;

/// A user of the library: one driver root, one configuration, one error. Created by nvc_context_new.
#[derive(Debug)]
pub struct nvc_context {
    _opaque: [u8; 0],
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
    /// Upstream's command line wants ldconfig confined without pivot_root.
    pub(crate) no_pivot: bool,
    /// True if a call panicked.
    pub(crate) poisoned: bool,
}

/// The driver of an initialised context.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) session: DriverSession,
    asked: [bool; 2],
    shown: ConfigStrings,
    _log: Option<LogUser>,
}

/// A kind of question. The first question of each kind uses the answer from the context's initialisation; later ones
/// query again.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Question {
    Driver,
    Devices,
}

impl Context {
    /// Makes a context with upstream's first bytes for one that is not initialised.
    pub(crate) fn new() -> Self {
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
        Self {
            front: UnsafeCell::new(front),
            state: Mutex::default(),
        }
    }

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
                message: state.message(),
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
        // Callers print it.
        self.message = CString::new(printable(&error.message()).as_bytes()).ok();
        self.error_code = error.errno().map_or(-1, |errno| errno as c_int);
    }

    /// Returns the text of the last error for C; NULL if there was none.
    pub(crate) fn message(&self) -> *const c_char {
        self.message.as_deref().map_or(ptr::null(), CStr::as_ptr)
    }

    /// Closes the driver.
    pub(crate) fn close(&mut self) {
        self.driver = None;
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

    /// Opens the driver, unless it is open.
    pub(crate) fn init(
        &mut self,
        settings: impl FnOnce() -> Result<Settings>,
        options: &str,
    ) -> Result<()> {
        if self.driver.is_some() {
            return Ok(());
        }
        // First, because reading the configuration may warn.
        let log = logfile::open();
        let settings = settings()?;
        let shown = ConfigStrings::of(&settings);
        let config = DriverConfig {
            options: libnvc::options::parse(options, options::OF_LIBRARY)?,
            program: QueryProgram::Helper(program::find()),
            ..settings.driver
        };
        if let Some(warning) = kmods::prepare(&config) {
            log::warn!("{warning}");
        }
        let mut session = DriverSession::open(&config, None)?;
        session.ready()?;
        // Here, because upstream's command line has CAP_MKNOD in no later step; and last, because the nodes stay.
        kmods::create_channels(session.root(), &config, &settings.imex_channels);
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
