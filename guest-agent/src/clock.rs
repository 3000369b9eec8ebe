//! POST /clock: a restored machine wakes with the time of its snapshot; the host tells it the real one.

use std::io::Error;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::reply::{Done, Failure};
use crate::sys::check;

#[derive(Deserialize)]
pub struct ClockRequest {
    /// Nanoseconds since 1970 as decimal text: a JSON number would lose the last digits in JavaScript.
    unix_ns: String,
}

#[derive(Serialize)]
pub struct ClockAnswer {
    /// How far the clock was moved; negative when it ran ahead.
    corrected_ms: f64,
}

const NS_PER_SECOND: i64 = 1_000_000_000;

pub fn set_clock(request: &ClockRequest) -> Done<ClockAnswer> {
    let wanted_ns: i64 = request
        .unix_ns
        .parse()
        .ok()
        .filter(|ns| *ns > 0)
        .ok_or_else(|| Failure::invalid("unix_ns: decimal nanoseconds since 1970"))?;
    let before_ns = now_ns();
    let time = libc::timespec { tv_sec: wanted_ns / NS_PER_SECOND, tv_nsec: wanted_ns % NS_PER_SECOND };
    // SAFETY: reads a local.
    check(unsafe { libc::clock_settime(libc::CLOCK_REALTIME, &time) }).map_err(|error| refused(&error))?;
    Ok(ClockAnswer { corrected_ms: (wanted_ns - before_ns) as f64 / 1e6 })
}

fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

fn refused(error: &Error) -> Failure {
    Failure::internal("could not set the clock", error)
}
