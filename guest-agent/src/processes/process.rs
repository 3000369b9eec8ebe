//! One managed process: its current state, and notification of changes.
//!
//! Only this file changes the state, according to PROCESS_MOVES of `protocol/src/process.ts`:
//!
//!   starting → running     the exec is done
//!   starting → failed      it could not be started
//!   running → terminating  DELETE
//!   running, terminating → exited   the leader was reaped
//!
//! Besides the state there are two flags: `tree_exited` (no process that it started is alive), and `drained` (its
//! output has ended, or its leader exited 2 s ago). Readers receive the exit once `drained` is set.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use crate::process_tree::ProcessTree;
use crate::reaper::{self, Child, ExitStatus};
use crate::reply::{Failure, HandlerResult};
use crate::terminal::Terminal;
use crate::timestamp;

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
    /// Key of its journal, and its position in the order of creation.
    pub key: u64,
    pub kind: Kind,
    pub cmd: String,
    pub args: Vec<String>,
    pub cwd: String,
    pub created_at: String,
    inner: Mutex<Inner>,
    /// Notified at every change, including new output.
    changed: Notify,
    /// Held while input is written; waiters acquire it in the order of their requests.
    pub input_lock: tokio::sync::Mutex<()>,
    pub readers: Readers,
}

pub struct Inner {
    pub state: State,
    pub leader: Option<Child>,
    pub tree: Option<ProcessTree>,
    pub tree_exited: bool,
    pub drained: bool,
    pub exit_status: Option<ExitStatus>,
    pub finished_at: Option<String>,
    pub input_seq: u64,
    /// The stdin pipe of a process without a terminal, until it is closed.
    pub stdin: Option<Arc<AsyncFd<OwnedFd>>>,
    pub terminal: Option<Arc<Terminal>>,
}

/// The result of a successful start.
pub struct Started {
    pub leader: Child,
    pub tree: ProcessTree,
    pub stdin: Option<Arc<AsyncFd<OwnedFd>>>,
    pub terminal: Option<Arc<Terminal>>,
}

impl Process {
    pub fn new(id: String, key: u64, kind: Kind, cmd: String, args: Vec<String>, cwd: String) -> Self {
        let inner = Inner {
            state: State::Starting,
            leader: None,
            tree: None,
            tree_exited: false,
            drained: false,
            exit_status: None,
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
            inner: Mutex::new(inner),
            changed: Notify::new(),
            input_lock: tokio::sync::Mutex::default(),
            readers: Readers::default(),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn notify_changed(&self) {
        self.changed.notify_waiters();
    }

    /// Waits until `check` returns a value; it is called again after every change.
    pub async fn wait_until<T>(&self, mut check: impl FnMut(&mut Inner) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Subscribed before the check, so that a change in between is not missed.
            changed.as_mut().enable();
            if let Some(found) = check(&mut self.lock()) {
                return found;
            }
            changed.await;
        }
    }

    pub fn mark_running(&self, started: Started) {
        let mut inner = self.lock();
        inner.state = State::Running;
        inner.leader = Some(started.leader);
        inner.tree = Some(started.tree);
        inner.stdin = started.stdin;
        inner.terminal = started.terminal;
        drop(inner);
        self.notify_changed();
    }

    pub fn mark_failed(&self) {
        let mut inner = self.lock();
        inner.state = State::Failed;
        inner.tree_exited = true;
        inner.drained = true;
        inner.finished_at = Some(timestamp::now());
        drop(inner);
        self.notify_changed();
    }

    pub fn mark_exited(&self, exit_status: ExitStatus) {
        let mut inner = self.lock();
        inner.state = State::Exited;
        inner.exit_status = Some(exit_status);
        inner.finished_at = Some(timestamp::now());
        inner.stdin = None;
        inner.terminal = None;
        drop(inner);
        self.notify_changed();
    }

    pub fn mark_drained(&self) {
        self.lock().drained = true;
        self.notify_changed();
    }

    /// Once the leader has exited, checks whether the tree is empty; then its cgroup is removed.
    pub fn check_tree(&self) {
        let mut inner = self.lock();
        if inner.tree_exited || inner.state != State::Exited || !inner.tree.as_ref().is_none_or(ProcessTree::is_empty) {
            return;
        }
        inner.tree_exited = true;
        if let Some(tree) = inner.tree.take() {
            tree.remove();
        }
        drop(inner);
        self.notify_changed();
    }
}

impl Inner {
    /// The process group that receives the caller's signals: the terminal's foreground group, or else the leader's.
    pub fn signal_target(&self) -> Option<i32> {
        let leader = self.leader.as_ref().filter(|leader| !reaper::is_reaped(leader))?;
        self.terminal.as_ref().and_then(|terminal| terminal.foreground_group()).or(Some(leader.pid))
    }

    pub fn check_alive(&self) -> HandlerResult {
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
