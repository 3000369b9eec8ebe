//! In a separate test binary, because the memory of other tests would be counted too.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::time::Duration;

use support::{frame, is_alive, resident_kib, send_all, session_members, start_agent, until};

#[tokio::test]
async fn unread_output_costs_no_memory_and_a_reset_kills_the_writer() {
    let host = start_agent();
    let client = host.connect().await;
    let (response, mut send) = client.open("POST", "/exec").await;
    send_all(&mut send, frame(3, br#"{"cmd":"sh","args":["-c","yes & yes"]}"#), true).await.unwrap();
    let mut body = response.await.unwrap().into_body();
    let first = body.data().await.unwrap().unwrap();
    let pid = serde_json::from_slice::<serde_json::Value>(&first[5..first[4] as usize + 5]).unwrap()["pid"].as_i64();
    let pid = pid.unwrap();
    // Time is the subject: in this time an agent that buffered would take hundreds of megabytes.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let before = resident_kib();

    tokio::time::sleep(Duration::from_millis(400)).await;

    let grown = resident_kib().saturating_sub(before);
    assert!(grown < 2048, "grew by {grown} KiB");
    assert!(is_alive(pid));
    drop((body, send));
    until("the program is killed", || !is_alive(pid)).await;
    until("its children are killed", || session_members(pid) == 0).await;
}
