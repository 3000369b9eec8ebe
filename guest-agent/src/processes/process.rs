//! One managed process: what is known of it, and who waits for news of it.
//!
//! Its state moves only here, as PROCESS_MOVES of `protocol/src/process.ts` has it:
//!
//!   starting → running     the exec is done
//!   starting → failed      it could not be started
//!   running → terminating  DELETE
//!   running, terminating → exited   the leader was reaped
//!
//! Beside the state: `tree_exited` (nothing that it started lives), and `drained` (its output has come to an end, or
//! its leader ended 2 s ago), after which readers are told the exit.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use crate::reap::{self, Child, Ending};
use crate::reply::{Done, Failure};
use crate::terminal::Terminal;
use crate::timestamp;
use crate::tree::Tree;

use super::readers::Readers;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Process,
    Pty,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Starting,
    Running,
    Terminating,
    Exited,
    Failed,
}

pub struct Process {
    pub id: String,
    /// Of its journal, and the order in which processes were made.
    pub key: u64,
    pub kind: Kind,
    pub cmd: String,
    pub args: Vec<String>,
    pub cwd: String,
    pub created_at: String,
    facts: Mutex<Facts>,
    /// Raised at every change, output included.
    changed: Notify,
    /// Held by the input that is being written; who waits gets it in the order of asking.
    pub input_turn: tokio::sync::Mutex<()>,
    pub readers: Readers,
}

pub struct Facts {
    pub state: State,
    pub leader: Option<Child>,
    pub tree: Option<Tree>,
    pub tree_exited: bool,
    pub drained: bool,
    pub ending: Option<Ending>,
    pub finished_at: Option<String>,
    pub input_seq: u64,
    /// The way in: the pipe of a plain process until it is closed, the master of a PTY.
    pub stdin: Option<Arc<AsyncFd<OwnedFd>>>,
    pub terminal: Option<Arc<Terminal>>,
}

/// What a start has made.
pub struct Started {
    pub leader: Child,
    pub tree: Tree,
    pub stdin: Option<Arc<AsyncFd<OwnedFd>>>,
    pub terminal: Option<Arc<Terminal>>,
}

impl Process {
    pub fn new(id: String, key: u64, kind: Kind, cmd: String, args: Vec<String>, cwd: String) -> Self {
        let facts = Facts {
            state: State::Starting,
            leader: None,
            tree: None,
            tree_exited: false,
            drained: false,
            ending: None,
            finished_at: None,
            input_seq: 0,
            stdin: None,
            terminal: None,
        };
        Self {
            id,
            key,
            kind,
            cmd,
            args,
            cwd,
            created_at: timestamp::now(),
            facts: Mutex::new(facts),
            changed: Notify::new(),
            input_turn: tokio::sync::Mutex::default(),
            readers: Readers::default(),
        }
    }

    pub fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn tell(&self) {
        self.changed.notify_waiters();
    }

    /// Waits until `look` finds what it looks for; it is asked again at every change.
    pub async fn until<T>(&self, mut look: impl FnMut(&mut Facts) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Before looking: a change in between must not be missed.
            changed.as_mut().enable();
            if let Some(found) = look(&mut self.facts()) {
                return found;
            }
            changed.await;
        }
    }

    pub fn has_started(&self, started: Started) {
        let mut facts = self.facts();
        facts.state = State::Running;
        facts.leader = Some(started.leader);
        facts.tree = Some(started.tree);
        facts.stdin = started.stdin;
        facts.terminal = started.terminal;
        drop(facts);
        self.tell();
    }

    pub fn has_failed(&self) {
        let mut facts = self.facts();
        facts.state = State::Failed;
        facts.tree_exited = true;
        facts.drained = true;
        facts.finished_at = Some(timestamp::now());
        drop(facts);
        self.tell();
    }

    pub fn has_exited(&self, ending: Ending) {
        let mut facts = self.facts();
        facts.state = State::Exited;
        facts.ending = Some(ending);
        facts.finished_at = Some(timestamp::now());
        facts.stdin = None;
        facts.terminal = None;
        drop(facts);
        self.tell();
    }

    pub fn is_drained(&self) {
        self.facts().drained = true;
        self.tell();
    }

    /// Asks the kernel, once the leader has ended; then the group is no longer needed.
    pub fn look_at_tree(&self) {
        let mut facts = self.facts();
        if facts.tree_exited || facts.state != State::Exited || !facts.tree.as_ref().is_none_or(Tree::is_empty) {
            return;
        }
        facts.tree_exited = true;
        if let Some(tree) = facts.tree.take() {
            tree.remove();
        }
        drop(facts);
        self.tell();
    }
}

impl Facts {
    /// The group that a signal of the caller goes to: that of the leader, or whoever has the terminal.
    pub fn signalled_group(&self) -> Option<i32> {
        let leader = self.leader.as_ref().filter(|leader| !reap::is_reaped(leader))?;
        self.terminal.as_ref().and_then(|terminal| terminal.foreground_group()).or(Some(leader.pid))
    }

    pub fn check_alive(&self) -> Done {
        match self.state {
            State::Running | State::Terminating => Ok(()),
            _ => Err(exited().into()),
        }
    }
}

impl State {
    pub fn is_ended(self) -> bool {
        matches!(self, Self::Exited | Self::Failed)
    }
}

pub fn exited() -> Failure {
    Failure::new(http::StatusCode::CONFLICT, "process_exited", "process has exited")
}
