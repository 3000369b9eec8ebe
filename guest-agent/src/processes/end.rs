//! Signals, waiting and DELETE.

use std::sync::Arc;
use std::time::Duration;

use h2::RecvStream;
use http::StatusCode;
use serde::Deserialize;
use tokio::time::timeout;

use crate::agent::Agent;
use crate::query;
use crate::reply::{Done, Failure, read_json};

use super::process::{Process, State, exited};
use super::signals::sendable_signal;

const WAIT_MAX_MS: u64 = 30_000;
const GRACE_DEFAULT_MS: u64 = 1_000;
const GRACE_MAX_MS: u64 = 60_000;
/// Who was just being forked when the others were killed is killed in the next round.
const KILL_AGAIN: Duration = Duration::from_millis(200);

#[derive(Deserialize)]
struct SignalBody {
    signal: String,
}

pub async fn signal(process: &Process, mut body: RecvStream) -> Done {
    let wanted: SignalBody = read_json(&mut body).await?;
    let unknown = || Failure::new(StatusCode::BAD_REQUEST, "invalid_signal", "not a signal that may be sent");
    let number = sendable_signal(&wanted.signal).ok_or_else(unknown)?;
    let facts = process.facts();
    facts.check_alive()?;
    let group = facts.signalled_group().ok_or_else(exited)?;
    // SAFETY: plain kill. A group that has just ended has nobody to tell.
    unsafe { libc::kill(-group, number) };
    Ok(())
}

/// Returns when it has happened, or fails with 408.
pub async fn wait(process: &Process, query: Option<&str>) -> Done {
    let whole_tree = match query::find(query, "scope") {
        None | Some("leader") => false,
        Some("tree") => true,
        Some(_) => return Err(Failure::invalid("scope: leader or tree").into()),
    };
    let asked = query::parse(query, "timeout_ms")?.filter(|ms| *ms > 0).unwrap_or(WAIT_MAX_MS);
    let ended = process.until(|facts| match whole_tree {
        true => facts.tree_exited.then_some(()),
        false => facts.state.is_ended().then_some(()),
    });
    let limit = Duration::from_millis(asked.min(WAIT_MAX_MS));
    let late = |_| Failure::new(StatusCode::REQUEST_TIMEOUT, "wait_timeout", "process is still running");
    Ok(timeout(limit, ended).await.map_err(late)?)
}

/// Returns when the whole tree has ended. What it began goes on when the caller leaves.
pub async fn delete(agent: &Arc<Agent>, process: &Arc<Process>, query: Option<&str>) -> Done {
    let grace_ms = query::parse(query, "grace_ms")?.unwrap_or(GRACE_DEFAULT_MS);
    if grace_ms > GRACE_MAX_MS {
        return Err(Failure::invalid(format!("grace_ms: 0 to {GRACE_MAX_MS}")).into());
    }
    tokio::spawn(end_tree(agent.clone(), process.clone(), Duration::from_millis(grace_ms)));
    process.until(|facts| facts.tree_exited.then_some(())).await;
    Ok(())
}

async fn end_tree(agent: Arc<Agent>, process: Arc<Process>, grace: Duration) {
    process.until(|facts| (facts.state != State::Starting).then_some(())).await;
    let tree = {
        let mut facts = process.facts();
        if facts.state == State::Running {
            facts.state = State::Terminating;
        }
        let Some(tree) = facts.tree.clone() else { return };
        tree
    };
    process.tell();
    if !grace.is_zero() {
        let asked = tree.clone();
        agent.work.submit(move || asked.signal(libc::SIGTERM));
        if timeout(grace, process.until(|facts| facts.tree_exited.then_some(()))).await.is_ok() {
            return;
        }
    }
    loop {
        let killed = tree.clone();
        agent.work.submit(move || killed.kill());
        if timeout(KILL_AGAIN, process.until(|facts| facts.tree_exited.then_some(()))).await.is_ok() {
            return;
        }
    }
}
