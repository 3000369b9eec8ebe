//! A frame: one type byte, the payload's length as 4 bytes big-endian, the payload.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::RecvStream;
use serde::Serialize;

use crate::reply::{Done, Failure, Stop};

pub const STDIN: u8 = 0;
pub const STDOUT: u8 = 1;
pub const STDERR: u8 = 2;
pub const COMMAND: u8 = 3;
pub const STARTED: u8 = 4;
pub const ERROR: u8 = 5;
pub const EXIT: u8 = 6;

pub const HEADER_LEN: usize = 5;

pub fn frame(kind: u8, payload: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(HEADER_LEN + payload.len());
    bytes.put_u8(kind);
    // Ours are at most a few tens of KiB.
    bytes.put_u32(payload.len() as u32);
    bytes.extend_from_slice(payload);
    bytes.freeze()
}

pub fn json_frame(kind: u8, value: &impl Serialize) -> Bytes {
    frame(kind, &serde_json::to_vec(value).unwrap_or_default())
}

/// Reads frames from a request body, however HTTP/2 cut it.
pub struct FrameReader {
    body: RecvStream,
    /// Received and not yet taken. Its window is given back when it is taken.
    held: Bytes,
}

impl FrameReader {
    pub fn new(body: RecvStream) -> Self {
        Self { body, held: Bytes::new() }
    }

    /// One whole frame of the given kind.
    pub async fn read_whole(&mut self, wanted: u8, max_bytes: usize) -> Done<Bytes> {
        let (kind, length) = self.header().await?.ok_or_else(cut_short)?;
        if kind != wanted || length > max_bytes {
            let message = format!("expected a frame of type {wanted} and at most {max_bytes} bytes");
            return Err(Failure::invalid(message).into());
        }
        self.payload(length).await
    }

    /// All of a payload, whose header was just read.
    pub async fn payload(&mut self, length: usize) -> Done<Bytes> {
        let mut payload = BytesMut::with_capacity(length.min(64 * 1024));
        while payload.len() < length {
            let piece = self.take(length - payload.len()).await?.ok_or_else(cut_short)?;
            payload.extend_from_slice(&piece);
            self.release(piece.len())?;
        }
        Ok(payload.freeze())
    }

    /// None at the end of the body, if that is between two frames.
    pub async fn header(&mut self) -> Done<Option<(u8, usize)>> {
        let mut header = BytesMut::with_capacity(HEADER_LEN);
        while header.len() < HEADER_LEN {
            match self.take(HEADER_LEN - header.len()).await? {
                Some(piece) => {
                    header.extend_from_slice(&piece);
                    self.release(piece.len())?;
                }
                None if header.is_empty() => return Ok(None),
                None => return Err(cut_short()),
            }
        }
        let kind = header.get_u8();
        Ok(Some((kind, header.get_u32() as usize)))
    }

    /// Up to `max` bytes, at least one; None at the end of the body. `release` them when they are used up.
    pub async fn take(&mut self, max: usize) -> Done<Option<Bytes>> {
        while self.held.is_empty() {
            match self.body.data().await {
                Some(chunk) => self.held = chunk?,
                None => return Ok(None),
            }
        }
        Ok(Some(self.held.split_to(max.min(self.held.len()))))
    }

    pub fn release(&mut self, count: usize) -> Done {
        Ok(self.body.flow_control().release_capacity(count)?)
    }
}

/// Half a frame is not an end: a command must not take it for one.
pub fn cut_short() -> Stop {
    Failure::invalid("the body ends inside a frame").into()
}
