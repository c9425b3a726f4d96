//! Formats the lines of the debug log as upstream does, because support engineers compare the two.
//!
//! Writing them is up to the program that installs the logger; a library must not replace its host's.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use libnvc::printable;
use log::{Level, Record};
use nix::unistd::gettid;

use crate::utc::Utc;

/// First lines of a log.
const BANNER: &[u8] = b"\n-- WARNING, the following logs are for debugging purposes only --\n\n";

/// Opens a log for appending, and writes its first lines. /dev/stderr is descriptor 2 itself: a socket, or a file that
/// another user has opened, cannot be opened by that name.
///
/// # Errors
/// The file cannot be opened or written.
pub fn open(path: &Path) -> io::Result<File> {
    let mut file = if path == Path::new("/dev/stderr") {
        File::from(io::stderr().as_fd().try_clone_to_owned()?)
    } else {
        OpenOptions::new().append(true).create(true).open(path)?
    };
    file.write_all(BANNER)?;
    Ok(file)
}

/// Formats a record's line with the current time, including its newline.
pub fn line(record: &Record<'_>) -> String {
    let said = record.args().to_string();
    format!("{} {}\n", prefix(record, now()), printable(&said))
}

fn now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// Formats `<level><month><day> <time> <thread> <file>:<line>]`, in UTC.
fn prefix(record: &Record<'_>, now: Duration) -> String {
    let level = match record.level() {
        Level::Error => 'E',
        Level::Warn => 'W',
        Level::Info | Level::Debug | Level::Trace => 'I',
    };
    let file = record.file().unwrap_or("unknown");
    let file = file.rsplit('/').next().unwrap_or(file);
    let at = Utc::from_seconds(now.as_secs());
    format!(
        "{level}{:02}{:02} {:02}:{:02}:{:02}.{:06} {} {file}:{}]",
        at.month,
        at.day,
        at.hour,
        at.minute,
        at.second,
        now.subsec_micros(),
        gettid(),
        record.line().unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_cannot_forge_lines() {
        let name = "lib\nI1114 all is well\u{1b}[31m";
        let text = line(&Record::builder().args(format_args!("{name}")).build());
        assert!(
            text.ends_with("] lib\\x0aI1114 all is well\\x1b[31m\n"),
            "{text}"
        );
    }

    #[test]
    fn lines() {
        let record = Record::builder()
            .level(Level::Debug)
            .file(Some("libnvc/src/host/ldcache.rs"))
            .line(Some(7))
            .build();
        let at = Duration::from_micros(1_700_000_000_000_042);
        assert_eq!(
            prefix(&record, at),
            format!("I1114 22:13:20.000042 {} ldcache.rs:7]", gettid())
        );
    }
}
