//! Keeps libnvc's warnings until the program reports them where its other messages go.
//!
//! The library gives them to the program's logger; without one they are lost.

use std::sync::{Mutex, PoisonError};

use log::{LevelFilter, Log, Metadata, Record};

/// Limit of kept warnings, and of their characters: an image must not fill the memory.
const MAX_KEPT: usize = 32;
const MAX_LEN: usize = 4 << 10;

static KEPT: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Keeps warnings from now on, unless the program has a logger.
pub fn keep() {
    if log::set_logger(&Keeper).is_ok() {
        log::set_max_level(LevelFilter::Warn);
    }
}

/// Returns the warnings since the last call.
pub fn take() -> Vec<String> {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    std::mem::take(&mut *kept)
}

/// Keeps a warning, for programs with a logger of their own.
pub fn add(record: &Record<'_>) {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if kept.len() < MAX_KEPT {
        kept.push(record.args().to_string().chars().take(MAX_LEN).collect());
    }
}

struct Keeper;

impl Log for Keeper {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= LevelFilter::Warn
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            add(record);
        }
    }

    fn flush(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_kept_within_limits() {
        keep();
        log::info!("a step");
        for _ in 0..99 {
            log::warn!("{}", "x".repeat(9999));
        }
        let kept = take();
        assert_eq!(kept.len(), MAX_KEPT);
        assert!(kept.iter().all(|text| text.len() == MAX_LEN));
        assert_eq!(take(), [""; 0]);
    }
}
