//! POST /clock: sets the clock. A restored machine starts with the time of its snapshot, and the host sends the current
//! time.

use std::io::Error;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::reply::{Failure, HandlerResult};
use crate::sys::check;

#[derive(Deserialize)]
pub struct ClockRequest {
    /// Nanoseconds since 1970 as decimal text: a JSON number would lose the last digits in JavaScript.
    unix_ns: String,
}

#[derive(Serialize)]
pub struct ClockResponse {
    /// How far the clock was moved; negative if it was ahead.
    corrected_ms: f64,
}

const NS_PER_SECOND: i64 = 1_000_000_000;

pub fn set_clock(request: &ClockRequest) -> HandlerResult<ClockResponse> {
    let wanted_ns: i64 = request
        .unix_ns
        .parse()
        .ok()
        .filter(|ns| *ns > 0)
        .ok_or_else(|| Failure::invalid("unix_ns: must be nanoseconds since 1970 as decimal text"))?;
    let before_ns = now_ns();
    let time = libc::timespec { tv_sec: wanted_ns / NS_PER_SECOND, tv_nsec: wanted_ns % NS_PER_SECOND };
    // SAFETY: reads a local.
    check(unsafe { libc::clock_settime(libc::CLOCK_REALTIME, &time) }).map_err(|error| set_clock_failed(&error))?;
    Ok(ClockResponse { corrected_ms: (wanted_ns - before_ns) as f64 / 1e6 })
}

fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

fn set_clock_failed(error: &Error) -> Failure {
    Failure::internal("failed to set the clock", error)
}
