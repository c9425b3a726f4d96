//! Writes lines to standard error in nvidia-docker 1's format: `PROGRAM | DATE TIME TEXT`, in UTC.

use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use libnvc::debuglog::printable;

use crate::failure::Failure;

/// Writes one line. Ignores a standard error that is closed or full.
pub fn say(text: &str) {
    let program = std::env::args_os().next().unwrap_or_default();
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let line = format!(
        "{} | {} {}\n",
        printable(&program.to_string_lossy()),
        moment(seconds),
        printable(text)
    );
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Writes a failure and its hint.
pub fn complain(failure: &Failure) {
    say(&format!("Error: {failure}"));
    if let Some(hint) = &failure.hint {
        let _ = writeln!(std::io::stderr(), "hint: {}", printable(hint));
    }
}

/// Sends libnvc's warnings to this log.
pub fn take_warnings() {
    struct Lines;
    impl log::Log for Lines {
        fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
            metadata.level() <= log::Level::Warn
        }
        fn log(&self, record: &log::Record<'_>) {
            if self.enabled(record.metadata()) {
                say(&format!("Warning: {}", record.args()));
            }
        }
        fn flush(&self) {}
    }
    // Fails only if there is already a logger.
    let _ = log::set_logger(&Lines);
    log::set_max_level(log::LevelFilter::Warn);
}

/// Formats `YYYY/MM/DD HH:MM:SS` for a number of seconds after 1970.
fn moment(seconds: u64) -> String {
    let (mut days, time) = (seconds / 86400, seconds % 86400);
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    format!(
        "{year:04}/{month:02}/{:02} {:02}:{:02}:{:02}",
        days + 1,
        time / 3600,
        time / 60 % 60,
        time % 60
    )
}

#[cfg(test)]
mod tests {
    use super::moment;

    #[test]
    fn moments() {
        for (seconds, text) in [
            (0, "1970/01/01 00:00:00"),
            (951_782_400, "2000/02/29 00:00:00"),
            (951_868_799, "2000/02/29 23:59:59"),
            (1_735_689_599, "2024/12/31 23:59:59"),
            (1_795_351_301, "2026/11/22 12:41:41"),
        ] {
            assert_eq!(moment(seconds), text);
        }
    }
}
