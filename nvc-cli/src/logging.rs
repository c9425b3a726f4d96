//! Writes the debug log, in upstream's format, and shows warnings on standard error.
//!
//! Support engineers ask for this log and read it beside upstream's, hence the format. Without a log only warnings are
//! looked at, so that log lines cost nothing.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use env_logger::{Builder, Target};
use libnvc::Error;
use log::{Level, LevelFilter, Record};
use nix::errno::Errno;
use nix::unistd::{getegid, geteuid, getgid, gettid, getuid};

use crate::failure::print;

const BANNER: &[u8] = b"\n-- WARNING, the following logs are for debugging purposes only --\n\n";

/// Starts logging to `file`, or else to the file that `NVC_DEBUG_FILE` names, if any.
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
                writeln!(line, "{} {}", prefix(record, now()), record.args())
            }),
        None => builder
            .filter_level(LevelFilter::Warn)
            .target(Target::Stderr)
            .format(move |line, record| line.write_all(warning(&program, record).as_bytes())),
    };
    // The only failure is that there is a logger already, which then does this.
    let _ = builder.try_init();
}

fn open(path: &Path) -> std::io::Result<File> {
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    file.write_all(BANNER)?;
    Ok(file)
}

/// Whether the environment comes from somebody with no less power than this program: otherwise it could be used to
/// append to files of others. Covers set-user-id and file capabilities, like the C library's `secure_getenv`.
fn trust_environment() -> bool {
    if getuid().is_root() {
        return true;
    }
    let same_user = getuid() == geteuid() && getgid() == getegid();
    same_user && caps::read(None, caps::CapSet::Permitted).is_ok_and(|caps| caps.is_empty())
}

fn warning(program: &str, record: &Record<'_>) -> String {
    format!("{program}: warning: {}\n", record.args())
}

fn now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// `<level><month><day> <time> <thread> <file>:<line>]`, in UTC.
fn prefix(record: &Record<'_>, now: Duration) -> String {
    let level = match record.level() {
        Level::Error => 'E',
        Level::Warn => 'W',
        Level::Info | Level::Debug | Level::Trace => 'I',
    };
    let file = record.file().unwrap_or("unknown");
    let file = file.rsplit('/').next().unwrap_or(file);
    let seconds = now.as_secs();
    let (month, day) = month_and_day(seconds / 86400);
    format!(
        "{level}{month:02}{day:02} {:02}:{:02}:{:02}.{:06} {} {file}:{}]",
        seconds / 3600 % 24,
        seconds / 60 % 60,
        seconds % 60,
        now.subsec_micros(),
        gettid(),
        record.line().unwrap_or_default(),
    )
}

/// Month and day of the month, a given number of days after 1970-01-01.
///
/// Counts years from March, so that the leap day is the last of the year and months have a regular pattern.
fn month_and_day(days: u64) -> (u64, u64) {
    let days = days + 719_468; // since 0000-03-01
    let day_of_era = days % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    ((month + 2) % 12 + 1, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (days, date) in [
            (0, (1, 1)),
            (58, (2, 28)),
            (59, (3, 1)),
            (364, (12, 31)),
            (11_016, (2, 29)), // 2000
            (11_017, (3, 1)),
            (19_782, (2, 29)), // 2024
            (20_423, (12, 1)), // 2025
        ] {
            assert_eq!(month_and_day(days), date, "{days}");
        }
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
