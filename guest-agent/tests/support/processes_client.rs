//! Managed processes as a host sees them.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};
use h2::RecvStream;
use serde_json::{Value, json};

use super::{Answer, Client, until};

#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    Output { stream: u8, seq: u64, bytes: Bytes },
    Exit(Value),
    Error(Value),
}

impl Client {
    /// The record of a process that must start.
    pub async fn start(&self, wanted: Value) -> Value {
        let answer = self.call("POST", "/processes", wanted.to_string()).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        answer.json()
    }

    /// Its id.
    pub async fn run(&self, cmd: &str, args: &[&str]) -> String {
        id_of(&self.start(json!({"cmd": cmd, "args": args})).await)
    }

    pub async fn process(&self, id: &str) -> Value {
        self.call("GET", &format!("/processes/{id}"), "").await.json()
    }

    pub async fn wait(&self, id: &str, scope: &str) -> Value {
        let answer = self.call("GET", &format!("/processes/{id}/wait?scope={scope}"), "").await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        answer.json()
    }

    pub async fn post(&self, id: &str, verb: &str, body: impl Into<Bytes>) -> Answer {
        self.call("POST", &format!("/processes/{id}/{verb}"), body).await
    }

    pub async fn delete(&self, id: &str, grace_ms: u64) -> Value {
        let answer = self.call("DELETE", &format!("/processes/{id}?grace_ms={grace_ms}"), "").await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        answer.json()
    }

    pub async fn follow(&self, id: &str, after: u64) -> Reader {
        let (response, mut send) = self.open("GET", &format!("/processes/{id}/connect?after={after}")).await;
        send.send_data(Bytes::new(), true).unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        Reader { body: response.into_body(), held: BytesMut::new(), frames: VecDeque::new() }
    }

    /// All frames of a process that ends.
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
        panic!("never happened: {what}: {}", self.process(id).await);
    }
}

pub struct Reader {
    body: RecvStream,
    held: BytesMut,
    frames: VecDeque<Frame>,
}

impl Reader {
    /// None at the end of the stream.
    pub async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.frames.pop_front() {
                return Some(frame);
            }
            let Some(chunk) = self.body.data().await else {
                assert!(self.held.is_empty(), "cut inside a frame");
                return None;
            };
            let chunk = chunk.unwrap();
            self.body.flow_control().release_capacity(chunk.len()).unwrap();
            self.held.extend_from_slice(&chunk);
            take_frames(&mut self.held, &mut self.frames);
        }
    }

    /// Output until it holds this text; gives all of it.
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

pub fn take_frames(held: &mut BytesMut, frames: &mut VecDeque<Frame>) {
    while held.len() >= 5 {
        let length = u32::from_be_bytes(held[1..5].try_into().unwrap()) as usize;
        if held.len() < 5 + length {
            return;
        }
        let kind = held.get_u8();
        held.advance(4);
        let mut payload = held.split_to(length).freeze();
        frames.push_back(match kind {
            1 | 2 | 7 => Frame::Output { stream: kind, seq: payload.get_u64(), bytes: payload },
            5 => Frame::Error(serde_json::from_slice(&payload).unwrap()),
            6 => Frame::Exit(serde_json::from_slice(&payload).unwrap()),
            other => panic!("frame type {other}"),
        });
    }
}

/// The bytes of the output frames, which must be numbered without a gap from `after` on.
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

/// The number a program has written to a file, once it has.
pub async fn number_in(path: &std::path::Path) -> i64 {
    let read = || std::fs::read_to_string(path).ok()?.trim().parse::<i64>().ok();
    until("a number is written", || read().is_some()).await;
    read().unwrap()
}
