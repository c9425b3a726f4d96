//! Writes messages where users read them; everything in them that is not our own text may come from an image.
//!
//! *Raw inside, escaped where it leaves*: a message is assembled from raw values, and the function that writes it
//! escapes the whole line with [`libnvc::printable`]. So no caller can forget to, and nothing is escaped twice. A test searches
//! the sources of all programs for other ways to standard error, the system's log and log files.

mod logging;
mod record;
mod redirection;
mod system_log;

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicBool, Ordering};

use libnvc::printable;
use nix::fcntl::OFlag;
use nix::sys::stat::makedev;

pub use logging::log_records;
pub use record::{Format, Level, record, record_up_to};
pub use redirection::{STDERR, STREAM_ANNOTATIONS, are_streams_redirected, is_stderr};
pub use system_log::{SYSTEM_LOG, Severity, SystemLog, asked_for_log, asks_for_log};

/// Writes a line to standard error.
pub fn write_line(line: &str) {
    write_lines([line]);
}

/// Writes lines to standard error in one piece, so that those of several programs do not mix.
pub fn write_lines<T: AsRef<str>>(lines: impl IntoIterator<Item = T>) {
    let mut text = String::new();
    for line in lines {
        text += &printable(line.as_ref());
        text.push('\n');
    }
    write(&text);
}

/// Writes a text of our own to standard error as it is.
pub fn write_fixed(text: &'static str) {
    write(text);
}

/// Writes a record in the form of a log's line to standard error.
pub fn write_record(level: Level, text: &str) {
    write(&record(Format::Text, level, text));
}

/// Writes a record of at most `limit` bytes to standard error; returns its length.
pub fn write_record_up_to(limit: usize, level: Level, text: &str) -> usize {
    let line = record_up_to(limit, level, text);
    write(&line);
    line.len()
}

/// Set if this process writes no messages.
static SILENT: AtomicBool = AtomicBool::new(false);

/// Makes this process write no more messages, and gives it and the programs that it starts streams that lead nowhere.
///
/// For hooks whose streams are files that an image has chosen.
///
/// # Errors
/// The streams cannot be replaced. This process is silent nevertheless.
pub fn silence() -> io::Result<()> {
    SILENT.store(true, Ordering::Relaxed);
    let nowhere = nowhere()?;
    nix::unistd::dup2_stdout(&nowhere)?;
    nix::unistd::dup2_stderr(&nowhere)?;
    Ok(())
}

/// Returns true if this process writes no messages.
pub fn is_silent() -> bool {
    SILENT.load(Ordering::Relaxed)
}

/// Opens /dev/null; if that is another file, since a container may share /dev, the end of a pipe that can only be read.
fn nowhere() -> io::Result<OwnedFd> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NOCTTY | OFlag::O_NONBLOCK;
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags.bits())
        .open("/dev/null");
    let is_null = |file: &File| file.metadata().is_ok_and(|is| is.rdev() == makedev(1, 3));
    match opened {
        Ok(file) if is_null(&file) => Ok(file.into()),
        _ => Ok(nix::unistd::pipe()?.0),
    }
}

/// Makes this process escape the messages of panics too: one may contain the text that a bug was found with.
pub fn take_panics() {
    std::panic::set_hook(Box::new(write_panic));
}

fn write_panic(panic: &PanicHookInfo<'_>) {
    let text = panic.to_string();
    // The place, then the message.
    let (place, message) = text.split_once('\n').unwrap_or((&text, ""));
    write_lines([place, message]);
}

/// A failure cannot be reported, and must not end the program.
fn write(text: &str) {
    if !is_silent() {
        let _ = io::stderr().write_all(text.as_bytes());
    }
}
