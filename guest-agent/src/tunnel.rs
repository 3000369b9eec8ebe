//! POST /tunnel?port=N: connects to a TCP port inside the guest and forwards it over the stream.
//!
//! The end of the request body shuts down the sending direction of the connection; the end of the program's data ends
//! the response. The two directions are independent. An error on one side resets the other. Neither side is read before
//! the other has accepted the previous piece, so a tunnel buffers one piece in each direction.

use std::cell::RefCell;
use std::io::{Error, ErrorKind, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{Response, StatusCode};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::agent::Agent;
use crate::reply::{Failure, HandlerError, HandlerResult, send_all, start};
use crate::{net, query, self_signal, ssh, sys};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const PIECE_BYTES: usize = 32 * 1024;

thread_local! {
    /// Shared by all tunnels: filled and copied within one poll.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; PIECE_BYTES]);
}

pub async fn tunnel(
    agent: &Arc<Agent>,
    query: Option<&str>,
    body: RecvStream,
    respond: &mut SendResponse<Bytes>,
) -> HandlerResult {
    let port: Option<u16> = query::parse(query, "port")?;
    let port = port.filter(|port| *port > 0).ok_or_else(|| Failure::invalid("port: 1 to 65535"))?;
    let opening = async {
        match connect(agent, port).await {
            Some(socket) => Ok(socket),
            None if port == ssh::PORT => ssh::open_connection(agent).await,
            None => Err(unreachable("connect_refused", format!("nothing listens on port {port} of the sandbox"))),
        }
    };
    let timed_out = |_| unreachable("connect_timeout", format!("connecting to port {port} timed out"));
    let socket = timeout(CONNECT_TIMEOUT, opening).await.map_err(timed_out)??;
    let socket = watch(socket).map_err(|error| Failure::internal("socket", &error))?;

    let head = Response::builder().status(StatusCode::OK).header("content-type", "application/octet-stream");
    let mut send = start(respond, head)?;
    let forwarded = forward(&socket, body, &mut send).await;
    if forwarded.is_err() {
        reset_on_close(&socket);
    }
    forwarded
}

pub fn unreachable(code: &'static str, message: String) -> Failure {
    Failure::new(StatusCode::BAD_GATEWAY, code, message)
}

/// Tries the addresses of the machine in order. None if all refuse the connection.
async fn connect(agent: &Agent, port: u16) -> Option<OwnedFd> {
    // Self-signals are accepted only from inside the guest.
    if port == self_signal::PORT {
        return None;
    }
    let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    // Outside a guest this address may belong to another machine.
    let outer = agent.is_init.then(|| IpAddr::V4(agent.address().unwrap_or(net::INITIAL_ADDRESS)));
    for address in loopback.into_iter().chain(outer) {
        if let Ok(stream) = TcpStream::connect(SocketAddr::new(address, port)).await {
            // Small pieces may be key strokes.
            let _ = stream.set_nodelay(true);
            return stream.into_std().ok().map(OwnedFd::from);
        }
    }
    None
}

fn watch(socket: OwnedFd) -> Result<AsyncFd<OwnedFd>> {
    sys::set_nonblocking(socket.as_fd())?;
    sys::watch(socket, Interest::READABLE | Interest::WRITABLE)
}

async fn forward(socket: &AsyncFd<OwnedFd>, body: RecvStream, send: &mut SendStream<Bytes>) -> HandlerResult {
    let inward = forward_to_socket(socket, body);
    let outward = forward_to_client(socket, send);
    tokio::pin!(inward, outward);
    let (mut sent, mut received) = (false, false);
    while !(sent && received) {
        tokio::select! {
            outcome = &mut inward, if !sent => {
                outcome?;
                sent = true;
            }
            outcome = &mut outward, if !received => {
                outcome?;
                received = true;
            }
        }
    }
    Ok(())
}

async fn forward_to_socket(socket: &AsyncFd<OwnedFd>, mut body: RecvStream) -> HandlerResult {
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        write_all(socket, &chunk).await.map_err(|_| HandlerError::Disconnected)?;
        body.flow_control().release_capacity(chunk.len())?;
    }
    // SAFETY: an open socket; a closed connection needs no shutdown.
    unsafe { libc::shutdown(socket.get_ref().as_raw_fd(), libc::SHUT_WR) };
    Ok(())
}

async fn forward_to_client(socket: &AsyncFd<OwnedFd>, send: &mut SendStream<Bytes>) -> HandlerResult {
    loop {
        match next_piece(socket, send).await? {
            Some(piece) => send_all(send, piece).await?,
            None => return Ok(send.send_data(Bytes::new(), true)?),
        }
    }
}

/// None when the program has finished sending.
async fn next_piece(socket: &AsyncFd<OwnedFd>, send: &mut SendStream<Bytes>) -> HandlerResult<Option<Bytes>> {
    std::future::poll_fn(|context| {
        if send.poll_reset(context).is_ready() {
            return Poll::Ready(Err(HandlerError::Disconnected));
        }
        loop {
            let Ok(mut guard) = ready!(socket.poll_read_ready(context)) else {
                return Poll::Ready(Err(HandlerError::Disconnected));
            };
            let read = SCRATCH.with_borrow_mut(|scratch| {
                let count = sys::read(socket.get_ref().as_fd(), scratch)?;
                Ok::<_, Error>(Bytes::copy_from_slice(scratch.get(..count).unwrap_or_default()))
            });
            match read {
                Ok(piece) if piece.is_empty() => return Poll::Ready(Ok(None)),
                Ok(piece) => return Poll::Ready(Ok(Some(piece))),
                Err(error) if error.kind() == ErrorKind::WouldBlock => guard.clear_ready(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The program reset the connection; reporting a clean end would be wrong.
                Err(_) => return Poll::Ready(Err(HandlerError::Disconnected)),
            }
        }
    })
    .await
}

async fn write_all(socket: &AsyncFd<OwnedFd>, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        let mut ready = socket.writable().await?;
        match ready.try_io(|socket| sys::write(socket.get_ref().as_fd(), bytes)) {
            Ok(count) => bytes = bytes.get(count?..).unwrap_or_default(),
            Err(_would_block) => {}
        }
    }
    Ok(())
}

/// The program sees a connection reset instead of a clean end.
fn reset_on_close(socket: &AsyncFd<OwnedFd>) {
    let reset = libc::linger { l_onoff: 1, l_linger: 0 };
    let length = size_of::<libc::linger>() as libc::socklen_t;
    let socket = socket.get_ref().as_raw_fd();
    // SAFETY: an open socket and a local of the given length. A unix socket ignores the option.
    unsafe { libc::setsockopt(socket, libc::SOL_SOCKET, libc::SO_LINGER, (&raw const reset).cast(), length) };
}
