//! Determines whether the running dockerd has seen the hook, which it looks for only when it starts.
//!
//! The packages leave a stamp when they install the hook on a machine that had none. Without a stamp the file's time is
//! all there is, and an upgrade changes that, too.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::engine::daemon::running;

/// Contains the time of the hook's first installation, in seconds since boot as in /proc/uptime.
const STAMP: &str = "/run/nvidia-container-toolkit/hook-installed";

/// Clock ticks per second in /proc/PID/stat: the same on every architecture of ours.
const TICKS: f64 = 100.0;

/// What a dockerd knows of the hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hook {
    /// It has found the hook, or there is no evidence against that.
    Known,
    /// It was started before the hook was installed.
    Unknown,
    /// It was started before the hook's present file was written.
    Newer,
}

/// Returns what the running dockerd knows of the hook.
pub(super) fn hook(hook: &Path) -> Hook {
    let Some(started) = started() else {
        return Hook::Known; // it will look for it
    };
    if let Ok(text) = fs::read_to_string(STAMP) {
        let installed: Option<f64> = text.trim().parse().ok();
        return match installed {
            Some(installed) if started < installed => Hook::Unknown,
            _ => Hook::Known,
        };
    }
    match written(hook) {
        Some(written) if started < written => Hook::Newer,
        _ => Hook::Known,
    }
}

/// Returns when the system's dockerd was started, in seconds since boot; None if none runs.
fn started() -> Option<f64> {
    let processes = running("dockerd").into_iter();
    let found =
        processes.filter_map(|process| start_in(&fs::read_to_string(process.join("stat")).ok()?));
    // If there are several, such as a rootless one, then the last one, so that there is no false alarm.
    found.reduce(f64::max)
}

/// Returns the start time in a text of /proc/PID/stat, in seconds since boot.
fn start_in(stat: &str) -> Option<f64> {
    // The name, in parentheses, may contain anything. The start time is the 22nd field.
    let (_, rest) = stat.rsplit_once(')')?;
    let ticks: f64 = rest.split_whitespace().nth(19)?.parse().ok()?;
    Some(ticks / TICKS)
}

/// Returns when a file was written, in seconds since boot.
fn written(path: &Path) -> Option<f64> {
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    let uptime: f64 = uptime.split_whitespace().next()?.parse().ok()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    let facts = fs::metadata(path).ok()?;
    let seconds = u32::try_from(facts.ctime_nsec()).ok().map(f64::from)? / 1e9;
    // A time of this century is exact in a double.
    #[allow(clippy::cast_precision_loss)]
    let changed = facts.ctime() as f64 + seconds;
    Some(uptime - (now.as_secs_f64() - changed))
}

#[cfg(test)]
mod tests {
    use super::start_in;

    #[test]
    fn the_start_is_the_22nd_field() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 11 0 12345 999 1";
        assert_eq!(start_in(stat), Some(123.45));
        assert_eq!(start_in("7 (a"), None);
    }
}
