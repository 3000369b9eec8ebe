//! GET /processes/<id>/connect: streams the journal from a sequence number on, then new output as it arrives, then the
//! exit.
//!
//! A reader is only a sequence number: it reserves nothing in the journal. If it is too slow and the wait budget is
//! spent (`readers.rs`), its next event is dropped; it receives an error with the oldest sequence number that is still
//! available and can reconnect there. Its flow-control window is its only buffer.

use std::sync::Arc;

use bytes::Bytes;
use h2::SendStream;
use h2::server::SendResponse;
use http::{Response, StatusCode};
use serde::Serialize;

use crate::agent::Agent;
use crate::exec::frames::{ERROR, EXIT, json_frame};
use crate::query;
use crate::reaper::ExitStatus;
use crate::reply::{Failure, HandlerError, HandlerResult, send_all, start};

use super::journal::{FRAME_OVERHEAD_BYTES, ReadResult};
use super::not_found;
use super::process::{Inner, Process};
use super::signals::signal_name;

/// Small events are combined up to this size.
const BATCH_BYTES: usize = 64 * 1024;

#[derive(Serialize)]
#[serde(untagged)]
enum Exit {
    Code { exit_code: i32 },
    Signal { signal: String },
}

enum Piece {
    Output(Bytes, u64),
    Last(Bytes),
}

pub async fn connect(
    agent: &Arc<Agent>,
    process: &Arc<Process>,
    query: Option<&str>,
    respond: &mut SendResponse<Bytes>,
) -> HandlerResult {
    let after = query::parse(query, "after")?.unwrap_or(0);
    let mut seen = starting_point(agent, process, after)?;
    let head = Response::builder().status(StatusCode::OK).header("content-type", "application/x-warren-frames");
    let mut send = start(respond, head)?;
    let reader = process.readers.add(written_through(agent, process, seen));
    loop {
        let next = process.wait_until(|inner| next_piece(agent, process, inner, seen));
        let piece = tokio::select! {
            biased;
            piece = next => piece,
            () = was_reset(&mut send) => return Err(HandlerError::Disconnected),
        };
        match piece {
            Piece::Output(frames, last) => {
                let bytes = frames.len() as u64 - (last - seen) * FRAME_OVERHEAD_BYTES as u64;
                send_all(&mut send, frames).await?;
                reader.advance(bytes);
                seen = last;
            }
            Piece::Last(frame) => return Ok(send.send_data(frame, true)?),
        }
    }
}

/// 0 means everything that is retained; any other number must not be older than that.
fn starting_point(agent: &Agent, process: &Process, after: u64) -> HandlerResult<u64> {
    let oldest = oldest_of(agent, process);
    if after == 0 {
        return Ok(oldest - 1);
    }
    if after.saturating_add(1) < oldest {
        return Err(expired(oldest).into());
    }
    Ok(after)
}

fn oldest_of(agent: &Agent, process: &Process) -> u64 {
    agent.processes.with_journals(|journals| journals.get(process.key).map_or(1, |journal| journal.oldest()))
}

fn written_through(agent: &Agent, process: &Process, seq: u64) -> u64 {
    agent
        .processes
        .with_journals(|journals| journals.get(process.key).map_or(0, |journal| journal.written_through(seq)))
}

fn next_piece(agent: &Agent, process: &Process, inner: &Inner, seen: u64) -> Option<Piece> {
    match agent.processes.with_journals(|journals| journals.read(process.key, seen, BATCH_BYTES)) {
        Some(ReadResult::Events(frames, last)) => Some(Piece::Output(frames.freeze(), last)),
        Some(ReadResult::Expired) => Some(Piece::Last(json_frame(ERROR, &expired(oldest_of(agent, process)).body()))),
        Some(ReadResult::UpToDate) if inner.drained => Some(Piece::Last(exit_frame(inner))),
        Some(ReadResult::UpToDate) => None,
        // The record was dropped to make room for another while it was read, so completeness is unknown.
        None => Some(Piece::Last(json_frame(ERROR, &not_found().body()))),
    }
}

fn exit_frame(inner: &Inner) -> Bytes {
    match inner.exit_status {
        Some(ExitStatus::Exited(exit_code)) => json_frame(EXIT, &Exit::Code { exit_code }),
        Some(ExitStatus::Signaled(number)) => json_frame(EXIT, &Exit::Signal { signal: signal_name(number) }),
        None => {
            let failure = Failure::new(StatusCode::CONFLICT, "process_failed", "the process could not be started");
            json_frame(ERROR, &failure.body())
        }
    }
}

fn expired(oldest: u64) -> Failure {
    let failure = Failure::new(StatusCode::GONE, "output_offset_expired", "output offset expired");
    Failure { oldest_available_seq: Some(oldest), ..failure }
}

async fn was_reset(send: &mut SendStream<Bytes>) {
    let _ = std::future::poll_fn(|context| send.poll_reset(context)).await;
}
