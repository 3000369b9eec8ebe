//! One HTTP/2 session: accepts requests until the host disconnects, and dispatches each to its endpoint.
//!
//! Memory is bounded by flow-control windows. A stream may have 128 KiB of unread body here, and the connection's
//! window is that times the number of streams, so that a stalled upload or stdin can never block another stream. In the
//! other direction, nothing is read from a pipe or a file before the peer has room for it.

use std::sync::Arc;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{Method, Request, StatusCode};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::agent::Agent;
use crate::reply::{Failure, HandlerError, HandlerResult, read_body, read_json, send_failure, send_json};
use crate::session_io::SessionIo;
use crate::{
    clock, entropy, exec, files, folders, freeze, grow, identity, metrics, mounts, pack, processes, ready, restore,
    self_signal, shell, shutdown, spans, tunnel,
};

/// Exec, files, process output readers and tunnels together: idle tunnels must not prevent an exec.
const STREAMS_MAX: u32 = 1024;
const STREAM_WINDOW_BYTES: u32 = 128 * 1024;
const SEND_BUFFER_BYTES: usize = 64 * 1024;
/// Enough for a path of 4096 bytes, each percent-encoded, and the ordinary headers.
const HEADERS_MAX_BYTES: u32 = 16 * 1024;
/// A host that cancels many streams at once is not an attacker.
const RESETS_MAX: usize = 4096;
const ENTROPY_MAX_BYTES: usize = 4096;

pub async fn serve(io: SessionIo<'_>, agent: &Arc<Agent>, requests: &mut JoinSet<()>) {
    let mut builder = h2::server::Builder::new();
    builder
        .max_concurrent_streams(STREAMS_MAX)
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(STREAM_WINDOW_BYTES * STREAMS_MAX)
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .max_header_list_size(HEADERS_MAX_BYTES)
        .max_pending_accept_reset_streams(RESETS_MAX)
        .max_local_error_reset_streams(None);
    let Ok(mut connection) = builder.handshake::<_, Bytes>(io).await else { return };
    loop {
        tokio::select! {
            accepted = connection.accept() => match accepted {
                Some(Ok((request, respond))) => {
                    requests.spawn(handle(agent.clone(), request, respond));
                }
                // The host disconnected or violated the protocol: it will send another hello.
                Some(Err(_)) | None => return,
            },
            Some(_) = requests.join_next(), if !requests.is_empty() => {}
        }
    }
}

async fn handle(agent: Arc<Agent>, request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    if spans::is_requested(request.headers()) {
        spans::measure(answer(&agent, request, &mut respond)).await;
    } else {
        answer(&agent, request, &mut respond).await;
    }
}

async fn answer(agent: &Arc<Agent>, request: Request<RecvStream>, respond: &mut SendResponse<Bytes>) {
    // `respond` outlives the request's parts here: if the body is dropped early, the stream is reset.
    if let Err(HandlerError::Failed(failure)) = dispatch(agent, request, respond).await {
        send_failure(respond, &failure);
    }
}

#[derive(Serialize)]
struct Empty {}

async fn dispatch(
    agent: &Arc<Agent>,
    request: Request<RecvStream>,
    respond: &mut SendResponse<Bytes>,
) -> HandlerResult {
    let (head, mut body) = request.into_parts();
    match (head.method.clone(), head.uri.path()) {
        (Method::GET, "/ready") => send_json(respond, StatusCode::OK, &ready::get_ready(agent)),
        (Method::POST, "/wake") => {
            let request = read_json(&mut body).await?;
            send_json(respond, StatusCode::OK, &restore::finish_restore(agent, request).await?)
        }
        (Method::POST, "/identity") => {
            let request = read_json(&mut body).await?;
            send_json(respond, StatusCode::OK, &identity::apply_on_worker(agent, request).await?)
        }
        (Method::POST, "/clock") => {
            let request = read_json(&mut body).await?;
            send_json(respond, StatusCode::OK, &clock::set_clock(&request)?)
        }
        (Method::POST, "/entropy") => {
            let bytes = read_body(&mut body, ENTROPY_MAX_BYTES).await?;
            send_json(respond, StatusCode::OK, &entropy::add_entropy(&bytes)?)
        }
        (Method::POST, "/exec") => exec::exec(agent, body, respond).await,
        (Method::PUT, "/files") => files::put_file(agent, head.uri.query(), &mut body, respond).await,
        (Method::GET, "/files") => files::get_file(agent, head.uri.query(), respond).await,
        (Method::GET, "/metrics") => {
            let measured = run(agent, metrics::measure).await?;
            send_json(respond, StatusCode::OK, &measured?)
        }
        (Method::POST, "/grow") => {
            let request = read_json(&mut body).await?;
            let grown = run(agent, move || grow::grow(&request)).await?;
            send_json(respond, StatusCode::OK, &grown?)
        }
        (Method::POST, "/sync") => {
            run(agent, shutdown::sync_root).await??;
            send_json(respond, StatusCode::OK, &Empty {})
        }
        (Method::POST, "/folders") => {
            let request = read_json(&mut body).await?;
            run(agent, move || folders::make_folder(&request)).await??;
            send_json(respond, StatusCode::OK, &Empty {})
        }
        (Method::POST, "/freeze") => {
            let frozen = run(agent, freeze::freeze).await??;
            tokio::spawn(thaw_later(agent.clone(), frozen.number));
            send_json(respond, StatusCode::OK, &frozen)
        }
        (Method::POST, "/thaw") => {
            run(agent, freeze::thaw).await??;
            send_json(respond, StatusCode::OK, &Empty {})
        }
        (Method::POST, "/pack") => {
            let request = read_json(&mut body).await?;
            run(agent, move || pack::pack(&request)).await??;
            send_json(respond, StatusCode::OK, &Empty {})
        }
        (Method::POST, "/poweroff") => {
            send_json(respond, StatusCode::ACCEPTED, &Empty {})?;
            agent.power_off.notify_one();
            Ok(())
        }
        (Method::POST, "/shell") => shell::shell(agent, body, respond).await,
        (Method::POST, "/tunnel") => tunnel::tunnel(agent, head.uri.query(), body, respond).await,
        (Method::GET, "/signals") => self_signal::stream_to_host(agent, respond).await,
        (Method::POST, "/signals/ack") => {
            agent.signals.acknowledge(&read_json(&mut body).await?);
            send_json(respond, StatusCode::OK, &Empty {})
        }
        (method, path) if path == "/mounts" || path.starts_with("/mounts/") => {
            mounts::handle(agent, &method, path.trim_start_matches("/mounts"), &mut body, respond).await
        }
        (_, path) if path == "/processes" || path.starts_with("/processes/") => {
            let rest = path.trim_start_matches("/processes").to_owned();
            processes::handle(agent, &head, &rest, body, respond).await
        }
        (method, path) => {
            let message = format!("no such endpoint: {method} {path}");
            Err(Failure::new(StatusCode::NOT_FOUND, "not_found", message).into())
        }
    }
}

/// A host that is gone must not leave the filesystem frozen.
async fn thaw_later(agent: Arc<Agent>, number: u64) {
    tokio::time::sleep(freeze::FREEZE_MAX).await;
    if freeze::is_latest(number) {
        agent.workers.submit(|| drop(freeze::thaw()));
    }
}

async fn run<T: Send + 'static>(agent: &Agent, job: impl FnOnce() -> T + Send + 'static) -> HandlerResult<T> {
    agent.workers.run(job).await.map_err(|error| Failure::internal("worker", &error).into())
}
