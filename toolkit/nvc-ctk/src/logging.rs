//! Writes log lines in upstream's format, which scripts parse: `time="…" level=info msg="…"`.

use std::io::Write;

use libnvc::{Error, Result};
use log::LevelFilter;
use nix::errno::Errno;
use nvc_program::hints::{Reader, advice};
use nvc_program::messages::{self, Level};

use crate::line::CommandLine;

/// Starts logging at the level of the command line; quiet has precedence over debug.
pub(crate) fn start(line: &CommandLine) {
    let level = match (line.flag("quiet"), line.flag("debug")) {
        (true, _) => LevelFilter::Error,
        (false, true) => LevelFilter::Debug,
        (false, false) => LevelFilter::Info,
    };
    messages::log_records("nvidia_ctk", level);
}

/// Prints the failure of the program, and the hint if there is one.
pub(crate) fn failure(error: &Error) {
    messages::write_record(Level::Error, &error.message());
    for error in error.cleanup() {
        messages::write_record(Level::Error, &format!("cleanup: {}", error.message()));
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
