//! The agent port as HTTP/2 sees it during one session: the bytes that came with the hello first, writes gathered
//! into few (each write to a virtio port is a trip out of the machine), and an end when the host is gone.

use std::io::{Error, ErrorKind, Result};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::port::Port;

/// Shorter absences are a host that reconnects, which its hello tells; or the news of its arrival being late.
const ABSENT_MEANS_GONE: Duration = Duration::from_millis(20);
const GATHER_BYTES: usize = 32 * 1024;

pub struct SessionIo<'port> {
    port: &'port mut Port,
    first_bytes: Vec<u8>,
    first_taken: usize,
    gathered: Vec<u8>,
    written: usize,
    absent: Option<Pin<Box<Sleep>>>,
}

impl<'port> SessionIo<'port> {
    pub fn new(port: &'port mut Port, first_bytes: Vec<u8>) -> Self {
        Self { port, first_bytes, first_taken: 0, gathered: Vec::new(), written: 0, absent: None }
    }

    fn poll_drain(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        while let Some(rest) = self.gathered.get(self.written..).filter(|rest| !rest.is_empty()) {
            self.written += ready!(self.port.poll_write(context, rest))?;
        }
        self.gathered.clear();
        self.written = 0;
        Poll::Ready(Ok(()))
    }

    /// Nobody there: pending until that has lasted, then true. Any change of the port wakes the reader before.
    fn poll_gone(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        if self.port.ends_for_sure() {
            return Poll::Ready(true);
        }
        let absent = self.absent.get_or_insert_with(|| Box::pin(sleep(ABSENT_MEANS_GONE)));
        if absent.as_mut().poll(context).is_ready() {
            return Poll::Ready(true);
        }
        match self.port.poll_changed(context) {
            Poll::Ready(_) => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for SessionIo<'_> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let this = self.get_mut();
        let first = this.first_bytes.get(this.first_taken..).unwrap_or_default();
        if !first.is_empty() {
            let count = first.len().min(buffer.remaining());
            buffer.put_slice(first.get(..count).unwrap_or_default());
            this.first_taken += count;
            return Poll::Ready(Ok(()));
        }
        loop {
            let polled = this.port.poll_read(context, buffer.initialize_unfilled());
            match polled {
                Poll::Ready(Ok(0)) => {
                    if ready!(this.poll_gone(context)) {
                        return Poll::Ready(Ok(()));
                    }
                }
                Poll::Ready(Ok(count)) => {
                    this.absent = None;
                    buffer.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    this.absent = None;
                    return Poll::Pending;
                }
            }
        }
    }
}

impl AsyncWrite for SessionIo<'_> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let this = self.get_mut();
        if this.gathered.len() >= GATHER_BYTES {
            ready!(this.poll_drain(context))?;
        }
        let room = GATHER_BYTES - this.gathered.len();
        let taken = bytes.get(..room).unwrap_or(bytes);
        this.gathered.extend_from_slice(taken);
        Poll::Ready(Ok(taken.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.get_mut().poll_drain(context)
    }

    /// The port stays open for the next host.
    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.get_mut().poll_drain(context).map_err(|_| Error::from(ErrorKind::BrokenPipe))
    }
}
