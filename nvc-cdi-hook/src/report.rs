//! Reports messages on standard error, and, because engines drop that, to the system's log.

use std::io::Write;
use std::os::unix::net::UnixDatagram;

use libnvc::utc::Utc;

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
    let time = Utc::now();
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

#[cfg(test)]
mod tests {
    use super::{MOST_LOGGED, Report, Verbosity};

    #[test]
    fn the_log_has_a_limit() {
        let mut report = Report::new(Verbosity::Normal);
        for _ in 0..100 {
            report.log(4, "x");
        }
        assert_eq!(report.logged, MOST_LOGGED);
    }
}
