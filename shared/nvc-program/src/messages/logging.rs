//! What programs log through the crate `log`.

use log::{LevelFilter, Log, Metadata, Record};

use super::{Level, write_record};

/// Writes records of a program and of our libraries to standard error from now on. Other crates return their errors too,
/// and steps of our libraries are for debugging.
pub fn log_records(program: &'static str, level: LevelFilter) {
    // Fails only if there is already a logger.
    let _ = log::set_logger(Box::leak(Box::new(Records(program))));
    log::set_max_level(level);
}

struct Records(&'static str);

impl Log for Records {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        let is_from = |crates: &[&str]| crates.iter().any(|it| record.target().starts_with(it));
        if !is_from(&[self.0, "nvc", "libnvc"]) {
            return;
        }
        let level = match record.level() {
            log::Level::Error => Level::Error,
            log::Level::Warn => Level::Warning,
            log::Level::Info if is_from(&[self.0]) => Level::Info,
            _ if log::max_level() < LevelFilter::Debug => return,
            _ => Level::Debug,
        };
        write_record(level, &record.args().to_string());
    }

    fn flush(&self) {}
}
