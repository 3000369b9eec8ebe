//! One mount: what is wanted, what is known about it, and its program. `supervise.rs` runs the program.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use tokio::sync::{Notify, watch};

use super::place::Place;
use super::program::MountProgram;
use super::report::{Report, shorten, summarise};
use super::supervise::check;
use super::wanted::Wanted;
use crate::agent::Agent;

pub(super) const CHECK_LIMIT: Duration = Duration::from_secs(10);
/// A program that hangs is killed: those that wait for its mount get an error then, instead of waiting for ever.
const SILENT_CHECKS_MAX: u32 = 2;
const EXIT_LIMIT: Duration = Duration::from_secs(3);
const EXIT_POLL: Duration = Duration::from_millis(5);
const MESSAGE_MAX_CHARACTERS: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Pending,
    Mounted,
    Failed,
}

pub struct Mount {
    state: Mutex<State>,
    changed: Arc<watch::Sender<u64>>,
    pub(super) stopping: watch::Sender<bool>,
    /// Ends the pause before the next attempt.
    pub(super) again: Notify,
    /// True once programs cannot write to the directory below any more, or it is known that the mount fails.
    pub(super) covered: watch::Sender<bool>,
    /// One check at a time.
    pub(super) checking: tokio::sync::Mutex<()>,
    /// A look at the mount that has not returned.
    pub(super) is_looking: Arc<AtomicBool>,
    /// `supervise` has returned.
    pub(super) ended: watch::Sender<bool>,
}

pub(super) struct State {
    pub(super) wanted: Wanted,
    pub(super) status: Status,
    pub(super) error: Option<String>,
    pub(super) details: Option<Value>,
    pub(super) program: Option<Arc<MountProgram>>,
    pub(super) place: Option<Arc<Place>>,
    /// Files and bytes that were counted in the stage folder, because no program says what is unsaved: none runs, it has not
    /// reached its store yet, or it did not answer a flush. None once one has said it.
    pub(super) left_behind: Option<(u64, u64)>,
    /// Whether the running program has reported that it is mounted.
    pub(super) is_up: bool,
    /// Rises when what was known about the mount no longer counts. A check that began before says nothing.
    pub(super) epoch: u64,
    /// How many checks in a row the program did not answer.
    pub(super) silent_checks: u32,
}

