//! One byte stream to the host, opened once and never closed.
//!
//! In the machine it is a virtio-serial port, which differs from a socket: it is never closed, and while no host is
//! connected, poll reports IN and HUP immediately every time, `read` returns 0 and a non-blocking `write` fails with
//! EAGAIN. The notification of a connection and its first bytes arrive through different queues, so bytes may be
//! readable while the port still looks disconnected.
//!
//! Waiting must not spin on that HUP, and tokio remembers a HUP for the lifetime of a registration. The port is
//! therefore registered edge-triggered in a private epoll instance, and tokio watches that instance, which never
//! reports HUP: each change of the port (data, space, host connected, host disconnected) wakes the agent once.
//!
//! In development and in the host agent's tests a unix socket takes its place, with one client at a time, like QEMU.

use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::{UnixListener, UnixStream};

use crate::sys;

/// The kernel accepts at most this much in one write to a port.
const WRITE_MAX: usize = 32 * 1024;
/// Polling interval for a disconnected host, in case a wake-up is missed.
const ABSENT_POLL_INTERVAL: Duration = Duration::from_millis(100);

pub struct Port(End);

enum End {
    Device { fd: OwnedFd, changes: AsyncFd<OwnedFd> },
    Listener { listener: UnixListener, client: Option<UnixStream> },
}

impl Port {
    pub fn open(path: &Path) -> Result<Self> {
        Self::from_fd(sys::open(path, libc::O_RDWR | libc::O_NONBLOCK | libc::O_NOCTTY, 0)?)
    }

    /// Works with any descriptor that epoll accepts; a read of 0 means that no host is connected at the moment.
    pub fn from_fd(fd: OwnedFd) -> Result<Self> {
        sys::set_nonblocking(fd.as_fd())?;
        // SAFETY: a new epoll instance that this function owns; the event is a local.
        let epoll = unsafe { OwnedFd::from_raw_fd(sys::check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) };
        let events = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET;
        let mut event = libc::epoll_event { events: events as u32, u64: 0 };
        let add = libc::EPOLL_CTL_ADD;
        sys::check(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), add, fd.as_raw_fd(), &mut event) })?;
        let changes = sys::watch(epoll, Interest::READABLE)?;
        Ok(Self(End::Device { fd, changes }))
    }

    pub fn listen(path: &Path) -> Result<Self> {
        // Removes the socket file of an earlier run; if anything else is there, the bind below fails.
        let _ = std::fs::remove_file(path);
        Ok(Self(End::Listener { listener: UnixListener::bind(path)?, client: None }))
    }

    /// Whether a read of 0 means that this client is gone for good, rather than that the host may be reconnecting.
    pub fn eof_is_final(&self) -> bool {
        matches!(self.0, End::Listener { .. })
    }

    /// A host is connected but nothing can be written: it is slow, or the queue to it is broken.
    pub fn is_full(&self) -> bool {
        let End::Device { fd, .. } = &self.0 else { return false };
        let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: a local pollfd, without waiting.
        unsafe { libc::poll(&mut poll, 1, 0) };
        poll.revents & (libc::POLLOUT | libc::POLLHUP) == 0
    }

    /// Returns 0 when no host is connected.
    pub fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<Result<usize>> {
        match &mut self.0 {
            End::Device { fd, changes } => loop {
                match sys::read(fd.as_fd(), buffer) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => ready!(poll_change(changes, context))?,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    result => return Poll::Ready(result),
                }
            },
            End::Listener { listener, client } => loop {
                let Some(stream) = client else {
                    *client = Some(ready!(listener.poll_accept(context))?.0);
                    continue;
                };
                ready!(stream.poll_read_ready(context))?;
                match stream.try_read(buffer) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Ok(count) if count > 0 => return Poll::Ready(Ok(count)),
                    _ended => {
                        *client = None;
                        return Poll::Ready(Ok(0));
                    }
                }
            },
        }
    }

    pub fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let bytes = bytes.get(..WRITE_MAX).unwrap_or(bytes);
        match &mut self.0 {
            End::Device { fd, changes } => loop {
                match sys::write(fd.as_fd(), bytes) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        ready!(poll_change(changes, context))?;
                        // The change may concern the reader, which waits for the same event: wake it as well.
                        context.waker().wake_by_ref();
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    result => return Poll::Ready(result),
                }
            },
            End::Listener { client, .. } => loop {
                let Some(stream) = client else { return Poll::Ready(Err(ErrorKind::NotConnected.into())) };
                ready!(stream.poll_write_ready(context))?;
                match stream.try_write(bytes) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    result => return Poll::Ready(result),
                }
            },
        }
    }

    /// Returns when the state of the port changed, or after a while.
    pub fn poll_changed(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        match &mut self.0 {
            End::Device { changes, .. } => poll_change(changes, context),
            End::Listener { .. } => Poll::Ready(Ok(())),
        }
    }

    /// Reads at least one byte, waiting for a host if none is connected.
    pub async fn read_some(&mut self, buffer: &mut [u8]) -> usize {
        loop {
            match std::future::poll_fn(|context| self.poll_read(context, buffer)).await {
                Ok(0) if self.eof_is_final() => {}
                Ok(0) => self.wait_for_change().await,
                Ok(count) => return count,
                // The device reported an error, and no host can be notified: try again after a delay.
                Err(_) => tokio::time::sleep(ABSENT_POLL_INTERVAL).await,
            }
        }
    }

    /// Writes all bytes, waiting for a host that is about to connect. Fails after `timeout`.
    pub async fn write_all(&mut self, mut bytes: &[u8], timeout: Duration) -> Result<()> {
        let all = async {
            while !bytes.is_empty() {
                let count = std::future::poll_fn(|context| self.poll_write(context, bytes)).await?;
                bytes = bytes.get(count..).unwrap_or_default();
            }
            Ok(())
        };
        tokio::time::timeout(timeout, all).await.unwrap_or_else(|_| Err(Error::from(ErrorKind::TimedOut)))
    }

    async fn wait_for_change(&mut self) {
        let changed = std::future::poll_fn(|context| self.poll_changed(context));
        // The caller checks the port again in either case.
        let _ = tokio::time::timeout(ABSENT_POLL_INTERVAL, changed).await;
    }
}

/// Consumes the port's event, so that only a new one wakes the agent again.
fn poll_change(changes: &AsyncFd<OwnedFd>, context: &mut Context<'_>) -> Poll<Result<()>> {
    let mut guard = ready!(changes.poll_read_ready(context))?;
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: there is room for the only possible event.
    unsafe { libc::epoll_wait(changes.as_raw_fd(), &mut event, 1, 0) };
    guard.clear_ready();
    Poll::Ready(Ok(()))
}
