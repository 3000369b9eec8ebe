//! Signals a process, waits for it, and terminates it (DELETE).

use std::sync::Arc;
use std::time::Duration;

use h2::RecvStream;
use http::StatusCode;
use serde::Deserialize;
use tokio::time::timeout;

use crate::agent::Agent;
use crate::query;
use crate::reply::{Failure, HandlerResult, read_json};

use super::process::{Process, State, exited};
use super::signals::sendable_signal;

const WAIT_MAX_MS: u64 = 30_000;
const GRACE_DEFAULT_MS: u64 = 1_000;
const GRACE_MAX_MS: u64 = 60_000;
/// Processes that were being forked when the others were killed are killed in the next round.
const KILL_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Deserialize)]
struct SignalBody {
    signal: String,
}

pub async fn signal(process: &Process, mut body: RecvStream) -> HandlerResult {
    let wanted: SignalBody = read_json(&mut body).await?;
    let unknown = || Failure::new(StatusCode::BAD_REQUEST, "invalid_signal", "not a signal that may be sent");
    let number = sendable_signal(&wanted.signal).ok_or_else(unknown)?;
    let inner = process.lock();
    inner.check_alive()?;
    let group = inner.signal_target().ok_or_else(exited)?;
    // SAFETY: plain kill. It has no effect on a process group that has just ended.
    unsafe { libc::kill(-group, number) };
    Ok(())
}

/// Returns when the leader, or the whole tree, has exited; fails with 408 after the timeout.
pub async fn wait(process: &Process, query: Option<&str>) -> HandlerResult {
    let whole_tree = match query::find(query, "scope") {
        None | Some("leader") => false,
        Some("tree") => true,
        Some(_) => return Err(Failure::invalid("scope: must be leader or tree").into()),
    };
    let requested_ms = query::parse(query, "timeout_ms")?.filter(|ms| *ms > 0).unwrap_or(WAIT_MAX_MS);
    let ended = process.wait_until(|inner| match whole_tree {
        true => inner.tree_exited.then_some(()),
        false => inner.state.is_ended().then_some(()),
    });
    let limit = Duration::from_millis(requested_ms.min(WAIT_MAX_MS));
    let timed_out = |_| Failure::new(StatusCode::REQUEST_TIMEOUT, "wait_timeout", "process is still running");
    Ok(timeout(limit, ended).await.map_err(timed_out)?)
}

/// Returns when the whole tree has exited. Termination continues if the caller disconnects.
pub async fn delete(agent: &Arc<Agent>, process: &Arc<Process>, query: Option<&str>) -> HandlerResult {
    let grace_ms = query::parse(query, "grace_ms")?.unwrap_or(GRACE_DEFAULT_MS);
    if grace_ms > GRACE_MAX_MS {
        return Err(Failure::invalid(format!("grace_ms: must be 0 to {GRACE_MAX_MS}")).into());
    }
    tokio::spawn(terminate_tree(agent.clone(), process.clone(), Duration::from_millis(grace_ms)));
    process.wait_until(|inner| inner.tree_exited.then_some(())).await;
    Ok(())
}

async fn terminate_tree(agent: Arc<Agent>, process: Arc<Process>, grace: Duration) {
    process.wait_until(|inner| (inner.state != State::Starting).then_some(())).await;
    let tree = {
        let mut inner = process.lock();
        if inner.state == State::Running {
            inner.state = State::Terminating;
        }
        let Some(tree) = inner.tree.clone() else { return };
        tree
    };
    process.notify_changed();
    if !grace.is_zero() {
        let target = tree.clone();
        agent.workers.submit(move || target.signal(libc::SIGTERM));
        if timeout(grace, process.wait_until(|inner| inner.tree_exited.then_some(()))).await.is_ok() {
            return;
        }
    }
    loop {
        let killed = tree.clone();
        agent.workers.submit(move || killed.kill());
        if timeout(KILL_INTERVAL, process.wait_until(|inner| inner.tree_exited.then_some(()))).await.is_ok() {
            return;
        }
    }
}
