//! Writes the debug log, in upstream's format, and prints warnings to standard error.
//!
//! Support engineers compare this log with upstream's. Without a log file only warnings are enabled, so that other log
//! lines cost nothing.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use libnvc::Error;
use log::{Level, LevelFilter, Log, Metadata, Record};
use nix::errno::Errno;
use nix::unistd::{getegid, geteuid, getgid, getuid};
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
            messages::write_line(&format!("{program}: warning: {}", record.args()));
        }
        if let Some(mut file) = self.file.as_ref() {
            // A failure to write the log cannot be reported.
            let _ = file.write_all(debuglog::line(record).as_bytes());
        }
    }

    fn flush(&self) {}
}

/// Starts logging to `file`, or else to the file named by `NVC_DEBUG_FILE`, if set.
pub(crate) fn start(file: Option<&OsStr>, program: &str) {
    let from_environment = || std::env::var_os("NVC_DEBUG_FILE").filter(|_| trust_environment());
    let path = file.map(OsStr::to_owned).or_else(from_environment);
    let file = path.and_then(|path| {
        open(Path::new(&path))
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

fn open(path: &Path) -> std::io::Result<File> {
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    file.write_all(debuglog::BANNER)?;
    Ok(file)
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
