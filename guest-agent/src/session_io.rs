//! The agent port as an I/O object for one HTTP/2 session: it first returns the bytes that followed the hello, combines
//! small writes (each write to a virtio port exits the VM), and reports end-of-file when the host has disconnected.

use std::io::{Error, ErrorKind, Result};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::port::Port;

/// Shorter absences are a host that reconnects, which its hello will show, or a late notification of its arrival.
const ABSENCE_TIMEOUT: Duration = Duration::from_millis(20);
const WRITE_BUFFER_BYTES: usize = 32 * 1024;

pub struct SessionIo<'port> {
    port: &'port mut Port,
    first_bytes: Vec<u8>,
    first_taken: usize,
    write_buffer: Vec<u8>,
    written: usize,
    absence_timer: Option<Pin<Box<Sleep>>>,
}

impl<'port> SessionIo<'port> {
    pub fn new(port: &'port mut Port, first_bytes: Vec<u8>) -> Self {
        Self { port, first_bytes, first_taken: 0, write_buffer: Vec::new(), written: 0, absence_timer: None }
    }

    fn poll_flush_buffer(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        while let Some(rest) = self.write_buffer.get(self.written..).filter(|rest| !rest.is_empty()) {
            self.written += ready!(self.port.poll_write(context, rest))?;
        }
        self.write_buffer.clear();
        self.written = 0;
        Poll::Ready(Ok(()))
    }

    /// No host is connected: pending until that has lasted for the timeout, then true. Any earlier change of the port
    /// wakes the reader.
    fn poll_disconnected(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        if self.port.eof_is_final() {
            return Poll::Ready(true);
        }
        let absence_timer = self.absence_timer.get_or_insert_with(|| Box::pin(sleep(ABSENCE_TIMEOUT)));
        if absence_timer.as_mut().poll(context).is_ready() {
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
                    if ready!(this.poll_disconnected(context)) {
                        return Poll::Ready(Ok(()));
                    }
                }
                Poll::Ready(Ok(count)) => {
                    this.absence_timer = None;
                    buffer.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    this.absence_timer = None;
                    return Poll::Pending;
                }
            }
        }
    }
}

impl AsyncWrite for SessionIo<'_> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let this = self.get_mut();
        if this.write_buffer.len() >= WRITE_BUFFER_BYTES {
            ready!(this.poll_flush_buffer(context))?;
        }
        let room = WRITE_BUFFER_BYTES - this.write_buffer.len();
        let taken = bytes.get(..room).unwrap_or(bytes);
        this.write_buffer.extend_from_slice(taken);
        Poll::Ready(Ok(taken.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.get_mut().poll_flush_buffer(context)
    }

    /// Only flushes: the port stays open for the next host.
    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.get_mut().poll_flush_buffer(context).map_err(|_| Error::from(ErrorKind::BrokenPipe))
    }
}
