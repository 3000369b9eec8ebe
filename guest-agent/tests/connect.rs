//! Readers of the journal: however they connect, disconnect and lag, they receive every byte once.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use serde_json::json;
use support::processes_client::{Frame, id_of, output_of, take_frames};
use support::{noise, start_agent};

/// A program that writes small and large pieces to both streams.
const WRITER: &str =
    "i=0; while [ $i -lt 40 ]; do echo line $i; echo error $i >&2; i=$((i+1)); done; head -c 3000 /dev/zero";

/// Reads at most this many bytes of the stream, then resets it. Returns the complete frames.
async fn read_bytes(client: &support::Client, id: &str, after: u64, limit: usize) -> (Vec<Frame>, bool) {
    let (response, mut send) = client.open("GET", &format!("/processes/{id}/connect?after={after}")).await;
    send.send_data(Bytes::new(), true).unwrap();
    let mut body = response.await.unwrap().into_body();
    let (mut buffered, mut frames) = (BytesMut::new(), VecDeque::new());
    let mut left = limit;
    while left > 0 {
        let Some(chunk) = body.data().await else { break };
        let chunk = chunk.unwrap();
        body.flow_control().release_capacity(chunk.len()).unwrap();
        let taken = chunk.len().min(left);
        left -= taken;
        buffered.extend_from_slice(&chunk[..taken]);
        take_frames(&mut buffered, &mut frames);
    }
    let over = matches!(frames.back(), Some(Frame::Exit(_) | Frame::Error(_)));
    (frames.into(), over)
}

#[tokio::test]
async fn a_reader_interrupted_at_any_byte_resumes_from_its_last_number_without_loss() {
    let host = start_agent();
    let client = host.connect().await;
    let id = client.run("sh", &["-c", WRITER]).await;
    client.wait(&id, "tree").await;
    let whole = client.frames(&id, 0).await;
    let length: usize = whole
        .iter()
        .map(|frame| match frame {
            Frame::Output { bytes, .. } => 13 + bytes.len(),
            _ => 5 + br#"{"exit_code":0}"#.len(),
        })
        .sum();

    // Every byte around the start and end of frames, and a sample of those inside the large one.
    let ends = (0..length).filter(|end| *end < 1200 || end % 97 == 0 || *end > length - 40);
    for end in ends {
        let (first, over) = read_bytes(&client, &id, 0, end).await;
        assert!(!over);
        let seen = first.len() as u64;
        let rest = client.frames(&id, seen).await;
        assert_eq!([first, rest].concat(), whole, "interrupted at byte {end}");
    }
}

#[tokio::test]
async fn a_reader_that_keeps_reconnecting_receives_all_output() {
    let host = start_agent();
    let client = host.connect().await;
    let id = client.run("sh", &["-c", "i=0; while [ $i -lt 3000 ]; do echo $i; i=$((i+1)); done"]).await;
    let mut frames: Vec<Frame> = Vec::new();

    // The last limit is more than one event, so that each round makes progress.
    for limit in [1, 7, 13, 40, 200, 1000, 40_000].into_iter().cycle() {
        let (more, over) = read_bytes(&client, &id, frames.len() as u64, limit).await;
        frames.extend(more);
        if over {
            break;
        }
    }

    let wanted: String = (0..3000).map(|number| format!("{number}\n")).collect();
    assert_eq!(String::from_utf8(output_of(&frames, 0)).unwrap(), wanted);
}

#[tokio::test]
async fn many_readers_receive_the_same_output() {
    let host = start_agent();
    let client = host.connect().await;
    let id = client.run("sh", &["-c", &format!("read line; {WRITER}")]).await;
    let mut readers = Vec::new();
    for _ in 0..20 {
        readers.push(client.follow(&id, 0).await);
    }
    client.post(&id, "input", "go\n").await;

    let mut seen = Vec::new();
    for mut reader in readers {
        let mut frames = Vec::new();
        while let Some(frame) = reader.next().await {
            frames.push(frame);
        }
        seen.push(frames);
    }

    assert!(seen.iter().all(|frames| *frames == seen[0]));
    assert_eq!(seen[0].last(), Some(&Frame::Exit(json!({"exit_code": 0}))));
}

