//! Input of a process: bytes, closing stdin, and the terminal size.
//!
//! Writers take turns in the order of their requests, and each keeps its turn until the program has accepted all of its
//! bytes.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::StatusCode;
use serde::Serialize;
use tokio::io::unix::AsyncFd;

use crate::reply::{Failure, HandlerError, HandlerResult, read_body, read_json};
use crate::sys;
use crate::terminal::{Size, Terminal};

use super::process::{Kind, Process, exited};

const INPUT_MAX_BYTES: usize = 256 * 1024;
/// The kernel's flag of a process that exits, in the seventh field after the name in `/proc/PID/stat`.
const PF_EXITING: u32 = 0x4;

#[derive(Serialize)]
pub struct Written {
    input_seq: u64,
}

pub async fn write(
    process: &Process,
    mut body: RecvStream,
    respond: &mut SendResponse<Bytes>,
) -> HandlerResult<Written> {
    let writing = async {
        // Locked before the body is read, so that the order is that of the requests, whenever their bytes arrive.
        let _guard = process.input_lock.lock().await;
        let bytes = read_body(&mut body, INPUT_MAX_BYTES).await?;
        write_all(process, &bytes).await?;
        let mut inner = process.lock();
        if !bytes.is_empty() {
            inner.input_seq += 1;
        }
        Ok(Written { input_seq: inner.input_seq })
    };
    tokio::select! {
        biased;
        written = writing => written,
        // The caller disconnected: the remaining bytes are not written.
        _ = std::future::poll_fn(|context| respond.poll_reset(context)) => Err(HandlerError::Disconnected),
    }
}

async fn write_all(process: &Process, mut bytes: &[u8]) -> HandlerResult {
    let input_target = input_target(process)?;
    while !bytes.is_empty() {
        let mut ready = tokio::select! {
            biased;
            () = process.wait_until(|inner| inner.state.is_ended().then_some(())) => return Err(exited().into()),
            ready = input_target.fd().writable() => ready.map_err(|error| Failure::internal("stdin", &error))?,
        };
        match ready.try_io(|fd| sys::write(fd.get_ref().as_fd(), bytes)) {
            Ok(Ok(count)) => bytes = bytes.get(count..).unwrap_or_default(),
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Ok(Err(_)) => {
                if is_exiting(process) {
                    process.wait_until(|inner| inner.state.is_ended().then_some(())).await;
                    return Err(exited().into());
                }
                process.lock().stdin = None;
                return Err(stdin_closed().into());
            }
            Err(_would_block) => {}
        }
    }
    Ok(())
}

/// Whether the program exits or has exited; if not, it has closed stdin itself. The kernel closes the files of a program
/// some time before it can be reaped.
fn is_exiting(process: &Process) -> bool {
    let pid = process.lock().leader.as_ref().map(|leader| leader.pid);
    let stat = pid.and_then(|pid| fs::read(format!("/proc/{pid}/stat")).ok()).unwrap_or_default();
    let stat = String::from_utf8_lossy(&stat);
    // `pid (name) state ppid …`; the name may hold spaces and parentheses.
    let flags = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_ascii_whitespace().nth(6)?.parse::<u32>().ok());
    flags.is_none_or(|flags| flags & PF_EXITING != 0)
}

enum InputTarget {
    Pipe(Arc<AsyncFd<OwnedFd>>),
    Master(Arc<Terminal>),
}

impl InputTarget {
    fn fd(&self) -> &AsyncFd<OwnedFd> {
        match self {
            Self::Pipe(pipe) => pipe,
            Self::Master(terminal) => &terminal.master,
        }
    }
}

fn input_target(process: &Process) -> HandlerResult<InputTarget> {
    let inner = process.lock();
    inner.check_alive()?;
    let pipe = inner.stdin.clone().map(InputTarget::Pipe);
    let input_target = pipe.or_else(|| inner.terminal.clone().map(InputTarget::Master));
    Ok(input_target.ok_or_else(stdin_closed)?)
}

/// Waits for its turn, so that earlier input is written first.
pub async fn close(process: &Process) -> HandlerResult {
    if process.kind == Kind::Pty {
        return Err(wrong_kind("a terminal has no stdin to close").into());
    }
    let lock = process.input_lock.lock();
    let _guard = tokio::select! {
        biased;
        () = process.wait_until(|inner| inner.state.is_ended().then_some(())) => return Err(exited().into()),
        guard = lock => guard,
    };
    let mut inner = process.lock();
    inner.check_alive()?;
    inner.stdin.take().map(drop).ok_or_else(|| stdin_closed().into())
}

pub async fn resize(process: &Process, mut body: RecvStream) -> HandlerResult {
    let size: Size = read_json(&mut body).await?;
    if process.kind != Kind::Pty {
        return Err(wrong_kind("only a terminal has a size").into());
    }
    if size.rows == 0 || size.cols == 0 {
        return Err(Failure::invalid("rows, cols: must be 1 to 65535").into());
    }
    let inner = process.lock();
    inner.check_alive()?;
    let terminal = inner.terminal.as_ref().ok_or_else(exited)?;
    Ok(terminal.resize(size).map_err(|error| Failure::internal("resize", &error))?)
}

fn stdin_closed() -> Failure {
    Failure::new(StatusCode::CONFLICT, "stdin_closed", "stdin is closed")
}

fn wrong_kind(message: &str) -> Failure {
    Failure::new(StatusCode::CONFLICT, "wrong_process_kind", message)
}
