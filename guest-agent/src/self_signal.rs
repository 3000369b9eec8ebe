//! Self-signals: a program inside the sandbox asks to pause or delete its sandbox. The contract with the host is
//! `protocol/src/guest-streams.ts`.
//!
//!   1. A program sends the request, by HTTP on loopback (`http.rs`) or as a line in a named pipe (`pipe.rs`). Both exist
//!      from boot on and are part of every snapshot, so they also exist after a resume or fork.
//!   2. The program gets its response, and only then is the signal stored here: at most one, the strongest and newest.
//!   3. It is sent to the host that reads GET /signals, which acknowledges it. A host that connects later receives it then.
//!
//! A host that does not acknowledge receives one signal per connection, so a flood of requests inside the guest does
//! not become a flood outside.

mod http;
mod pipe;

use std::sync::{Mutex, MutexGuard, PoisonError};

use ::http::{Response, StatusCode};
use bytes::Bytes;
use h2::server::SendResponse;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::agent::Agent;
use crate::reply::{HandlerError, HandlerResult, send_all, start};

pub use self::http::serve_http;
pub use self::pipe::serve_pipe;

pub const PORT: u16 = 1029;
pub const PIPE: &str = "/run/self";
const REASON_MAX_CHARACTERS: usize = 128;

/// Ordered by strength.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    Pause,
    Delete,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Signal {
    id: u64,
    action: Action,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Default)]
pub struct Signals {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    last_id: u64,
    acknowledged: u64,
    pending: Option<Signal>,
}

#[derive(Deserialize)]
pub struct Acknowledgement {
    id: u64,
}

impl Signals {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn raise(&self, action: Action, reason: Option<String>) {
        let mut state = self.state();
        if state.pending.as_ref().is_some_and(|pending| pending.action > action) {
            return;
        }
        state.last_id += 1;
        state.pending = Some(Signal { id: state.last_id, action, reason });
        drop(state);
        self.changed.notify_waiters();
    }

    pub fn acknowledge(&self, acknowledged: &Acknowledgement) {
        let mut state = self.state();
        state.acknowledged = state.acknowledged.max(acknowledged.id.min(state.last_id));
        if state.pending.as_ref().is_some_and(|pending| pending.id == acknowledged.id) {
            state.pending = None;
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Called after a restore. A pending pause has happened. A new machine (a clone or fork) has no pending signals at
    /// all.
    pub fn clear_after_restore(&self, is_new_machine: bool) {
        let mut state = self.state();
        if is_new_machine || state.pending.as_ref().is_some_and(|pending| pending.action == Action::Pause) {
            state.pending = None;
        }
    }

    async fn next(&self, sent_id: u64) -> Signal {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let state = self.state();
                let may_send = sent_id <= state.acknowledged;
                if let Some(pending) = state.pending.as_ref().filter(|pending| may_send && pending.id > sent_id) {
                    return pending.clone();
                }
            }
            changed.await;
        }
    }
}

/// GET /signals: streams signals until the host disconnects.
pub async fn stream_to_host(agent: &Agent, respond: &mut SendResponse<Bytes>) -> HandlerResult {
    let head = Response::builder().status(StatusCode::OK).header("content-type", "application/x-ndjson");
    let mut send = start(respond, head)?;
    let mut sent_id = 0;
    loop {
        let signal = tokio::select! {
            signal = agent.signals.next(sent_id) => signal,
            _ = std::future::poll_fn(|context| send.poll_reset(context)) => return Err(HandlerError::Disconnected),
        };
        sent_id = signal.id;
        let mut line = serde_json::to_vec(&signal).unwrap_or_default();
        line.push(b'\n');
        send_all(&mut send, line.into()).await?;
    }
}

/// Removes control characters and truncates. None when the result is empty.
fn clean_reason(text: &str) -> Option<String> {
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    let text: String = text.trim().chars().take(REASON_MAX_CHARACTERS).collect();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strongest_and_newest_signal_is_pending_until_acknowledged() {
        let signals = Signals::default();
        signals.raise(Action::Pause, None);
        signals.raise(Action::Pause, Some("newer".into()));
        signals.raise(Action::Delete, None);
        signals.raise(Action::Pause, Some("too weak".into()));
        let pending = || signals.state().pending.clone();

        assert_eq!(pending(), Some(Signal { id: 3, action: Action::Delete, reason: None }));
        signals.acknowledge(&Acknowledgement { id: 2 });
        assert!(pending().is_some());
        signals.clear_after_restore(false);
        assert!(pending().is_some(), "a pending delete survives a pause");
        signals.acknowledge(&Acknowledgement { id: 3 });
        assert_eq!(pending(), None);
    }

    #[test]
    fn a_restore_clears_a_pending_pause_and_a_new_machine_clears_everything() {
        let signals = Signals::default();
        signals.raise(Action::Pause, None);
        signals.clear_after_restore(false);
        assert_eq!(signals.state().pending, None);
        signals.raise(Action::Delete, None);
        signals.clear_after_restore(true);
        assert_eq!(signals.state().pending, None);
    }

    #[test]
    fn a_reason_is_cleaned_and_truncated_by_characters() {
        assert_eq!(clean_reason(" a\u{7}\nb\u{85} ").as_deref(), Some("ab"));
        assert_eq!(clean_reason(" \t "), None);
        assert_eq!(clean_reason(&"ü".repeat(200)), Some("ü".repeat(128)));
    }
}
