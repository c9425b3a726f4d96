//! Writes the debug log to the file that `NVC_DEBUG_FILE` names, while a context is initialised.
//!
//! The shared object and the archive contain their own copy of the `log` crate, so the logger installed there is not
//! that of a Rust program that links the library.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use log::{LevelFilter, Metadata, Record};
use nvc_program::debuglog;

use crate::environment::environment;

/// The open log, and the number of contexts that use it.
static LOG: Mutex<Option<(File, usize)>> = Mutex::new(None);

struct Logger;

impl log::Log for Logger {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        if let Some((file, _)) = log().as_mut() {
            // A failure to write the log cannot be reported.
            let _ = file.write_all(debuglog::line(record).as_bytes());
        }
    }

    fn flush(&self) {}
}

/// Keeps the log open.
#[derive(Debug)]
pub(crate) struct LogUser;

/// Opens the log, or shares the open one; None if no log is requested or it cannot be opened.
pub(crate) fn open() -> Option<LogUser> {
    let path = environment(c"NVC_DEBUG_FILE")?;
    let mut log = log();
    if let Some((_, users)) = log.as_mut() {
        *users += 1;
        return Some(LogUser);
    }
    let file = debuglog::open(Path::new(&path)).ok()?;
    // Fails only if it is already set, by an earlier call.
    let _ = log::set_logger(&Logger);
    log::set_max_level(LevelFilter::Debug);
    *log = Some((file, 1));
    Some(LogUser)
}

impl Drop for LogUser {
    fn drop(&mut self) {
        let mut log = log();
        match log.as_mut() {
            Some((_, users)) if *users > 1 => *users -= 1,
            _ => {
                log::set_max_level(LevelFilter::Off);
                *log = None;
            }
        }
    }
}

fn log() -> MutexGuard<'static, Option<(File, usize)>> {
    LOG.lock().unwrap_or_else(PoisonError::into_inner)
}
