//! A client for managed processes.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};
use h2::RecvStream;
use serde_json::{Value, json};

use super::{Client, Reply, until};

#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    Output { stream: u8, seq: u64, bytes: Bytes },
    Exit(Value),
    Error(Value),
}

impl Client {
    /// Starts a process, which must succeed, and returns its record.
    pub async fn start(&self, request: Value) -> Value {
        let response = self.call("POST", "/processes", request.to_string()).await;
        assert_eq!(response.status, 200, "{:?}", response.body);
        response.json()
    }

    /// Starts a program and returns the id of its process.
    pub async fn run(&self, cmd: &str, args: &[&str]) -> String {
        id_of(&self.start(json!({"cmd": cmd, "args": args})).await)
    }

    pub async fn process(&self, id: &str) -> Value {
        self.call("GET", &format!("/processes/{id}"), "").await.json()
    }

    pub async fn wait(&self, id: &str, scope: &str) -> Value {
        let response = self.call("GET", &format!("/processes/{id}/wait?scope={scope}"), "").await;
        assert_eq!(response.status, 200, "{:?}", response.body);
        response.json()
    }

    pub async fn post(&self, id: &str, verb: &str, body: impl Into<Bytes>) -> Reply {
        self.call("POST", &format!("/processes/{id}/{verb}"), body).await
    }

    pub async fn delete(&self, id: &str, grace_ms: u64) -> Value {
        let response = self.call("DELETE", &format!("/processes/{id}?grace_ms={grace_ms}"), "").await;
        assert_eq!(response.status, 200, "{:?}", response.body);
        response.json()
    }

    pub async fn follow(&self, id: &str, after: u64) -> Reader {
        let (response, mut send) = self.open("GET", &format!("/processes/{id}/connect?after={after}")).await;
        send.send_data(Bytes::new(), true).unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        Reader { body: response.into_body(), buffered: BytesMut::new(), frames: VecDeque::new() }
    }

    /// Reads all frames of a process until it ends.
    pub async fn frames(&self, id: &str, after: u64) -> Vec<Frame> {
        let mut reader = self.follow(id, after).await;
        let mut frames = Vec::new();
        while let Some(frame) = reader.next().await {
            frames.push(frame);
        }
        frames
    }

    pub async fn until_process(&self, what: &str, id: &str, mut holds: impl FnMut(&Value) -> bool) -> Value {
        for _ in 0..1000 {
            let record = self.process(id).await;
            if holds(&record) {
                return record;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        panic!("timed out waiting until {what}: {}", self.process(id).await);
    }
}

pub struct Reader {
    body: RecvStream,
    buffered: BytesMut,
    frames: VecDeque<Frame>,
}

impl Reader {
    /// Returns None at the end of the stream.
    pub async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.frames.pop_front() {
                return Some(frame);
            }
            let Some(chunk) = self.body.data().await else {
                assert!(self.buffered.is_empty(), "the stream ends inside a frame");
                return None;
            };
            let chunk = chunk.unwrap();
            self.body.flow_control().release_capacity(chunk.len()).unwrap();
            self.buffered.extend_from_slice(&chunk);
            take_frames(&mut self.buffered, &mut self.frames);
        }
    }

    /// Reads output until it contains this text, and returns all of it.
    pub async fn until_text(&mut self, wanted: &str) -> String {
        let mut text = String::new();
        while !text.contains(wanted) {
            match self.next().await {
                Some(Frame::Output { bytes, .. }) => text.push_str(&String::from_utf8_lossy(&bytes)),
                other => panic!("{other:?} instead of {wanted:?} after {text:?}"),
            }
        }
        text
    }
}

pub fn take_frames(buffered: &mut BytesMut, frames: &mut VecDeque<Frame>) {
    while buffered.len() >= 5 {
        let length = u32::from_be_bytes(buffered[1..5].try_into().unwrap()) as usize;
        if buffered.len() < 5 + length {
            return;
        }
        let kind = buffered.get_u8();
        buffered.advance(4);
        let mut payload = buffered.split_to(length).freeze();
        frames.push_back(match kind {
            1 | 2 | 7 => Frame::Output { stream: kind, seq: payload.get_u64(), bytes: payload },
            5 => Frame::Error(serde_json::from_slice(&payload).unwrap()),
            6 => Frame::Exit(serde_json::from_slice(&payload).unwrap()),
            other => panic!("frame type {other}"),
        });
    }
}

/// The bytes of the output frames, which must be numbered without gaps, starting after `after`.
pub fn output_of(frames: &[Frame], after: u64) -> Vec<u8> {
    let mut all = Vec::new();
    let mut last = after;
    for frame in frames {
        if let Frame::Output { seq, bytes, .. } = frame {
            assert_eq!(*seq, last + 1);
            assert!((1..=32 * 1024).contains(&bytes.len()));
            last = *seq;
            all.extend_from_slice(bytes);
        }
    }
    all
}

pub fn id_of(record: &Value) -> String {
    record["process_id"].as_str().unwrap().to_owned()
}

/// Waits until a program has written a number to a file, and returns it.
pub async fn number_in(path: &std::path::Path) -> i64 {
    let read = || std::fs::read_to_string(path).ok()?.trim().parse::<i64>().ok();
    until("a number is written", || read().is_some()).await;
    read().unwrap()
}
