//! Keeps one mount alive: starts its program, starts it again when it ends, and knows its status.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};

use super::place;
use super::program::{Event, MountProgram, spawn_program};
use super::wanted::Wanted;
use crate::agent::Agent;

const CHECK_INTERVAL: Duration = Duration::from_secs(30);
const CHECK_LIMIT: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// A program that hangs is killed: those that wait for its mount get an error then, instead of waiting for ever.
const SILENT_CHECKS_MAX: u32 = 2;
const EXIT_LIMIT: Duration = Duration::from_secs(3);
const EXIT_POLL: Duration = Duration::from_millis(5);
const MESSAGE_MAX_CHARACTERS: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Status {
    Pending,
    Mounted,
    Failed,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    id: String,
    revision: u64,
    status: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    mount_error: Option<String>,
    /// What the mount program says about itself, as of its last answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Value>,
}

pub struct Mount {
    state: Mutex<State>,
    changed: Arc<watch::Sender<u64>>,
    stopping: watch::Sender<bool>,
    /// Ends the pause before the next attempt.
    again: Notify,
}

struct State {
    wanted: Wanted,
    status: Status,
    error: Option<String>,
    details: Option<Value>,
    program: Option<Arc<MountProgram>>,
    /// How many checks in a row the program did not answer.
    silent_checks: u32,
}

impl Mount {
    pub fn new(wanted: Wanted, changed: Arc<watch::Sender<u64>>) -> Arc<Self> {
        let state =
            State { wanted, status: Status::Pending, error: None, details: None, program: None, silent_checks: 0 };
        Arc::new(Self { state: Mutex::new(state), changed, stopping: watch::Sender::new(false), again: Notify::new() })
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
            details: state.details.clone(),
        }
    }

    /// The place is the same. A running program uses the new connection and is checked; one that failed is tried again.
    pub async fn update(self: &Arc<Self>, agent: &Arc<Agent>, wanted: Wanted) {
        let old = std::mem::replace(&mut self.state().wanted, wanted.clone());
        if (old.address, &old.token) != (wanted.address, &wanted.token) {
            self.command(wanted.connect_command(), CHECK_LIMIT).await;
        }
        if old == wanted {
            return;
        }
        let is_running = self.state().program.is_some();
        match is_running {
            true => drop(tokio::spawn(check(agent.clone(), self.clone()))),
            false => self.again.notify_one(),
        }
        self.notify();
    }

    /// Sends a command to the program, and remembers what it says about itself.
    pub async fn command(&self, command: Value, limit: Duration) -> Option<Value> {
        let program = self.state().program.clone()?;
        let answer = program.command(command, limit).await?;
        if let Some(details) = answer.get("status") {
            self.state().details = Some(details.clone());
        }
        Some(answer)
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
        let path = self.wanted().mount_path;
        let _ = agent.workers.run(move || if place::is_mounted(&path) { place::detach(&path) } else { Ok(()) }).await;
    }

    pub async fn remove_stage(&self, agent: &Arc<Agent>) {
        let Some(program) = agent.mounts.program() else { return };
        let folder = program.stages.join(self.wanted().id);
        let _ = agent.workers.run(move || std::fs::remove_dir_all(folder)).await;
    }

    /// A removed mount leaves its folder only if that has changes: unsaved ones, or some that conflict with the bucket.
    pub async fn remove_empty_stage(&self, agent: &Arc<Agent>) {
        let Some(program) = agent.mounts.program() else { return };
        let folder = program.stages.join(self.wanted().id);
        let remove = move || {
            let _ = std::fs::remove_dir(folder.join("kept"));
            if std::fs::read_dir(&folder).is_ok_and(|entries| entries.flatten().all(|entry| entry.file_name() == "lock")) {
                let _ = std::fs::remove_dir_all(&folder);
            }
        };
        let _ = agent.workers.run(remove).await;
    }

    /// As of the last answer of the program.
    pub fn unsaved_files(&self) -> u64 {
        self.state().details.as_ref().and_then(|details| details.get("dirty_files")?.as_u64()).unwrap_or_default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, status: Status, error: Option<String>) {
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

    fn notify(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    fn end_if_silent(&self, has_answered: bool) {
        let mut state = self.state();
        state.silent_checks = if has_answered { 0 } else { state.silent_checks + 1 };
        if state.silent_checks >= SILENT_CHECKS_MAX {
            state.silent_checks = 0;
            state.program.iter().for_each(|program| program.kill());
        }
    }

    fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }
}

