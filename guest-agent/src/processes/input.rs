//! What a caller puts into a process: bytes, the end of them, and the size of its terminal.
//!
//! Writers take turns in the order in which their requests came, and each holds its turn until the program has taken
//! all of its bytes.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::StatusCode;
use serde::Serialize;
use tokio::io::unix::AsyncFd;
use tokio::time::timeout;

use crate::reply::{Done, Failure, Stop, read_body, read_json};
use crate::sys;
use crate::terminal::{Size, Terminal};

use super::process::{Kind, Process, exited};

const INPUT_MAX_BYTES: usize = 256 * 1024;
/// A program that dies closes its pipes a moment before it can be reaped; one that lives has closed stdin itself.
const DYING_MAX: Duration = Duration::from_millis(100);

#[derive(Serialize)]
pub struct Written {
    input_seq: u64,
}

pub async fn write(process: &Process, mut body: RecvStream, respond: &mut SendResponse<Bytes>) -> Done<Written> {
    let writing = async {
        // First of all: the place in the row is that of the request, whenever its bytes come.
        let _turn = process.input_turn.lock().await;
        let bytes = read_body(&mut body, INPUT_MAX_BYTES).await?;
        write_all(process, &bytes).await?;
        let mut facts = process.facts();
        if !bytes.is_empty() {
            facts.input_seq += 1;
        }
        Ok(Written { input_seq: facts.input_seq })
    };
    tokio::select! {
        biased;
        written = writing => written,
        // The caller has given up: what was not written stays unwritten.
        _ = std::future::poll_fn(|context| respond.poll_reset(context)) => Err(Stop::Gone),
    }
}

async fn write_all(process: &Process, mut bytes: &[u8]) -> Done {
    let way_in = way_in(process)?;
    while !bytes.is_empty() {
        let mut ready = tokio::select! {
            biased;
            () = process.until(|facts| facts.state.is_ended().then_some(())) => return Err(exited().into()),
            ready = way_in.fd().writable() => ready.map_err(|error| Failure::internal("stdin", &error))?,
        };
        match ready.try_io(|fd| sys::write(fd.get_ref().as_fd(), bytes)) {
            Ok(Ok(count)) => bytes = bytes.get(count..).unwrap_or_default(),
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Ok(Err(_)) => {
                let ended = process.until(|facts| facts.state.is_ended().then_some(()));
                if timeout(DYING_MAX, ended).await.is_ok() {
                    return Err(exited().into());
                }
                process.facts().stdin = None;
                return Err(stdin_closed().into());
            }
            Err(_would_block) => {}
        }
    }
    Ok(())
}

enum WayIn {
    Pipe(Arc<AsyncFd<OwnedFd>>),
    Master(Arc<Terminal>),
}

impl WayIn {
    fn fd(&self) -> &AsyncFd<OwnedFd> {
        match self {
            Self::Pipe(pipe) => pipe,
            Self::Master(terminal) => &terminal.master,
        }
    }
}

fn way_in(process: &Process) -> Done<WayIn> {
    let facts = process.facts();
    facts.check_alive()?;
    let pipe = facts.stdin.clone().map(WayIn::Pipe);
    let way_in = pipe.or_else(|| facts.terminal.clone().map(WayIn::Master));
    Ok(way_in.ok_or_else(stdin_closed)?)
}

/// In its turn: what was sent before is written before.
pub async fn close(process: &Process) -> Done {
    if process.kind == Kind::Pty {
        return Err(wrong_kind("a terminal has no stdin to close").into());
    }
    let turn = process.input_turn.lock();
    let _turn = tokio::select! {
        biased;
        () = process.until(|facts| facts.state.is_ended().then_some(())) => return Err(exited().into()),
        turn = turn => turn,
    };
    let mut facts = process.facts();
    facts.check_alive()?;
    facts.stdin.take().map(drop).ok_or_else(|| stdin_closed().into())
}

pub async fn resize(process: &Process, mut body: RecvStream) -> Done {
    let size: Size = read_json(&mut body).await?;
    if process.kind != Kind::Pty {
        return Err(wrong_kind("only a terminal has a size").into());
    }
    if size.rows == 0 || size.cols == 0 {
        return Err(Failure::invalid("rows, cols: 1 to 65535").into());
    }
    let facts = process.facts();
    facts.check_alive()?;
    let terminal = facts.terminal.as_ref().ok_or_else(exited)?;
    Ok(terminal.resize(size).map_err(|error| Failure::internal("resize", &error))?)
}

fn stdin_closed() -> Failure {
    Failure::new(StatusCode::CONFLICT, "stdin_closed", "stdin is closed")
}

fn wrong_kind(message: &str) -> Failure {
    Failure::new(StatusCode::CONFLICT, "wrong_process_kind", message)
}