impl Mount {
    pub fn new(wanted: Wanted, changed: Arc<watch::Sender<u64>>) -> Arc<Self> {
        let state = State {
            wanted,
            status: Status::Pending,
            error: None,
            details: None,
            program: None,
            place: None,
            left_behind: None,
            is_up: false,
            epoch: 0,
            silent_checks: 0,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            changed,
            stopping: watch::Sender::new(false),
            again: Notify::new(),
            covered: watch::Sender::new(false),
            checking: tokio::sync::Mutex::default(),
            is_looking: Arc::default(),
            ended: watch::Sender::new(false),
        })
    }

    pub fn wanted(&self) -> Wanted {
        self.state().wanted.clone()
    }

    pub fn report(&self) -> Report {
        let state = self.state();
        Report {
            id: state.wanted.id.clone(),
            revision: state.wanted.revision,
            status: state.status,
            mount_error: state.error.clone(),
            details: state.details.as_ref().map(shorten),
            summary: match (&state.details, state.left_behind) {
                (Some(details), None) => Some(summarise(details)),
                (None, None) => None,
                (details, Some(left)) => Some(summarise(details.as_ref().unwrap_or(&Value::Null)).with_unsaved(left)),
            },
        }
    }

    pub async fn wait_until_covered(&self) {
        let _ = self.covered.subscribe().wait_for(|covered| *covered).await;
    }

    /// The status is pending until the next check.
    pub fn expire(&self) {
        self.state().epoch += 1;
        self.set(Status::Pending, None);
    }

    /// The place is the same. A running program uses the new connection and is checked; one that failed is tried again.
    pub async fn update(self: &Arc<Self>, agent: &Arc<Agent>, wanted: Wanted) {
        let old = std::mem::replace(&mut self.state().wanted, wanted.clone());
        if old == wanted {
            return;
        }
        self.expire();
        self.notify();
        if (old.address, &old.token) != (wanted.address, &wanted.token) {
            self.command(wanted.connect_command(), CHECK_LIMIT).await;
        }
        let (is_running, is_up) = {
            let state = self.state();
            (state.program.is_some(), state.is_up)
        };
        match (is_running, is_up) {
            (true, true) => drop(tokio::spawn(check(agent.clone(), self.clone()))),
            // It is checked when it is mounted.
            (true, false) => {}
            (false, _) => self.again.notify_one(),
        }
    }

    /// Sends a command to the program, and remembers what it says about itself.
    pub async fn command(&self, command: Value, limit: Duration) -> Option<Value> {
        let program = self.state().program.clone()?;
        let answer = program.command(command, limit).await?;
        if let Some(details) = answer.get("status") {
            self.learn(details.clone());
        }
        Some(answer)
    }

    /// Of the running program.
    pub(super) fn learn(&self, details: Value) {
        let mut state = self.state();
        state.details = Some(details);
        if state.left_behind.take().is_some() {
            drop(state);
            self.notify();
        }
    }

    /// Sends a last command, and waits until the program is gone and nothing is mounted.
    pub async fn stop(&self, agent: &Arc<Agent>, command: Value, limit: Duration) {
        self.stopping.send_replace(true);
        self.command(command, limit).await;
        let program = self.state().program.take();
        if let Some(program) = program {
            let ended = async {
                while program.is_running() {
                    tokio::time::sleep(EXIT_POLL).await;
                }
            };
            if tokio::time::timeout(EXIT_LIMIT, ended).await.is_err() {
                program.kill();
            }
        }
        let mut ended = self.ended.subscribe();
        let _ = tokio::time::timeout(EXIT_LIMIT, ended.wait_for(|ended| *ended)).await;
        self.leave(agent).await;
        self.count_left_behind(agent).await;
    }

    pub(super) async fn count_left_behind(&self, agent: &Arc<Agent>) {
        let Some(program) = agent.mounts.program() else { return };
        let id = self.wanted().id;
        let counted = agent.workers.run(move || program.stages.count_unsaved(&id)).await;
        self.state().left_behind = counted.ok();
    }

    /// What the directory contained before is visible again.
    pub(super) async fn leave(&self, agent: &Arc<Agent>) {
        let (worker, id) = (agent.clone(), self.wanted().id);
        let place = self.state().place.take();
        let remove = move || {
            place.iter().for_each(|place| place.remove());
            worker.mounts.places.release(&id);
        };
        let _ = agent.workers.run(remove).await;
    }

    /// A removed mount leaves its folder only if that has changes: unsaved ones, or some that conflict with the bucket.
    pub async fn remove_empty_stage(&self, agent: &Arc<Agent>) {
        let Some(program) = agent.mounts.program() else { return };
        let folder = program.stages.path().join(self.wanted().id);
        let remove = move || {
            let _ = std::fs::remove_dir(folder.join("kept"));
            if std::fs::read_dir(&folder)
                .is_ok_and(|entries| entries.flatten().all(|entry| entry.file_name() == "lock"))
            {
                let _ = std::fs::remove_dir_all(&folder);
            }
        };
        let _ = agent.workers.run(remove).await;
    }

    /// After `stop`.
    pub fn unsaved_files(&self) -> u64 {
        self.state().left_behind.map_or(0, |(files, _)| files)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, status: Status, error: Option<String>) {
        let error = error.map(|error| error.chars().take(MESSAGE_MAX_CHARACTERS).collect());
        let mut state = self.state();
        if (state.status, &state.error) == (status, &error) {
            return;
        }
        state.status = status;
        state.error = error;
        drop(state);
        self.notify();
    }

    pub(super) fn notify(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    pub(super) fn end_if_silent(&self, has_answered: bool) {
        let mut state = self.state();
        state.silent_checks = if has_answered { 0 } else { state.silent_checks + 1 };
        if state.silent_checks >= SILENT_CHECKS_MAX {
            state.silent_checks = 0;
            state.program.iter().for_each(|program| program.kill());
        }
    }

    pub(super) fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }
}
