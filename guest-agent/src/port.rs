//! One end of a byte pipe to the host, opened once and kept for ever.
//!
//! In the machine it is a virtio-serial port, whose ways differ from a socket's: it is never closed; while no host is
//! connected, poll says IN and HUP at once and for ever, `read` gives 0 and a non-blocking `write` EAGAIN. The news of
//! a connection and its first bytes come by different queues, so bytes may be read while "nobody is there".
//!
//! Waiting must not spin on that HUP, and tokio remembers a HUP for the life of a registration. So the port sits
//! edge-triggered in an epoll of its own and tokio watches that epoll, which never hangs up: each change of the port
//! (data, room, host came, host went) wakes us once.
//!
//! For development and for the host agent's tests a unix socket stands in, with one client at a time, as QEMU has it.

use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::{UnixListener, UnixStream};

use crate::sys;

/// The kernel takes at most this much in one write to a port.
const WRITE_MAX: usize = 32 * 1024;
/// A second look at an absent host, should a wake-up ever be missed.
const ABSENT_TICK: Duration = Duration::from_millis(100);

pub struct Port(End);

enum End {
    Device { fd: OwnedFd, changes: AsyncFd<OwnedFd> },
    Listener { listener: UnixListener, client: Option<UnixStream> },
}

impl Port {
    pub fn open(path: &Path) -> Result<Self> {
        Self::from_fd(sys::open(path, libc::O_RDWR | libc::O_NONBLOCK | libc::O_NOCTTY, 0)?)
    }

    /// Any descriptor that epoll takes; a read of 0 means that nobody is there for now.
    pub fn from_fd(fd: OwnedFd) -> Result<Self> {
        sys::set_nonblocking(fd.as_fd())?;
        // SAFETY: a fresh epoll of our own; the event is a local.
        let epoll = unsafe { OwnedFd::from_raw_fd(sys::check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) };
        let events = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET;
        let mut event = libc::epoll_event { events: events as u32, u64: 0 };
        let add = libc::EPOLL_CTL_ADD;
        sys::check(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), add, fd.as_raw_fd(), &mut event) })?;
        let changes = sys::watch(epoll, Interest::READABLE)?;
        Ok(Self(End::Device { fd, changes }))
    }

    pub fn listen(path: &Path) -> Result<Self> {
        // A socket file of an earlier run; what else could be there fails the bind below.
        let _ = std::fs::remove_file(path);
        Ok(Self(End::Listener { listener: UnixListener::bind(path)?, client: None }))
    }

    /// Whether a read of 0 is final for this client, rather than perhaps a moment between two.
    pub fn ends_for_sure(&self) -> bool {
        matches!(self.0, End::Listener { .. })
    }

    /// A host is there and yet nothing can be written: it is slow, or the queue to it is broken for good.
    pub fn is_full(&self) -> bool {
        let End::Device { fd, .. } = &self.0 else { return false };
        let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: one pollfd of our own, no waiting.
        unsafe { libc::poll(&mut poll, 1, 0) };
        poll.revents & (libc::POLLOUT | libc::POLLHUP) == 0
    }

    /// 0: nobody is there.
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
                        // The change may have been news for the reader, who waits by the same event: let it look.
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

    /// Returns when something about the port changed, or after a while.
    pub fn poll_changed(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        match &mut self.0 {
            End::Device { changes, .. } => poll_change(changes, context),
            End::Listener { .. } => Poll::Ready(Ok(())),
        }
    }

    /// Reads at least one byte, however long nobody is there.
    pub async fn read_some(&mut self, buffer: &mut [u8]) -> usize {
        loop {
            match std::future::poll_fn(|context| self.poll_read(context, buffer)).await {
                Ok(0) if self.ends_for_sure() => {}
                Ok(0) => self.changed_or_tick().await,
                Ok(count) => return count,
                // The device is in trouble; there is nobody to tell, so try again without haste.
                Err(_) => tokio::time::sleep(ABSENT_TICK).await,
            }
        }
    }

    /// Writes all of it, waiting for a host that is about to be connected; an error after `patience`.
    pub async fn write_all(&mut self, mut bytes: &[u8], patience: Duration) -> Result<()> {
        let all = async {
            while !bytes.is_empty() {
                let count = std::future::poll_fn(|context| self.poll_write(context, bytes)).await?;
                bytes = bytes.get(count..).unwrap_or_default();
            }
            Ok(())
        };
        tokio::time::timeout(patience, all).await.unwrap_or_else(|_| Err(Error::from(ErrorKind::TimedOut)))
    }

    async fn changed_or_tick(&mut self) {
        let changed = std::future::poll_fn(|context| self.poll_changed(context));
        // Either way the caller looks again.
        let _ = tokio::time::timeout(ABSENT_TICK, changed).await;
    }
}

/// Takes the port's event out of its epoll, so that only a new one wakes us again.
fn poll_change(changes: &AsyncFd<OwnedFd>, context: &mut Context<'_>) -> Poll<Result<()>> {
    let mut guard = ready!(changes.poll_read_ready(context))?;
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: room for the one event there can be.
    unsafe { libc::epoll_wait(changes.as_raw_fd(), &mut event, 1, 0) };
    guard.clear_ready();
    Poll::Ready(Ok(()))
}
