//! One host after another on the same two ports, interrupted at every byte, without a disconnect in between.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::time::Duration;

use guest_agent::hello;
use serde_json::json;
use support::{Scratch, frame, is_alive, new_nonce, skip_to_reply, start_agent, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// All bytes that a host sends to upload `content`: preface, settings, headers and two data frames.
fn upload_bytes(path: &str, content: &[u8]) -> Vec<u8> {
    let h2_frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let length = (payload.len() as u32).to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    };
    let literal = |name: &str, value: &str| {
        let mut bytes = vec![0, name.len() as u8];
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(value.len() as u8);
        bytes.extend_from_slice(value.as_bytes());
        bytes
    };
    let headers =
        [literal(":method", "PUT"), literal(":scheme", "http"), literal(":authority", "guest"), literal(":path", path)]
            .concat();
    let (first, second) = content.split_at(content.len() / 2);
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        h2_frame(4, 0, 0, &[]),
        h2_frame(1, 4, 1, &headers),
        h2_frame(0, 0, 1, first),
        h2_frame(0, 1, 1, second),
    ]
    .concat()
}

#[tokio::test]
async fn a_host_that_dies_at_any_byte_of_an_upload_leaves_no_file_and_the_next_host_is_served() {
    let host = start_agent();
    let scratch = Scratch::new();
    let content = [b"x".repeat(60), hello::line(&new_nonce())].concat();
    let bytes = upload_bytes(&scratch.url("target"), &content);

    for end in 0..bytes.len() {
        let mut first = host.handshake().await;
        first.write_all(&bytes[..end]).await.unwrap();

        let second = host.connect().await;
        let response = second.call("GET", "/ready", "").await;

        assert_eq!(response.status, 200, "interrupted at byte {end}");
        assert_eq!(scratch.names(), [] as [&str; 0], "interrupted at byte {end}");
    }
    let mut whole = host.handshake().await;
    whole.write_all(&bytes).await.unwrap();
    until("the whole upload has arrived", || std::fs::read(scratch.path("target")).is_ok_and(|it| it == content)).await;
}

#[tokio::test]
async fn a_host_that_dies_at_any_byte_of_the_hello_does_not_affect_the_next() {
    let host = start_agent();
    let length = hello::line(&new_nonce()).len();

    for end in 0..=length {
        let nonce = new_nonce();
        host.hello_port().write_all(&hello::line(&nonce)[..end]).await.unwrap();
        assert_eq!(host.connect().await.call("GET", "/ready", "").await.status, 200, "hello interrupted at byte {end}");

        let nonce = new_nonce();
        host.hello_port().write_all(&hello::line(&nonce)).await.unwrap();
        skip_to_reply(&mut host.hello_port(), &nonce).await;
        host.data_port().write_all(&hello::line(&nonce)[..end]).await.unwrap();
        assert_eq!(
            host.connect().await.call("GET", "/ready", "").await.status,
            200,
            "agent port interrupted at byte {end}"
        );
    }
}

#[tokio::test]
async fn a_file_that_contains_a_hello_line_is_transferred_unchanged() {
    let host = start_agent();
    let scratch = Scratch::new();
    let client = host.connect().await;
    let content: Vec<u8> = (0..2000).flat_map(|_| hello::line(&new_nonce())).collect();

    let put = client.call("PUT", &scratch.url("hellos"), content.clone()).await;
    let got = client.call("GET", &scratch.url("hellos"), "").await;

    assert_eq!(put.status, 200);
    assert_eq!(got.body, content);
    assert_eq!(client.call("GET", "/ready", "").await.status, 200);
}

#[tokio::test]
async fn responses_for_a_dead_host_never_reach_the_next_one() {
    let host = start_agent();
    let scratch = Scratch::new();
    std::fs::write(scratch.path("big"), b"s".repeat(4 << 20)).unwrap();
    for _ in 0..20 {
        let client = host.connect().await;
        // Requested, and sent into the pipe, but never read.
        let waiting = client.open("GET", &scratch.url("big")).await;
        tokio::time::timeout(Duration::from_millis(3), waiting.0).await.ok();
        drop(client);

        // `handshake` finds its reply after any stale data, and HTTP/2 begins right after it.
        let mut raw = host.handshake().await;

        let preface = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat();
        raw.write_all(&preface).await.unwrap();
        let mut header = [0; 9];
        raw.read_exact(&mut header).await.unwrap();
        assert_eq!(header[3..], [4, 0, 0, 0, 0, 0], "the first frame is the agent's settings");
    }
}

#[tokio::test]
async fn a_new_hello_kills_the_commands_of_the_previous_host() {
    let host = start_agent();
    let scratch = Scratch::new();
    let client = host.connect().await;
    let script = format!("echo $$ > {}; sleep 1000", scratch.path("pid").display());
    let command = json!({"cmd": "sh", "args": ["-c", script]});
    let (_response, mut send) = client.open("POST", "/exec").await;
    support::send_all(&mut send, frame(3, command.to_string().as_bytes()), true).await.unwrap();
    let pid = || std::fs::read_to_string(scratch.path("pid")).ok()?.trim().parse::<i64>().ok();
    until("the command runs", || pid().is_some()).await;

    let next = host.connect().await;

    assert_eq!(next.call("GET", "/ready", "").await.status, 200);
    until("the command was killed", || !is_alive(pid().unwrap())).await;
}

#[tokio::test]
async fn garbage_on_both_ports_is_skipped() {
    let host = start_agent();
    let garbage = support::noise(100_000, 7);
    host.hello_port().write_all(&garbage).await.unwrap();
    host.data_port().write_all(&garbage).await.unwrap();

    let client = host.connect().await;

    assert_eq!(client.call("GET", "/ready", "").await.status, 200);
}
