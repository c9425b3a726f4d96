//! Splits a time into its date and its time of day, in UTC, for the lines of logs.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// A moment, to the second. Prints as in RFC 3339: `2026-11-22T12:20:00Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Utc {
    pub year: u64,
    pub month: u64,
    pub day: u64,
    pub hour: u64,
    pub minute: u64,
    pub second: u64,
}

impl Utc {
    /// Returns the current time; 1970 if the clock is set to an earlier year.
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self::from_seconds(since.map_or(0, |since| since.as_secs()))
    }

    /// Converts a number of seconds since 1970.
    ///
    /// Counts years from March, so that the leap day is the last of the year and months have a regular pattern; an era
    /// has 400 years.
    pub fn from_seconds(seconds: u64) -> Self {
        let (days, time) = (seconds / 86_400, seconds % 86_400);
        let days = days + 719_468; // since 0000-03-01
        let (era, day) = (days / 146_097, days % 146_097);
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day_of_year = day - (365 * year + year / 4 - year / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let month = (month_from_march + 2) % 12 + 1;
        Self {
            year: era * 400 + year + u64::from(month <= 2),
            month,
            day: day_of_year - (153 * month_from_march + 2) / 5 + 1,
            hour: time / 3_600,
            minute: time / 60 % 60,
            second: time % 60,
        }
    }
}

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)?;
        write!(
            f,
            "T{:02}:{:02}:{:02}Z",
            self.hour, self.minute, self.second
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (58 * 86_400, "1970-02-28T00:00:00Z"),
            (59 * 86_400, "1970-03-01T00:00:00Z"),
            (364 * 86_400, "1970-12-31T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_709_164_800, "2024-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_795_352_407, "2026-11-22T13:00:07Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(Utc::from_seconds(seconds).to_string(), text);
        }
    }
}
