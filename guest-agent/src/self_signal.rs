//! What the sandbox asks for itself: pause me, delete me (spec 4.15). The contract towards the host is
//! `protocol/src/guest-streams.ts`.
//!
//!   1. A program inside asks, by HTTP on loopback (`http.rs`) or by a line in a named pipe (`pipe.rs`). Both are there
//!      from boot on; a snapshot holds them as it holds everything, so they are there after a resume or fork.
//!   2. It is answered, and only then the signal is kept here: at most one, the strongest and newest.
//!   3. The host that listens at GET /signals is told, and acknowledges; a host that comes later is told then.
//!
//! A host that never acknowledges is told once per connection, so a flood inside is no flood outside.

mod http;
mod pipe;

use std::sync::{Mutex, MutexGuard, PoisonError};

use ::http::{Response, StatusCode};
use bytes::Bytes;
use h2::server::SendResponse;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::agent::Agent;
use crate::reply::{Done, Stop, send_all, start};

pub use self::http::serve_http;
pub use self::pipe::serve_pipe;

pub const PORT: u16 = 1029;
pub const PIPE: &str = "/run/self";
const REASON_MAX_CHARACTERS: usize = 128;

/// In the order of their strength.
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
    made: u64,
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
        state.made += 1;
        state.pending = Some(Signal { id: state.made, action, reason });
        drop(state);
        self.changed.notify_waiters();
    }

    pub fn acknowledge(&self, acknowledged: &Acknowledgement) {
        let mut state = self.state();
        state.acknowledged = state.acknowledged.max(acknowledged.id.min(state.made));
        if state.pending.as_ref().is_some_and(|pending| pending.id == acknowledged.id) {
            state.pending = None;
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// After a pause: one that was asked for has happened. A machine that has become another owes nothing at all.
    pub fn forget(&self, is_another: bool) {
        let mut state = self.state();
        if is_another || state.pending.as_ref().is_some_and(|pending| pending.action == Action::Pause) {
            state.pending = None;
        }
    }

    async fn next(&self, told: u64) -> Signal {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let state = self.state();
                let may_tell = told <= state.acknowledged;
                if let Some(pending) = state.pending.as_ref().filter(|pending| may_tell && pending.id > told) {
                    return pending.clone();
                }
            }
            changed.await;
        }
    }
}

/// GET /signals: ends only with the host.
pub async fn tell_host(agent: &Agent, respond: &mut SendResponse<Bytes>) -> Done {
    let head = Response::builder().status(StatusCode::OK).header("content-type", "application/x-ndjson");
    let mut send = start(respond, head)?;
    let mut told = 0;
    loop {
        let signal = tokio::select! {
            signal = agent.signals.next(told) => signal,
            _ = std::future::poll_fn(|context| send.poll_reset(context)) => return Err(Stop::Gone),
        };
        told = signal.id;
        let mut line = serde_json::to_vec(&signal).unwrap_or_default();
        line.push(b'\n');
        send_all(&mut send, line.into()).await?;
    }
}

/// None when nothing is left.
fn clean_reason(text: &str) -> Option<String> {
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    let text: String = text.trim().chars().take(REASON_MAX_CHARACTERS).collect();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strongest_and_newest_is_kept_until_it_is_acknowledged() {
        let signals = Signals::default();
        signals.raise(Action::Pause, None);
        signals.raise(Action::Pause, Some("newer".into()));
        signals.raise(Action::Delete, None);
        signals.raise(Action::Pause, Some("too weak".into()));
        let pending = || signals.state().pending.clone();

        assert_eq!(pending(), Some(Signal { id: 3, action: Action::Delete, reason: None }));
        signals.acknowledge(&Acknowledgement { id: 2 });
        assert!(pending().is_some());
        signals.forget(false);
        assert!(pending().is_some(), "a delete outlives a pause");
        signals.acknowledge(&Acknowledgement { id: 3 });
        assert_eq!(pending(), None);
    }

    #[test]
    fn a_pause_is_forgotten_after_a_pause_and_everything_by_another_machine() {
        let signals = Signals::default();
        signals.raise(Action::Pause, None);
        signals.forget(false);
        assert_eq!(signals.state().pending, None);
        signals.raise(Action::Delete, None);
        signals.forget(true);
        assert_eq!(signals.state().pending, None);
    }

    #[test]
    fn a_reason_is_cleaned_and_cut_by_characters() {
        assert_eq!(clean_reason(" a\u{7}\nb\u{85} ").as_deref(), Some("ab"));
        assert_eq!(clean_reason(" \t "), None);
        assert_eq!(clean_reason(&"ü".repeat(200)), Some("ü".repeat(128)));
    }
}
