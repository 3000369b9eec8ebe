#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
//! How the program finds out whether the server honours conditions.

mod support;

use std::time::{Duration, Instant};

use serde_json::json;
use support::http::Response;
use support::mounted::Mounted;
use support::server::{Effect, Server, TOKEN};
use support::until;

#[test]
fn a_server_that_refused_writes_is_asked_again_with_the_next_connection() {
    let server = Server::start();
    server.set_fault(|request| (request.method == "PUT").then(|| Effect::Answer(Response::error(403, "AccessDenied"))));
    let mut mounted = Mounted::start_unprobed(&server);
    until("the first attempt", || server.take_log().iter().any(|line| line.starts_with("DELETE ")));
    assert_eq!(mounted.status()["conditions"], "unknown");
    server.clear_fault();

    let connected = Instant::now();
    mounted.command(json!({"do": "connect", "address": server.address.to_string(), "token": TOKEN}));
    while mounted.status()["conditions"] == "unknown" {
        assert!(connected.elapsed() < Duration::from_secs(5), "the next attempt is later");
    }

    assert_eq!(mounted.status()["conditions"], "honoured");
}
