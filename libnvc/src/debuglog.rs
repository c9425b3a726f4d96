//! Formats the lines of the debug log as upstream does, because support engineers compare the two.
//!
//! Writing them is up to the program that installs the logger; a library must not replace its host's.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use log::{Level, Record};
use nix::unistd::gettid;

/// First lines of a log.
pub const BANNER: &[u8] =
    b"\n-- WARNING, the following logs are for debugging purposes only --\n\n";

/// Formats a record's line with the current time, including its newline.
pub fn line(record: &Record<'_>) -> String {
    let said = record.args().to_string();
    format!("{} {}\n", prefix(record, now()), printable(&said))
}

/// Escapes control characters: file names come from images, and must not forge log lines or send escape sequences to a
/// terminal.
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.contains(char::is_control) {
        text.replace(char::is_control, "?").into()
    } else {
        text.into()
    }
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

/// Returns month and day of the month for a number of days after 1970-01-01.
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
    fn names_of_files_cannot_forge_lines() {
        let name = "lib\nI1114 all is well\u{1b}[31m";
        let text = line(&Record::builder().args(format_args!("{name}")).build());
        assert!(text.ends_with("] lib?I1114 all is well?[31m\n"), "{text}");
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
