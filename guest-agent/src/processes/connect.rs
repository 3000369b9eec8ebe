//! GET /processes/<id>/connect: the journal from a number on, then what comes, then how it ended.
//!
//! A reader is a number and nothing else: it holds no place in the journal. One that is too slow, after some patience
//! (`readers.rs`), finds its next event forgotten, is told so, and can come back with what is left. Its window is its
//! only buffer.

use std::sync::Arc;

use bytes::Bytes;
use h2::SendStream;
use h2::server::SendResponse;
use http::{Response, StatusCode};
use serde::Serialize;

use crate::agent::Agent;
use crate::exec::frames::{ERROR, EXIT, json_frame};
use crate::query;
use crate::reap::Ending;
use crate::reply::{Done, Failure, Stop, send_all, start};

use super::journal::{FRAME_OVERHEAD_BYTES, Next};
use super::not_found;
use super::process::{Facts, Process};
use super::signals::signal_name;

/// Small events travel together.
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
) -> Done {
    let after = query::parse(query, "after")?.unwrap_or(0);
    let mut seen = first(agent, process, after)?;
    let head = Response::builder().status(StatusCode::OK).header("content-type", "application/x-warren-frames");
    let mut send = start(respond, head)?;
    let reader = process.readers.add(written_up_to(agent, process, seen));
    loop {
        let next = process.until(|facts| next_piece(agent, process, facts, seen));
        let piece = tokio::select! {
            biased;
            piece = next => piece,
            () = was_reset(&mut send) => return Err(Stop::Gone),
        };
        match piece {
            Piece::Output(frames, last) => {
                let bytes = frames.len() as u64 - (last - seen) * FRAME_OVERHEAD_BYTES as u64;
                send_all(&mut send, frames).await?;
                reader.has_read(bytes);
                seen = last;
            }
            Piece::Last(frame) => return Ok(send.send_data(frame, true)?),
        }
    }
}

/// 0 is all that is kept; any other number must not be older than that.
fn first(agent: &Agent, process: &Process, after: u64) -> Done<u64> {
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

fn written_up_to(agent: &Agent, process: &Process, seq: u64) -> u64 {
    agent.processes.with_journals(|journals| journals.get(process.key).map_or(0, |journal| journal.written_up_to(seq)))
}

fn next_piece(agent: &Agent, process: &Process, facts: &Facts, seen: u64) -> Option<Piece> {
    match agent.processes.with_journals(|journals| journals.read(process.key, seen, BATCH_BYTES)) {
        Some(Next::Events(frames, last)) => Some(Piece::Output(frames.freeze(), last)),
        Some(Next::Expired) => Some(Piece::Last(json_frame(ERROR, &expired(oldest_of(agent, process)).body()))),
        Some(Next::Nothing) if facts.drained => Some(Piece::Last(last_words(facts))),
        Some(Next::Nothing) => None,
        // Its record made room for another while it was read: whether this was all cannot be told.
        None => Some(Piece::Last(json_frame(ERROR, &not_found().body()))),
    }
}

fn last_words(facts: &Facts) -> Bytes {
    match facts.ending {
        Some(Ending::Exited(exit_code)) => json_frame(EXIT, &Exit::Code { exit_code }),
        Some(Ending::Signaled(number)) => json_frame(EXIT, &Exit::Signal { signal: signal_name(number) }),
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
