//! What one process has written, as numbered events, the oldest forgotten first.
//!
//! Events lie one behind the other in chunks; a chunk is freed when its last event is forgotten. An event costs its
//! bytes and a few more, so that a program that writes byte by byte costs a small multiple of what it wrote, and that
//! is counted in what all journals together may cost (`journals.rs`).

use std::collections::VecDeque;

use bytes::{BufMut, BytesMut};

/// Per process (spec 8).
pub const KEPT_MAX_BYTES: usize = 1024 * 1024;
/// One event (spec 8).
pub const EVENT_MAX_BYTES: usize = 32 * 1024;
const CHUNK_BYTES: usize = 64 * 1024;
/// A chunk holds the events of so many bytes that all journals have taken: then the age of its first tells enough.
const CHUNK_SPAN_BYTES: u64 = 1024 * 1024;
const EVENT_COST: usize = size_of::<Event>();
const CHUNK_COST: usize = size_of::<Chunk>() + 64;

/// Also the type of its frame (`guest-processes.ts`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout = 1,
    Stderr = 2,
    Pty = 7,
}

struct Event {
    /// Where it ends in its chunk.
    end: u32,
    stream: Stream,
}

struct Chunk {
    /// How much all journals had taken when it was begun.
    born: u64,
    first_seq: u64,
    data: Vec<u8>,
    events: Vec<Event>,
    forgotten: usize,
}

#[derive(Default)]
pub struct Journal {
    chunks: VecDeque<Chunk>,
    newest: u64,
    bytes: usize,
    /// Ever appended.
    written: u64,
    cost: usize,
}

#[derive(Debug, PartialEq)]
pub enum Next {
    /// Frames of whole events, up to and with this number.
    Events(BytesMut, u64),
    Nothing,
    Expired,
}

impl Journal {
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// The oldest that is kept, or the one that will come next.
    pub fn oldest(&self) -> u64 {
        self.chunks.front().map_or(self.newest + 1, |chunk| chunk.first_seq + chunk.forgotten as u64)
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn written(&self) -> u64 {
        self.written
    }

    /// How much had been written when the event of this number had been; of those that are kept, or come later.
    pub fn written_up_to(&self, seq: u64) -> u64 {
        let later: usize = self.chunks.iter().map(|chunk| chunk.bytes_after(seq)).sum();
        self.written - later as u64
    }

    pub fn cost(&self) -> usize {
        self.cost
    }

    pub fn born(&self) -> Option<u64> {
        self.chunks.front().map(|chunk| chunk.born)
    }

    /// Not empty, and at most EVENT_MAX_BYTES. `taken`: how much all journals have taken so far.
    pub fn append(&mut self, stream: Stream, bytes: &[u8], taken: u64) {
        let fits = |chunk: &Chunk| {
            chunk.data.len() + bytes.len() <= CHUNK_BYTES && taken.saturating_sub(chunk.born) <= CHUNK_SPAN_BYTES
        };
        if !self.chunks.back().is_some_and(fits) {
            self.begin_chunk(taken);
        }
        let Some(chunk) = self.chunks.back_mut() else { return };
        chunk.data.extend_from_slice(bytes);
        chunk.events.push(Event { end: chunk.data.len() as u32, stream });
        self.newest += 1;
        self.bytes += bytes.len();
        self.written += bytes.len() as u64;
        self.cost += bytes.len() + EVENT_COST;
        while self.bytes > KEPT_MAX_BYTES {
            self.forget_oldest();
        }
    }

    fn begin_chunk(&mut self, taken: u64) {
        if let Some(full) = self.chunks.back_mut() {
            full.data.shrink_to_fit();
            full.events.shrink_to_fit();
        }
        let first_seq = self.newest + 1;
        self.chunks.push_back(Chunk { born: taken, first_seq, data: Vec::new(), events: Vec::new(), forgotten: 0 });
        self.cost += CHUNK_COST;
    }

    pub fn forget_oldest(&mut self) {
        let Some(chunk) = self.chunks.front_mut() else { return };
        let length = chunk.range(chunk.forgotten).map_or(0, |(range, _)| range.len());
        chunk.forgotten += 1;
        self.bytes = self.bytes.saturating_sub(length);
        self.cost = self.cost.saturating_sub(length + EVENT_COST);
        if chunk.forgotten >= chunk.events.len() {
            self.chunks.pop_front();
            self.cost = self.cost.saturating_sub(CHUNK_COST);
        }
    }

    /// What follows `after`: at least one event, and no more than fit into `max_bytes`.
    pub fn read(&self, after: u64, max_bytes: usize) -> Next {
        if after >= self.newest {
            return Next::Nothing;
        }
        if after + 1 < self.oldest() {
            return Next::Expired;
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
                    return Next::Events(frames, last);
                }
                last += 1;
                put_frame(&mut frames, stream, last, bytes);
            }
        }
        Next::Events(frames, last)
    }
}

impl Chunk {
    /// Of its kept events with a higher number.
    fn bytes_after(&self, seq: u64) -> usize {
        let passed = usize::try_from(seq.saturating_add(1).saturating_sub(self.first_seq)).unwrap_or(usize::MAX);
        let first = passed.max(self.forgotten);
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
