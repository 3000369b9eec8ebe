//! Shared by the tests: a bucket in memory behind the protocol of the proxy, and the program mounted on a folder.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod bucket;
pub mod http;
pub mod mounted;
pub mod server;

use std::time::{Duration, Instant};

/// Waits for a condition.
pub fn until(what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < Duration::from_secs(60), "{what} did not happen");
        std::thread::yield_now();
        std::thread::park_timeout(Duration::from_millis(10));
    }
}
