//! GET /files: sends a regular file with its current length. Fifos and devices are rejected before they are opened,
//! because opening them may block or have side effects.

use std::fs::{File, Metadata};
use std::io::Error;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use h2::server::SendResponse;
use http::{Response, StatusCode};

use crate::agent::Agent;
use crate::reply::{Failure, HandlerError, HandlerResult, send_all, start};
use crate::sys;

use super::path::parse_path;
use super::{failure, invalid_path};

const READ_BYTES: usize = 64 * 1024;

pub async fn get_file(agent: &Arc<Agent>, query: Option<&str>, respond: &mut SendResponse<Bytes>) -> HandlerResult {
    let path = parse_path(query)?;
    let worker = |error: Error| HandlerError::from(Failure::internal("worker", &error));
    let (file, length) = agent.workers.run(move || open_regular(path)).await.map_err(worker)??;
    let file = Arc::new(file);

    let mut head = Response::builder().status(StatusCode::OK).header("content-type", "application/octet-stream");
    // Files of /proc and /sys report length 0 but have content: they are sent without a length, up to their end.
    if length > 0 {
        head = head.header("content-length", length);
    }
    let mut send = start(respond, head)?;
    let mut offset = 0;
    loop {
        let wanted = if length > 0 { READ_BYTES.min((length - offset) as usize) } else { READ_BYTES };
        let source = file.clone();
        let piece = agent.workers.run(move || read_piece(&source, offset, wanted)).await.map_err(worker)?;
        // Too late for an error response: dropping the stream resets it, so the reader knows that the file is
        // incomplete.
        let piece = piece.map_err(|_| HandlerError::Disconnected)?;
        offset += piece.len() as u64;
        let shrunk = piece.is_empty() && length > 0;
        if shrunk {
            return Err(HandlerError::Disconnected);
        }
        let last = piece.is_empty() || offset == length;
        send_all(&mut send, piece).await?;
        if last {
            send.send_data(Bytes::new(), true)?;
            return Ok(());
        }
    }
}

fn open_regular(path: PathBuf) -> Result<(File, u64), Failure> {
    let to_failure = |error: Error| failure(&path, &error);
    check_regular(&std::fs::metadata(&path).map_err(to_failure)?)?;
    // Non-blocking, in case it has become a fifo meanwhile.
    let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = File::from(sys::open(&path, flags, 0).map_err(to_failure)?);
    let metadata = file.metadata().map_err(to_failure)?;
    check_regular(&metadata)?;
    Ok((file, metadata.len()))
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

fn read_piece(file: &File, offset: u64, wanted: usize) -> Result<Bytes, Error> {
    let mut piece = vec![0; wanted];
    let count = file.read_at(&mut piece, offset)?;
    piece.truncate(count);
    Ok(Bytes::from(piece))
}