#[tokio::test]
async fn an_expired_offset_is_reported_with_the_oldest_available_one() {
    let host = start_agent();
    let client = host.connect().await;
    let id = client.run("head", &["-c", "3000000", "/dev/zero"]).await;
    let record = client.wait(&id, "tree").await;
    let (oldest, newest) =
        (record["output"]["oldest_seq"].as_u64().unwrap(), record["output"]["newest_seq"].as_u64().unwrap());
    assert!(oldest > 2 && record["output"]["bytes"].as_u64().unwrap() <= 1024 * 1024);

    let expired = client.call("GET", &format!("/processes/{id}/connect?after=1"), "").await;
    let all_retained = client.frames(&id, 0).await;
    let again = client.frames(&id, oldest - 1).await;

    let expected =
        json!({"code": "output_offset_expired", "message": "output offset expired", "oldest_available_seq": oldest});
    assert_eq!((expired.status, expired.json()), (410, expected));
    assert_eq!(all_retained, again);
    assert_eq!(output_of(&again, oldest - 1).len() as u64, record["output"]["bytes"].as_u64().unwrap());
    assert_eq!(again.len() as u64, newest - oldest + 2);
}

#[tokio::test]
async fn a_reader_that_keeps_reading_receives_all_of_a_flood() {
    let host = start_agent();
    let client = host.connect().await;
    let id = client.run("sh", &["-c", "read line; head -c 20000000 /dev/zero; exit 3"]).await;
    let mut reader = client.follow(&id, 0).await;
    client.post(&id, "input", "go\n").await;

    let mut frames = Vec::new();
    while let Some(frame) = reader.next().await {
        frames.push(frame);
    }

    assert_eq!(output_of(&frames, 0).len(), 20_000_000);
    assert_eq!(frames.last(), Some(&Frame::Exit(json!({"exit_code": 3}))));
}

#[tokio::test]
async fn a_reader_that_stops_gets_an_error_and_blocks_neither_the_process_nor_other_readers() {
    let host = start_agent();
    let client = host.connect().await;
    let id = client.run("sh", &["-c", "echo first; read line; head -c 8000000 /dev/zero; exit 3"]).await;
    let mut slow = client.follow(&id, 0).await;
    assert!(matches!(slow.next().await, Some(Frame::Output { seq: 1, .. })));
    client.post(&id, "input", "go\n").await;

    // It reads nothing meanwhile, and its window is far smaller than the output.
    assert_eq!(client.wait(&id, "tree").await["exit_code"], 3);

    let mut seen = vec![Frame::Output { stream: 1, seq: 1, bytes: Bytes::from("first\n") }];
    while let Some(frame) = slow.next().await {
        seen.push(frame);
    }
    output_of(&seen, 0);
    let record = client.process(&id).await;
    let expected = json!({"code": "output_offset_expired", "message": "output offset expired", "oldest_available_seq": record["output"]["oldest_seq"]});
    assert_eq!(seen.last(), Some(&Frame::Error(expected)));
}

#[tokio::test]
async fn random_bytes_through_a_process_are_unchanged() {
    let host = start_agent();
    let client = host.connect().await;
    let input = noise(700_000, 5);
    let id = id_of(&client.start(json!({"cmd": "cat"})).await);

    for piece in input.chunks(100_000) {
        client.post(&id, "input", piece.to_vec()).await;
    }
    client.post(&id, "stdin/close", "").await;
    let frames = client.frames(&id, 0).await;

    assert_eq!(output_of(&frames, 0), input);
}

#[tokio::test]
async fn a_reader_whose_record_is_dropped_receives_an_error_instead_of_an_exit() {
    let host = start_agent();
    let client = host.connect().await;
    let id = client.run("head", &["-c", "600000", "/dev/zero"]).await;
    client.wait(&id, "tree").await;
    // More than its window, so that not everything can have been sent.
    let mut reader = client.follow(&id, 0).await;
    reader.next().await;

    client.start(json!({"cmd": "true", "records_max": 1})).await;

    let mut last = None;
    while let Some(frame) = reader.next().await {
        last = Some(frame);
    }
    assert!(matches!(last, Some(Frame::Error(error)) if error["code"] == "process_not_found"));
    assert_eq!(client.call("GET", &format!("/processes/{id}/connect"), "").await.status, 404);
}

#[tokio::test]
async fn very_large_offsets_are_accepted() {
    let host = start_agent();
    let client = host.connect().await;
    let id = client.run("echo", &["one"]).await;
    client.wait(&id, "tree").await;

    assert_eq!(client.frames(&id, u64::MAX).await, [Frame::Exit(json!({"exit_code": 0}))]);
    assert_eq!(client.call("GET", &format!("/processes/{id}/connect?after=-1"), "").await.status, 400);
    assert_eq!(client.call("GET", &format!("/processes/{id}/connect?after=1e3"), "").await.status, 400);
}
