//! How long a request and its steps took, for the traces of the operator (docs/operating.md).
//!
//! A guest cannot reach a collector and is not trusted, so the agent only measures: a request with a `traceparent` header
//! is answered with a `warren-spans` header that holds offsets and durations in microseconds of the monotonic clock. The
//! host turns them into spans (protocol/src/guest-spans.ts). Without `traceparent` nothing is measured.

use std::cell::RefCell;
use std::time::Instant;

use http::{HeaderMap, HeaderValue};
use serde::Serialize;

const REQUESTED_BY: &str = "traceparent";
pub const HEADER: &str = "warren-spans";

tokio::task_local! {
    static MEASURED: RefCell<Measured>;
}

struct Measured {
    started: Instant,
    steps: Vec<Step>,
}

#[derive(Serialize)]
struct Step {
    name: &'static str,
    at_us: u64,
    took_us: u64,
}

#[derive(Serialize)]
struct Report<'a> {
    took_us: u64,
    steps: &'a [Step],
}

pub fn is_requested(headers: &HeaderMap) -> bool {
    headers.contains_key(REQUESTED_BY)
}

/// Runs a request whose steps are measured.
pub async fn measure<T>(request: impl Future<Output = T>) -> T {
    let measured = Measured { started: Instant::now(), steps: Vec::new() };
    MEASURED.scope(RefCell::new(measured), request).await
}

/// Runs one step of the current request.
pub async fn step<T>(name: &'static str, work: impl Future<Output = T>) -> T {
    let Ok(at_us) = MEASURED.try_with(|measured| elapsed_us(measured.borrow().started)) else { return work.await };
    let result = work.await;
    MEASURED.with(|measured| {
        let mut measured = measured.borrow_mut();
        let took_us = elapsed_us(measured.started).saturating_sub(at_us);
        measured.steps.push(Step { name, at_us, took_us });
    });
    result
}

/// The header for the response of the current request, if its host wants one.
pub fn header() -> Option<HeaderValue> {
    let report = |measured: &RefCell<Measured>| {
        let Measured { started, steps } = &*measured.borrow();
        serde_json::to_string(&Report { took_us: elapsed_us(*started), steps })
    };
    HeaderValue::from_str(&MEASURED.try_with(report).ok()?.ok()?).ok()
}

fn elapsed_us(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}
