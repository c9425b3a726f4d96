//! Writes lines to standard error in nvidia-docker 1's format: `PROGRAM | DATE TIME TEXT`, in UTC.

use libnvc::Error;
use nvc_program::messages;
use nvc_program::utc::Utc;

/// Writes one line. Ignores a standard error that is closed or full.
pub fn log_text(text: &str) {
    let program = std::env::args_os().next().unwrap_or_default();
    let (program, moment) = (program.to_string_lossy(), moment(Utc::now()));
    messages::write_line(&format!("{program} | {moment} {text}"));
}

/// Writes a failure and its hint.
pub fn log_error(failure: &Error) {
    log_text(&format!("Error: {}", failure.message()));
    if let Some(hint) = failure.advice() {
        messages::write_line(&format!("hint: {hint}"));
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
                log_text(&format!("Warning: {}", record.args()));
            }
        }
        fn flush(&self) {}
    }
    // Fails only if there is already a logger.
    let _ = log::set_logger(&Lines);
    log::set_max_level(log::LevelFilter::Warn);
}

/// Formats `YYYY/MM/DD HH:MM:SS`.
fn moment(at: Utc) -> String {
    format!(
        "{:04}/{:02}/{:02} {:02}:{:02}:{:02}",
        at.year, at.month, at.day, at.hour, at.minute, at.second
    )
}

#[cfg(test)]
mod tests {
    use super::{Utc, moment};

    #[test]
    fn moments() {
        for (seconds, text) in [
            (0, "1970/01/01 00:00:00"),
            (951_782_400, "2000/02/29 00:00:00"),
            (951_868_799, "2000/02/29 23:59:59"),
            (1_735_689_599, "2024/12/31 23:59:59"),
            (1_795_351_301, "2026/11/22 12:41:41"),
        ] {
            assert_eq!(moment(Utc::from_seconds(seconds)), text);
        }
    }
}
