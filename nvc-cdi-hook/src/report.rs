//! Reports messages on standard error, and, because engines drop that, to the system's log.

use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::time::{SystemTime, UNIX_EPOCH};

/// Length limit of the output: engines put it into one error message.
const LONGEST: usize = 4096;

/// Limit of lines for the system's log: an image must not fill it.
const MOST_LOGGED: u32 = 32;

/// Level of detail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    /// Errors only.
    Quiet,
    /// Warnings too.
    #[default]
    Normal,
    /// Every step.
    Debug,
}

/// Destination of messages.
#[derive(Debug)]
pub struct Report {
    verbosity: Verbosity,
    said: usize,
    logged: u32,
}

impl Report {
    pub(crate) fn new(verbosity: Verbosity) -> Self {
        Self {
            verbosity,
            said: 0,
            logged: 0,
        }
    }

    pub(crate) fn debug(&mut self) {
        if self.verbosity != Verbosity::Quiet {
            self.verbosity = Verbosity::Debug;
        }
    }

    pub(crate) fn quiet(&mut self) {
        self.verbosity = Verbosity::Quiet;
    }

    /// Prints the answer to a query.
    pub(crate) fn print(&self, text: &str) {
        let _ = std::io::stdout().write_all(text.as_bytes());
    }

    pub(crate) fn step(&mut self, text: &str) {
        if self.verbosity >= Verbosity::Debug {
            self.say("debug", text);
        }
    }

    pub(crate) fn warning(&mut self, text: &str) {
        if self.verbosity >= Verbosity::Normal {
            self.say("warning", text);
            self.log(4, text);
        }
    }

    pub(crate) fn error(&mut self, text: &str) {
        self.say("error", text);
        self.log(3, text);
    }

    fn log(&mut self, severity: u8, text: &str) {
        if self.logged < MOST_LOGGED {
            self.logged += 1;
            to_system_log(severity, text);
        }
    }

    fn say(&mut self, level: &str, text: &str) {
        let line = line(level, text);
        let left = LONGEST.saturating_sub(self.said);
        if left == 0 {
            return;
        }
        let end = (0..=left.min(line.len()))
            .rev()
            .find(|&at| line.is_char_boundary(at));
        let shown = &line[..end.unwrap_or(0)];
        self.said += shown.len();
        let _ = std::io::stderr().write_all(shown.as_bytes());
    }
}

/// Formats a log line in upstream's format, which scripts parse.
pub fn line(level: &str, text: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let time = date(now.map_or(0, |passed| passed.as_secs()));
    let text = text.escape_debug().to_string().replace("\\'", "'");
    format!("time=\"{time}\" level={level} msg=\"{text}\"\n")
}

/// Sends a line to the system's log, if there is one and it accepts it without blocking.
fn to_system_log(severity: u8, text: &str) {
    const DAEMON: u8 = 3;
    let Ok(socket) = UnixDatagram::unbound() else {
        return;
    };
    if socket.set_nonblocking(true).is_err() {
        return;
    }
    let text: String = text.chars().take(LONGEST / 4).collect();
    let line = format!(
        "<{}>{}: {}",
        DAEMON * 8 + severity,
        crate::PROGRAM,
        text.escape_debug()
    );
    let _ = socket.send_to(line.as_bytes(), "/dev/log");
}

/// Formats seconds since 1970 as RFC 3339 in UTC.
fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years start in March, so that the leap day is the last day; eras have 400 years.
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
    use super::{MOST_LOGGED, Report, Verbosity, date};

    #[test]
    fn the_log_has_a_limit() {
        let mut report = Report::new(Verbosity::Normal);
        for _ in 0..100 {
            report.log(4, "x");
        }
        assert_eq!(report.logged, MOST_LOGGED);
    }

    #[test]
    fn dates_are_right() {
        assert_eq!(date(0), "1970-01-01T00:00:00Z");
        assert_eq!(date(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(date(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(date(1_795_352_407), "2026-11-22T13:00:07Z");
    }
}
