//! Writes log lines in upstream's format, which scripts parse: `time="…" level=info msg="…"`.

use std::io::Write;

use libnvc::{Error, Result};
use log::{Level, LevelFilter, Log, Metadata, Record};
use nix::errno::Errno;
use nvc_program::hints::{Reader, advice};
use nvc_program::messages::{self, Level as RecordLevel};

use crate::line::CommandLine;

struct Stderr;

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        // Steps of the library are logged only for debugging.
        let foreign = !record.target().starts_with("nvidia_ctk");
        let level = match record.level() {
            Level::Info if foreign => Level::Debug,
            level => level,
        };
        if level <= log::max_level() {
            write(level, &record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// Starts logging at the level of the command line; quiet has precedence over debug.
pub(crate) fn start(line: &CommandLine) {
    let level = match (line.flag("quiet"), line.flag("debug")) {
        (true, _) => LevelFilter::Error,
        (false, true) => LevelFilter::Debug,
        (false, false) => LevelFilter::Info,
    };
    if log::set_logger(&Stderr).is_ok() {
        log::set_max_level(level);
    }
}

/// Prints the failure of the program, and the hint if there is one.
pub(crate) fn failure(error: &Error) {
    write(Level::Error, &error.message());
    for error in error.cleanup() {
        write(Level::Error, &format!("cleanup: {}", error.message()));
    }
    if let Some(hint) = advice(error, Reader::Ctk) {
        messages::write_line(&format!("hint: {hint}"));
    }
}

/// Prints a result. A closed pipe is not an error, a full disk is.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            let errno = error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
            Err(Error::system("cannot write to standard output", errno))
        }
        _ => Ok(()),
    }
}

fn write(level: Level, text: &str) {
    let level = match level {
        Level::Error => RecordLevel::Error,
        Level::Warn => RecordLevel::Warning,
        Level::Info => RecordLevel::Info,
        Level::Debug | Level::Trace => RecordLevel::Debug,
    };
    messages::write_record(level, text);
}