/// Runs until the mount is stopped.
pub async fn supervise(agent: Arc<Agent>, mount: Arc<Mount>) {
    let mut stopping = mount.stopping.subscribe();
    let mut pause = FIRST_PAUSE;
    while !mount.is_stopping() {
        let (was_mounted, message) = run_program(&agent, &mount).await;
        if mount.is_stopping() {
            return;
        }
        mount.state().program = None;
        mount.set(Status::Failed, Some(message));
        pause = if was_mounted { FIRST_PAUSE } else { (pause * 2).min(PAUSE_MAX) };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = mount.again.notified() => {}
            _ = stopping.changed() => return,
        }
    }
}

/// Returns when the program has ended: whether it was mounted, and what is wrong.
async fn run_program(agent: &Arc<Agent>, mount: &Arc<Mount>) -> (bool, String) {
    let wanted = mount.wanted();
    let path = wanted.mount_path.clone();
    let prepared = agent.workers.run(move || place::prepare(&path)).await;
    if let Err(error) = prepared.and_then(|result| result) {
        return (false, format!("{} cannot be used as a mount point: {error}", wanted.mount_path));
    }
    let Some(program) = agent.mounts.program() else { return (false, "there is no mount program".to_owned()) };
    let stage_folder = program.stages.join(&wanted.id);
    let spawned = agent.workers.run(move || spawn_program(&program.file)).await;
    let started = match spawned.map_err(|error| error.to_string()).and_then(|result| result) {
        Ok(parts) => MountProgram::start(parts, &wanted, &stage_folder).await.map_err(|error| error.to_string()),
        Err(message) => Err(message),
    };
    let (program, mut events) = match started {
        Ok(started) => started,
        Err(message) => return (false, message),
    };
    mount.state().program = Some(program.clone());
    // The connection was changed before there was a program to send it to.
    let now = mount.wanted();
    if now.address != wanted.address || now.token != wanted.token {
        let (mount, command) = (mount.clone(), now.connect_command());
        tokio::spawn(async move { mount.command(command, CHECK_LIMIT).await });
    }
    // It was stopped before there was a program to send the last command to.
    if mount.is_stopping() {
        program.kill();
    }
    let (mut was_mounted, mut message) = (false, "the mount program ended".to_owned());
    let mut next_check = tokio::time::interval(CHECK_INTERVAL);
    next_check.tick().await;
    loop {
        tokio::select! {
            event = events.recv() => match event {
                Some(Event::Mounted) => {
                    was_mounted = true;
                    check(agent.clone(), mount.clone()).await;
                }
                Some(Event::Failed { message: failed }) => message = failed,
                Some(Event::Status { status }) => {
                    mount.state().details = Some(status);
                    mount.notify();
                }
                None => break,
            },
            _ = next_check.tick(), if was_mounted => check(agent.clone(), mount.clone()).await,
        }
    }
    // Its output is closed, so it has ended or is useless.
    program.kill();
    let path = wanted.mount_path;
    let _ = agent.workers.run(move || if place::is_mounted(&path) { place::detach(&path) } else { Ok(()) }).await;
    (was_mounted, message)
}

/// Looks at the mount itself, and asks the bucket.
async fn check(agent: Arc<Agent>, mount: Arc<Mount>) {
    let path = mount.wanted().mount_path;
    let looked = agent.workers.run(move || place::is_mounted(&path) && place::responds(&path));
    let is_mounted = matches!(tokio::time::timeout(CHECK_LIMIT, looked).await, Ok(Ok(true)));
    let answer = mount.command(json!({"do": "check", "deadline_ms": 5_000}), CHECK_LIMIT).await;
    if mount.is_stopping() {
        return;
    }
    mount.end_if_silent(answer.is_some());
    let unreachable = answer.as_ref().and_then(|answer| answer.pointer("/status/unreachable")?.as_str());
    match (is_mounted, &answer, unreachable) {
        (_, Some(_), Some(message)) => {
            mount.set(Status::Failed, Some(format!("the bucket does not answer: {message}")))
        }
        (true, Some(_), None) => mount.set(Status::Mounted, None),
        (false, _, _) => mount.set(Status::Failed, Some("it is not mounted any more".to_owned())),
        (true, None, _) => mount.set(Status::Failed, Some("the mount program does not answer".to_owned())),
    }
}
