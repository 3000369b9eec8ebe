//! GET /files: sends a regular file. Fifos, sockets and devices are rejected before they are opened, because opening them
//! may block or have side effects.
//!
//! The first piece is read before the response begins, for two reasons. A file that cannot be read (`/proc/self/mem`) or
//! would block (`/proc/kmsg` without new messages) is refused with the reason. And the length that the kernel reports is
//! not always the length of the content: 0 in /proc, 4096 in /sys. A file that ends within the first piece is sent with
//! the length that was read; of a longer one the reported length is announced, unless it is shorter than the piece.

use std::fs::{File, Metadata};
use std::io::{Error, ErrorKind, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use http::{Response, StatusCode};
use tokio::time::timeout;

use crate::agent::Agent;
use crate::reply::{Failure, HandlerError, HandlerResult, send_all, start};
use crate::sys;

use super::path::parse_path;
use super::{invalid_path, read_failure};

const READ_BYTES: usize = 64 * 1024;
/// For a file on a mount that hangs. A bucket that is mounted may need some seconds for the first bytes.
const BEGIN_LIMIT: Duration = Duration::from_secs(30);

pub async fn get_file(agent: &Arc<Agent>, query: Option<&str>, respond: &mut SendResponse<Bytes>) -> HandlerResult {
    let path = parse_path(query)?;
    let worker = |error: Error| HandlerError::from(Failure::internal("worker", &error));
    let begun = timeout(BEGIN_LIMIT, agent.workers.run(move || begin(&path))).await;
    let begun = begun.map_err(|_| invalid_path("path cannot be read: reading it takes too long"))?;
    let Begun { file, piece, length } = begun.map_err(worker)??;
    let file = Arc::new(file);

    let mut head = Response::builder().status(StatusCode::OK).header("content-type", "application/octet-stream");
    if let Some(length) = length {
        head = head.header("content-length", length);
    }
    let mut send = start(respond, head)?;
    let mut sent = 0;
    let mut piece = piece;
    loop {
        sent += piece.len() as u64;
        let ended = piece.is_empty() || length == Some(sent);
        send_all(&mut send, piece).await?;
        if ended {
            break;
        }
        let wanted = length.map_or(READ_BYTES as u64, |length| (length - sent).min(READ_BYTES as u64));
        let source = file.clone();
        let read = agent.workers.run(move || read_piece(&source, wanted as usize)).await.map_err(worker)?;
        // Too late for an error response: dropping the stream resets it, so the reader knows that the file is
        // incomplete.
        piece = read.map_err(|_| HandlerError::Disconnected)?;
    }
    if length.is_some_and(|length| sent < length) {
        return Err(HandlerError::Disconnected);
    }
    send.send_data(Bytes::new(), true)?;
    Ok(())
}

struct Begun {
    file: File,
    piece: Bytes,
    length: Option<u64>,
}

fn begin(path: &Path) -> Result<Begun, Failure> {
    let to_failure = |error: Error| read_failure(path, &error);
    check_regular(&std::fs::metadata(path).map_err(to_failure)?)?;
    // Non-blocking: some files of /proc and /sys block until there is something to read, and it may have become a fifo
    // meanwhile.
    let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = File::from(sys::open(path, flags, 0).map_err(to_failure)?);
    let metadata = file.metadata().map_err(to_failure)?;
    check_regular(&metadata)?;
    let piece = read_piece(&file, READ_BYTES).map_err(to_failure)?;
    let reported = metadata.len();
    let read = piece.len() as u64;
    let length = if piece.len() < READ_BYTES { Some(read) } else { Some(reported).filter(|&length| length >= read) };
    Ok(Begun { file, piece, length })
}

fn check_regular(metadata: &Metadata) -> Result<(), Failure> {
    if metadata.is_dir() {
        return Err(invalid_path("path is a directory"));
    }
    if !metadata.is_file() {
        return Err(invalid_path("path is not a regular file"));
    }
    Ok(())
}

/// Reads `wanted` bytes, fewer only at the end of the file. Where reading on would block, the content ends.
fn read_piece(mut file: &File, wanted: usize) -> Result<Bytes, Error> {
    let mut piece = vec![0; wanted];
    let mut count = 0;
    while count < wanted {
        match file.read(piece.get_mut(count..).unwrap_or_default()) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock && count > 0 => break,
            Err(error) => return Err(error),
        }
    }
    piece.truncate(count);
    Ok(Bytes::from(piece))
}
