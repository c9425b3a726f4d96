//! Writes the debug log, in upstream's format, and prints warnings to standard error; for the hook, also to the system's
//! log.
//!
//! Support engineers compare this log with upstream's. Without a log file only warnings are enabled, so that other log
//! lines cost nothing.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use libnvc::{Error, caller};
use log::{Level, LevelFilter, Log, Metadata, Record};
use nix::errno::Errno;
use nix::unistd::{getegid, geteuid, getgid, getuid};
use nvc_program::messages::{SYSTEM_LOG, Severity, SystemLog, asked_for_log};
use nvc_program::{debuglog, messages};

/// Writes records to the log file, if there is one, and warnings to standard error.
struct Logger {
    program: String,
    file: Option<File>,
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if record.level() <= Level::Warn {
            let program = &self.program;
            let text = record.args().to_string();
            messages::write_line(&format!("{program}: warning: {text}"));
            if IS_ABOUT_CONTAINER.load(Ordering::Relaxed) {
                write_to_system(Severity::Warning, &text);
            }
        }
        if let Some(mut file) = self.file.as_ref() {
            // A failure to write the log cannot be reported.
            let _ = file.write_all(debuglog::line(record).as_bytes());
        }
    }

    fn flush(&self) {}
}

/// The system's log, if the hook has executed this program: engines drop what a hook prints.
static SYSTEM: OnceLock<Mutex<SystemLog>> = OnceLock::new();

/// Set if warnings are about a container. Those about the driver are the same for each one: nvidia-ctk doctor has them.
static IS_ABOUT_CONTAINER: AtomicBool = AtomicBool::new(false);

/// Says that all warnings from now on are about a container.
pub(crate) fn begin_container() {
    IS_ABOUT_CONTAINER.store(true, Ordering::Relaxed);
}

/// The hook, in whose name the lines are.
const HOOK: &str = "nvidia-container-runtime-hook";

/// Connects to the system's log if the hook, which was this process, asks for it: for the container that it names.
///
/// Before the program enters that container, where the log's socket is a file of the image.
pub fn start_for_hook() {
    let asks = std::env::var(SYSTEM_LOG).ok();
    if let Some(id) = asks.as_deref().and_then(asked_for_log)
        && trust_environment()
    {
        let mut log = SystemLog::new(HOOK);
        log.of_container(id);
        log.connect();
        let _ = SYSTEM.set(Mutex::new(log));
    }
}

/// Writes a line to the system's log, if the hook asks for it.
pub(crate) fn write_to_system(severity: Severity, text: &str) {
    if let Some(log) = SYSTEM.get() {
        let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
        log.write(severity, text);
    }
}

/// Starts logging to `file`, or else to the file named by `NVC_DEBUG_FILE`, if set.
pub(crate) fn start(file: Option<&OsStr>, program: &str) {
    let from_environment = || caller::variable("NVC_DEBUG_FILE").filter(|_| trust_environment());
    let path = file.map(OsStr::to_owned).or_else(from_environment);
    let file = path.and_then(|path| {
        debuglog::open(Path::new(&path))
            .inspect_err(|error| {
                let errno = Errno::from_raw(error.raw_os_error().unwrap_or_default());
                let reason = Error::file("open failed", &path, errno).message();
                messages::write_line(&format!("{program}: warning: no debug log: {reason}"));
            })
            .ok()
    });
    log::set_max_level(match file {
        Some(_) => LevelFilter::Debug,
        None => LevelFilter::Warn,
    });
    let program = program.to_owned();
    // Fails only if there is already a logger, which is then used.
    let _ = log::set_boxed_logger(Box::new(Logger { program, file }));
}

/// Returns true if the caller has no fewer privileges than this program. Otherwise the environment could be used to
/// append to other users' files. Covers set-user-id and file capabilities, like the C library's `secure_getenv`.
fn trust_environment() -> bool {
    if getuid().is_root() {
        return true;
    }
    let same_user = getuid() == geteuid() && getgid() == getegid();
    same_user && caps::read(None, caps::CapSet::Permitted).is_ok_and(|caps| caps.is_empty())
}
