//! The pipes of an exec: turns the program's output into frames, and frames into its stdin.

use std::cell::RefCell;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::SendStream;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

use crate::reaper::ExitStatus;
use crate::reply::{Failure, HandlerError, HandlerResult};
use crate::sys;

use super::frames::{FrameReader, STDERR, STDIN, STDOUT, frame, truncated_frame};

/// Size of one read. Half of a pipe's capacity, so that the program can continue writing while this half is sent.
const PIECE_BYTES: usize = 32 * 1024;

thread_local! {
    /// Shared by all streams: filled and copied within one poll.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; PIECE_BYTES]);
}

pub struct Output {
    stdout: Option<AsyncFd<OwnedFd>>,
    stderr: Option<AsyncFd<OwnedFd>>,
    /// Alternates, so that a flood on one pipe does not starve the other.
    stderr_first: bool,
}

impl Output {
    pub fn new(stdout: OwnedFd, stderr: OwnedFd) -> std::io::Result<Self> {
        Ok(Self { stdout: Some(watched(stdout)?), stderr: Some(watched(stderr)?), stderr_first: false })
    }

    /// Returns the next piece as a frame; None when both pipes have ended.
    pub async fn next(&mut self, send: &mut SendStream<Bytes>) -> HandlerResult<Option<Bytes>> {
        std::future::poll_fn(|context| {
            if send.poll_reset(context).is_ready() {
                return Poll::Ready(Err(HandlerError::Disconnected));
            }
            self.stderr_first = !self.stderr_first;
            let mut sides = [(STDOUT, &mut self.stdout), (STDERR, &mut self.stderr)];
            if self.stderr_first {
                sides.reverse();
            }
            let mut open = false;
            for (kind, side) in sides {
                match poll_piece(kind, side, context) {
                    Poll::Ready(Some(piece)) => return Poll::Ready(Ok(Some(piece))),
                    Poll::Ready(None) => {}
                    Poll::Pending => open = true,
                }
            }
            if open { Poll::Pending } else { Poll::Ready(Ok(None)) }
        })
        .await
    }
}

/// None when this pipe has ended.
fn poll_piece(kind: u8, side: &mut Option<AsyncFd<OwnedFd>>, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
    let Some(pipe) = side else { return Poll::Ready(None) };
    while let Ok(mut guard) = ready!(pipe.poll_read_ready(context)) {
        let result = SCRATCH.with_borrow_mut(|scratch| {
            let count = sys::read(pipe.get_ref().as_fd(), scratch)?;
            Ok(scratch.get(..count).filter(|bytes| !bytes.is_empty()).map(|bytes| frame(kind, bytes)))
        });
        match result {
            Ok(Some(piece)) => return Poll::Ready(Some(piece)),
            Ok(None) => break,
            Err(error) => match std::io::Error::kind(&error) {
                ErrorKind::WouldBlock => guard.clear_ready(),
                ErrorKind::Interrupted => {}
                _ => break,
            },
        }
    }
    *side = None;
    Poll::Ready(None)
}

/// Resolves to the program's exit status, or to an error if the caller disconnects first.
pub fn poll_unless_reset(
    send: &mut SendStream<Bytes>,
    context: &mut Context<'_>,
    exit_status: &mut oneshot::Receiver<ExitStatus>,
) -> Poll<HandlerResult<ExitStatus>> {
    if send.poll_reset(context).is_ready() {
        return Poll::Ready(Err(HandlerError::Disconnected));
    }
    // The reaper never drops a waiter; if it did, there would be no exit status, and none is invented.
    Pin::new(exit_status).poll(context).map(|exit_status| exit_status.map_err(|_| HandlerError::Disconnected))
}

/// Writes to stdin until the body ends. When the program stops reading, the rest of the body is discarded.
pub async fn feed_stdin(pipe: Option<OwnedFd>, mut frames: FrameReader) -> HandlerResult {
    let failed = |error| HandlerError::Failed(Failure::internal("stdin", &error));
    let mut pipe = pipe.map(|pipe| watch_writer(pipe).map_err(failed)).transpose()?;
    while let Some((kind, mut left)) = frames.header().await? {
        if kind != STDIN {
            return Err(Failure::invalid("only stdin frames may follow the command").into());
        }
        while left > 0 {
            let piece = frames.take(left).await?.ok_or_else(truncated_frame)?;
            left -= piece.len();
            if let Some(open) = &pipe {
                if write_all(open, &piece).await.is_err() {
                    pipe = None;
                }
            }
            frames.release(piece.len())?;
        }
    }
    Ok(())
}

async fn write_all(pipe: &AsyncFd<OwnedFd>, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        let mut guard = pipe.writable().await?;
        match guard.try_io(|pipe| sys::write(pipe.get_ref().as_fd(), bytes)) {
            Ok(count) => bytes = bytes.get(count?..).unwrap_or_default(),
            Err(_would_block) => {}
        }
    }
    Ok(())
}

fn watched(pipe: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    sys::set_nonblocking(pipe.as_fd())?;
    sys::watch(pipe, Interest::READABLE)
}

fn watch_writer(pipe: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    sys::set_nonblocking(pipe.as_fd())?;
    sys::watch(pipe, Interest::WRITABLE)
}
