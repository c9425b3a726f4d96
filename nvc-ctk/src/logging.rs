//! Writes log lines in the form that scripts know from upstream: `time="…" level=info msg="…"`.

use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use libnvc::{Error, Result};
use log::{Level, LevelFilter, Log, Metadata, Record};
use nix::errno::Errno;

use crate::line::Line;

struct Stderr;

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        // The library's own steps are for those who debug.
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

/// Logs from now on, as much as the command line asks for; quiet wins over debug.
pub(crate) fn start(line: &Line) {
    let level = match (line.flag("quiet"), line.flag("debug")) {
        (true, _) => LevelFilter::Error,
        (false, true) => LevelFilter::Debug,
        (false, false) => LevelFilter::Info,
    };
    if log::set_logger(&Stderr).is_ok() {
        log::set_max_level(level);
    }
}

/// Says why the program failed, and the way out where it is known.
pub(crate) fn failure(error: &Error) {
    write(Level::Error, &error.message());
    for error in error.cleanup() {
        write(Level::Error, &format!("cleanup: {}", error.message()));
    }
    if let Some(hint) = error.advice() {
        let _ = writeln!(std::io::stderr(), "hint: {hint}");
    }
}

/// Prints a result. A closed pipe is the reader's choice, a full disk is an error.
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
        Level::Error => "error",
        Level::Warn => "warning",
        Level::Info => "info",
        Level::Debug | Level::Trace => "debug",
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let time = date(now.map_or(0, |passed| passed.as_secs()));
    let text = text.escape_debug().to_string().replace("\\'", "'");
    let _ = writeln!(
        std::io::stderr(),
        "time=\"{time}\" level={level} msg=\"{text}\""
    );
}

/// Seconds since 1970 as RFC 3339 in UTC.
fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years are counted from March, so that the leap day is the last one; eras have 400 years.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    let year = year + era * 400 + carry;
    let (hour, minute, second) = (rest / 3_600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn dates_are_right() {
        assert_eq!(date(0), "1970-01-01T00:00:00Z");
        assert_eq!(date(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(date(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(date(1_795_352_407), "2026-11-22T13:00:07Z");
    }
}
