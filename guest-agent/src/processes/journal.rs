//! The output of one process as numbered events. The oldest events are dropped first.
//!
//! Events are stored one after another in chunks; a chunk is freed when its last event is dropped. An event costs its
//! bytes plus some bookkeeping, so a program that writes single bytes costs a small multiple of what it wrote; that
//! cost counts towards the limit of all journals together (`journals.rs`).

use std::collections::VecDeque;

use bytes::{BufMut, BytesMut};

/// Output retained per process.
pub const RETAINED_MAX_BYTES: usize = 1024 * 1024;
/// Size limit of one event.
pub const EVENT_MAX_BYTES: usize = 32 * 1024;
const CHUNK_BYTES: usize = 64 * 1024;
/// A chunk spans at most this many bytes appended to all journals, so that the age of its first event is a good enough
/// estimate for all of its events.
const CHUNK_SPAN_BYTES: u64 = 1024 * 1024;
const EVENT_COST: usize = size_of::<Event>();
const CHUNK_COST: usize = size_of::<Chunk>() + 64;

/// The value is also the type of the event's frame (`guest-processes.ts`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout = 1,
    Stderr = 2,
    Pty = 7,
}

struct Event {
    /// End offset within its chunk.
    end: u32,
    stream: Stream,
}

struct Chunk {
    /// Total bytes appended to all journals when the chunk was created.
    created_at: u64,
    first_seq: u64,
    data: Vec<u8>,
    events: Vec<Event>,
    dropped: usize,
}

#[derive(Default)]
pub struct Journal {
    chunks: VecDeque<Chunk>,
    newest: u64,
    bytes: usize,
    /// Total bytes ever appended.
    written: u64,
    cost: usize,
}

#[derive(Debug, PartialEq)]
pub enum ReadResult {
    /// Frames of complete events, and the sequence number of the last one.
    Events(BytesMut, u64),
    UpToDate,
    Expired,
}

impl Journal {
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// Sequence number of the oldest retained event, or of the next one if there is none.
    pub fn oldest(&self) -> u64 {
        self.chunks.front().map_or(self.newest + 1, |chunk| chunk.first_seq + chunk.dropped as u64)
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn written(&self) -> u64 {
        self.written
    }

    /// Bytes written up to and including this event, which must be a retained or future one.
    pub fn written_through(&self, seq: u64) -> u64 {
        let later: usize = self.chunks.iter().map(|chunk| chunk.bytes_after(seq)).sum();
        self.written - later as u64
    }

    pub fn cost(&self) -> usize {
        self.cost
    }

    pub fn created_at(&self) -> Option<u64> {
        self.chunks.front().map(|chunk| chunk.created_at)
    }

    /// `bytes` is not empty and has at most EVENT_MAX_BYTES. `total_appended` is the number of bytes appended to all
    /// journals so far.
    pub fn append(&mut self, stream: Stream, bytes: &[u8], total_appended: u64) {
        let fits = |chunk: &Chunk| {
            chunk.data.len() + bytes.len() <= CHUNK_BYTES
                && total_appended.saturating_sub(chunk.created_at) <= CHUNK_SPAN_BYTES
        };
        if !self.chunks.back().is_some_and(fits) {
            self.begin_chunk(total_appended);
        }
        let Some(chunk) = self.chunks.back_mut() else { return };
        chunk.data.extend_from_slice(bytes);
        chunk.events.push(Event { end: chunk.data.len() as u32, stream });
        self.newest += 1;
        self.bytes += bytes.len();
        self.written += bytes.len() as u64;
        self.cost += bytes.len() + EVENT_COST;
        while self.bytes > RETAINED_MAX_BYTES {
            self.drop_oldest();
        }
    }

    fn begin_chunk(&mut self, total_appended: u64) {
        if let Some(full) = self.chunks.back_mut() {
            full.data.shrink_to_fit();
            full.events.shrink_to_fit();
        }
        let first_seq = self.newest + 1;
        self.chunks.push_back(Chunk {
            created_at: total_appended,
            first_seq,
            data: Vec::new(),
            events: Vec::new(),
            dropped: 0,
        });
        self.cost += CHUNK_COST;
    }

    pub fn drop_oldest(&mut self) {
        let Some(chunk) = self.chunks.front_mut() else { return };
        let length = chunk.range(chunk.dropped).map_or(0, |(range, _)| range.len());
        chunk.dropped += 1;
        self.bytes = self.bytes.saturating_sub(length);
        self.cost = self.cost.saturating_sub(length + EVENT_COST);
        if chunk.dropped >= chunk.events.len() {
            self.chunks.pop_front();
            self.cost = self.cost.saturating_sub(CHUNK_COST);
        }
    }

    /// Reads the events after `after`: at least one, and no more than fit into `max_bytes`.
    pub fn read(&self, after: u64, max_bytes: usize) -> ReadResult {
        if after >= self.newest {
            return ReadResult::UpToDate;
        }
        if after + 1 < self.oldest() {
            return ReadResult::Expired;
        }
        let mut frames = BytesMut::new();
        let mut last = after;
        let behind = self.chunks.partition_point(|chunk| chunk.first_seq <= after + 1);
        for chunk in self.chunks.iter().skip(behind.saturating_sub(1)) {
            let skipped = usize::try_from((last + 1).saturating_sub(chunk.first_seq)).unwrap_or(usize::MAX);
            for index in skipped..chunk.events.len() {
                let Some((range, stream)) = chunk.range(index) else { break };
                let bytes = chunk.data.get(range).unwrap_or_default();
                if !frames.is_empty() && frames.len() + FRAME_OVERHEAD_BYTES + bytes.len() > max_bytes {
                    return ReadResult::Events(frames, last);
                }
                last += 1;
                put_frame(&mut frames, stream, last, bytes);
            }
        }
        ReadResult::Events(frames, last)
    }
}

impl Chunk {
    /// Size of its retained events with a higher sequence number.
    fn bytes_after(&self, seq: u64) -> usize {
        let passed = usize::try_from(seq.saturating_add(1).saturating_sub(self.first_seq)).unwrap_or(usize::MAX);
        let first = passed.max(self.dropped);
        self.range(first).map_or(0, |(range, _)| self.data.len() - range.start)
    }

    fn range(&self, index: usize) -> Option<(std::ops::Range<usize>, Stream)> {
        let start = match index.checked_sub(1) {
            Some(before) => self.events.get(before)?.end as usize,
            None => 0,
        };
        let event = self.events.get(index)?;
        Some((start..event.end as usize, event.stream))
    }
}

const SEQ_BYTES: usize = 8;
pub const FRAME_OVERHEAD_BYTES: usize = 5 + SEQ_BYTES;

fn put_frame(frames: &mut BytesMut, stream: Stream, seq: u64, bytes: &[u8]) {
    frames.reserve(FRAME_OVERHEAD_BYTES + bytes.len());
    frames.put_u8(stream as u8);
    frames.put_u32((SEQ_BYTES + bytes.len()) as u32);
    frames.put_u64(seq);
    frames.extend_from_slice(bytes);
}
