//! Timestamps of process records: RFC 3339 in UTC, with microseconds.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub fn now() -> String {
    // A clock before 1970 was never set; the timestamp is then 1970.
    render(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn render(since_epoch: Duration) -> String {
    let seconds = since_epoch.as_secs();
    let (year, month, day) = date_of(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let micros = since_epoch.subsec_micros();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

fn date_of(mut days: u64) -> (u64, u64, u64) {
    let mut year = 1970;
    while days >= days_of_year(year) {
        days -= days_of_year(year);
        year += 1;
    }
    let february = if days_of_year(year) == 366 { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1)
}

fn days_of_year(year: u64) -> u64 {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    if leap { 366 } else { 365 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_leap_years_are_computed_correctly() {
        let at = |seconds| render(Duration::new(seconds, 7_000));

        assert_eq!(at(0), "1970-01-01T00:00:00.000007Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59.000007Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.000007Z");
        assert_eq!(at(1_798_761_599), "2026-12-31T23:59:59.000007Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00.000007Z");
    }
}
