//! Writes the debug log, in upstream's format, and prints warnings to standard error.
//!
//! Support engineers compare this log with upstream's. Without a log file only warnings are enabled, so that other log
//! lines cost nothing.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use env_logger::{Builder, Target};
use libnvc::Error;
use libnvc::debuglog::{self, printable};
use log::{Level, LevelFilter, Record};
use nix::errno::Errno;
use nix::unistd::{getegid, geteuid, getgid, getuid};

use crate::failure::print;

/// Starts logging to `file`, or else to the file named by `NVC_DEBUG_FILE`, if set.
pub(crate) fn start(file: Option<&OsStr>, program: &str) {
    let from_environment = || std::env::var_os("NVC_DEBUG_FILE").filter(|_| trust_environment());
    let path = file.map(OsStr::to_owned).or_else(from_environment);
    let log = path.and_then(|path| {
        open(Path::new(&path))
            .inspect_err(|error| {
                let errno = Errno::from_raw(error.raw_os_error().unwrap_or_default());
                let reason = Error::file("open failed", &path, errno).message();
                print(&format!("{program}: warning: no debug log: {reason}\n"));
            })
            .ok()
    });

    let mut builder = Builder::new();
    let program = program.to_owned();
    match log {
        Some(log) => builder
            .filter_level(LevelFilter::Debug)
            .target(Target::Pipe(Box::new(log)))
            .format(move |line, record| {
                if record.level() <= Level::Warn {
                    print(&warning(&program, record));
                }
                line.write_all(debuglog::line(record).as_bytes())
            }),
        None => builder
            .filter_level(LevelFilter::Warn)
            .target(Target::Stderr)
            .format(move |line, record| line.write_all(warning(&program, record).as_bytes())),
    };
    // Fails only if there is already a logger, which is then used.
    let _ = builder.try_init();
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

fn warning(program: &str, record: &Record<'_>) -> String {
    format!(
        "{program}: warning: {}\n",
        printable(&record.args().to_string())
    )
}
