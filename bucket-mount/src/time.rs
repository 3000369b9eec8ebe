//! Times of files, and the forms in which S3 and object metadata have them.

use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    pub seconds: i64,
    pub nanoseconds: u32,
}

impl Time {
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() }
    }

    /// Decimal seconds, the form that s3fs and rclone use in metadata: `1700000000.5`.
    pub fn parse_decimal(text: &str) -> Option<Self> {
        let (whole, fraction) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
        let seconds: i64 = whole.parse().ok()?;
        let digits: String = fraction.chars().chain(std::iter::repeat('0')).take(9).collect();
        let nanoseconds: u32 = digits.parse().ok()?;
        // -1.5 is half a second before -1.
        match (whole.starts_with('-'), nanoseconds) {
            (true, 1..) => Some(Self { seconds: seconds - 1, nanoseconds: 1_000_000_000 - nanoseconds }),
            _ => Some(Self { seconds, nanoseconds }),
        }
    }

    pub fn render_decimal(self) -> String {
        match (self.seconds, self.nanoseconds) {
            (seconds, 0) => seconds.to_string(),
            (seconds @ ..0, nanoseconds) => {
                let sign = if seconds == -1 { "-" } else { "" };
                format!("{sign}{}.{:09}", seconds + 1, 1_000_000_000 - nanoseconds)
            }
            (seconds, nanoseconds) => format!("{seconds}.{nanoseconds:09}"),
        }
    }

    /// `2026-11-17T12:24:17.123Z`, as in listings.
    pub fn parse_iso(text: &str) -> Option<Self> {
        let (date, clock) = text.trim().strip_suffix('Z')?.split_once('T')?;
        let mut parts = date.split('-').map(|part| part.parse::<i64>().ok());
        let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
        let (clock, fraction) = clock.split_once('.').unwrap_or((clock, ""));
        let seconds = days_since_epoch(year, month, day)? * 86_400 + parse_clock(clock)?;
        Self::parse_decimal(&format!("{seconds}.{fraction}"))
    }

    /// `Tue, 17 Nov 2026 12:24:17 GMT`, as in the header Last-Modified (RFC 9110 §5.6.7).
    pub fn parse_http(text: &str) -> Option<Self> {
        let mut words = text.trim().split(' ').skip(1);
        let day = words.next()?.parse().ok()?;
        let name = words.next()?;
        let month = MONTHS.iter().position(|month| *month == name)? as i64 + 1;
        let year = words.next()?.parse().ok()?;
        let seconds = days_since_epoch(year, month, day)? * 86_400 + parse_clock(words.next()?)?;
        Some(Self { seconds, nanoseconds: 0 })
    }
}

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

fn parse_clock(text: &str) -> Option<i64> {
    let mut parts = text.split(':').map(|part| part.parse::<i64>().ok());
    Some(parts.next()?? * 3600 + parts.next()?? * 60 + parts.next()??)
}

/// In the Gregorian calendar. The year is counted from March, so that the leap day is its last.
fn days_since_epoch(year: i64, month: i64, day: i64) -> Option<i64> {
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || !(0..=9999).contains(&year) {
        return None;
    }
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    Some(era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64, nanoseconds: u32) -> Option<Time> {
        Some(Time { seconds, nanoseconds })
    }

    #[test]
    fn dates_of_listings_and_headers_are_parsed() {
        assert_eq!(Time::parse_iso("2026-11-17T12:24:17.123Z"), at(1_794_918_257, 123_000_000));
        assert_eq!(Time::parse_iso("2024-02-29T00:00:00Z"), at(1_709_164_800, 0));
        assert_eq!(Time::parse_http("Tue, 17 Nov 2026 12:24:17 GMT"), at(1_794_918_257, 0));
        assert_eq!(Time::parse_http("Thu, 01 Jan 1970 00:00:00 GMT"), at(0, 0));
        assert_eq!(Time::parse_http("yesterday"), None);
        assert_eq!(Time::parse_iso("2026-13-17T12:24:17Z"), None);
    }

    #[test]
    fn decimal_seconds_survive_a_round_trip() {
        for time in [(0, 0), (1, 5), (-1, 500_000_000), (-7, 250_000_000), (1_794_918_257, 123_456_789)] {
            let time = Time { seconds: time.0, nanoseconds: time.1 };
            assert_eq!(Time::parse_decimal(&time.render_decimal()), Some(time));
        }
        assert_eq!(Time::parse_decimal("1700000000"), at(1_700_000_000, 0));
        assert_eq!(Time::parse_decimal("x"), None);
    }
}
