//! Determines whether the running dockerd has seen the hook, which it looks for only when it starts.
//!
//! The packages and `make install` leave a stamp when they install the hook on a machine that had none. The file's own
//! time says nothing: an upgrade changes it.

use std::fs;

use crate::engine::daemon::running;

/// Contains when the hook was installed, removed, installed again and so on, in seconds since boot as in /proc/uptime.
const STAMP: &str = "/run/nvidia-container-toolkit/hook-installed";

/// Clock ticks per second in /proc/PID/stat: the same on every architecture of ours.
const TICKS: f64 = 100.0;

/// Returns true if the running dockerd was started while no hook was installed. One that does not run will look for it.
pub(super) fn lacks_hook() -> bool {
    let stamp = fs::read_to_string(STAMP).unwrap_or_default();
    let changes: Vec<f64> = stamp.lines().filter_map(|time| time.parse().ok()).collect();
    was_there(&changes, f64::INFINITY)
        && started().is_some_and(|started| !was_there(&changes, started))
}

/// Returns true if the hook was installed at that time.
fn was_there(changes: &[f64], at: f64) -> bool {
    changes.iter().filter(|time| **time <= at).count() % 2 == 1
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

#[cfg(test)]
mod tests {
    use super::{start_in, was_there};

    #[test]
    fn the_start_is_the_22nd_field() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 11 0 12345 999 1";
        assert_eq!(start_in(stat), Some(123.45));
        assert_eq!(start_in("7 (a"), None);
    }

    #[test]
    fn a_hook_that_was_removed_since_is_known() {
        let changes = [10.0, 20.0, 30.0];
        let known = [5.0, 10.0, 15.0, 25.0, 35.0].map(|started| was_there(&changes, started));
        assert_eq!(known, [false, true, true, false, true]);
    }
}
