//! A frame: one type byte, the payload length as 4 bytes big-endian, the payload.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::RecvStream;
use serde::Serialize;

use crate::reply::{Failure, HandlerError, HandlerResult};

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
    // The agent's frames have at most a few tens of KiB.
    bytes.put_u32(payload.len() as u32);
    bytes.extend_from_slice(payload);
    bytes.freeze()
}

pub fn json_frame(kind: u8, value: &impl Serialize) -> Bytes {
    frame(kind, &serde_json::to_vec(value).unwrap_or_default())
}

/// Reads frames from a request body, independent of how HTTP/2 split it.
pub struct FrameReader {
    body: RecvStream,
    /// Received but not yet consumed. Its window is released when it is consumed.
    buffered: Bytes,
}

impl FrameReader {
    pub fn new(body: RecvStream) -> Self {
        Self { body, buffered: Bytes::new() }
    }

    /// Reads one complete frame of the given kind.
    pub async fn read_whole(&mut self, wanted: u8, max_bytes: usize) -> HandlerResult<Bytes> {
        let (kind, length) = self.header().await?.ok_or_else(truncated_frame)?;
        if kind != wanted || length > max_bytes {
            let message = format!("expected a frame of type {wanted} and at most {max_bytes} bytes");
            return Err(Failure::invalid(message).into());
        }
        self.payload(length).await
    }

    /// Reads the complete payload of the frame whose header was just read.
    pub async fn payload(&mut self, length: usize) -> HandlerResult<Bytes> {
        let mut payload = BytesMut::with_capacity(length.min(64 * 1024));
        while payload.len() < length {
            let piece = self.take(length - payload.len()).await?.ok_or_else(truncated_frame)?;
            payload.extend_from_slice(&piece);
            self.release(piece.len())?;
        }
        Ok(payload.freeze())
    }

    /// Returns None at the end of the body, which must be between two frames.
    pub async fn header(&mut self) -> HandlerResult<Option<(u8, usize)>> {
        let mut header = BytesMut::with_capacity(HEADER_LEN);
        while header.len() < HEADER_LEN {
            match self.take(HEADER_LEN - header.len()).await? {
                Some(piece) => {
                    header.extend_from_slice(&piece);
                    self.release(piece.len())?;
                }
                None if header.is_empty() => return Ok(None),
                None => return Err(truncated_frame()),
            }
        }
        let kind = header.get_u8();
        Ok(Some((kind, header.get_u32() as usize)))
    }

    /// Returns between 1 and `max` bytes, or None at the end of the body. The caller must `release` them after use.
    pub async fn take(&mut self, max: usize) -> HandlerResult<Option<Bytes>> {
        while self.buffered.is_empty() {
            match self.body.data().await {
                Some(chunk) => self.buffered = chunk?,
                None => return Ok(None),
            }
        }
        Ok(Some(self.buffered.split_to(max.min(self.buffered.len()))))
    }

    pub fn release(&mut self, count: usize) -> HandlerResult {
        Ok(self.body.flow_control().release_capacity(count)?)
    }
}

/// A truncated frame must not be treated as the end of input.
pub fn truncated_frame() -> HandlerError {
    Failure::invalid("the body ends inside a frame").into()
}
