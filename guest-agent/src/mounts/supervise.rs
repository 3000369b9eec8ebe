//! Keeps one mount alive: starts its program, starts it again when it ends, and knows its status.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};

use super::place::Place;
use super::program::{Event, MountProgram, spawn_program};
use super::report::{Report, summarise};
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
/// A path can lead through a mount that hangs.
const COVER_LIMIT: Duration = Duration::from_secs(5);

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
    stopping: watch::Sender<bool>,
    /// Ends the pause before the next attempt.
    again: Notify,
    /// True once programs cannot write to the directory below any more, or it is known that the mount fails.
    covered: watch::Sender<bool>,
    /// `supervise` has returned.
    ended: watch::Sender<bool>,
}

struct State {
    wanted: Wanted,
    status: Status,
    error: Option<String>,
    details: Option<Value>,
    program: Option<Arc<MountProgram>>,
    place: Option<Arc<Place>>,
    /// Whether the running program has reported that it is mounted.
    is_up: bool,
    /// Rises when what was known about the mount no longer counts. A check that began before says nothing.
    epoch: u64,
    /// How many checks in a row the program did not answer.
    silent_checks: u32,
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
            details: state.details.clone(),
            summary: state.details.as_ref().map(summarise),
        }
    }

    /// Waits until the mount point is covered, for a bounded time.
    pub async fn wait_until_covered(&self) {
        let mut covered = self.covered.subscribe();
        let _ = tokio::time::timeout(COVER_LIMIT, covered.wait_for(|covered| *covered)).await;
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
        let mut ended = self.ended.subscribe();
        let _ = tokio::time::timeout(COVER_LIMIT, ended.wait_for(|ended| *ended)).await;
        self.leave(agent).await;
    }

    /// What the directory contained before is visible again.
    async fn leave(&self, agent: &Arc<Agent>) {
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
    keep_running(&agent, &mount).await;
    mount.ended.send_replace(true);
}

async fn keep_running(agent: &Arc<Agent>, mount: &Arc<Mount>) {
    let mut stopping = mount.stopping.subscribe();
    let mut pause = FIRST_PAUSE;
    while !mount.is_stopping() {
        let (was_mounted, message) = run_program(agent, mount).await;
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
    let prepared = prepare(agent, mount, &wanted).await;
    mount.covered.send_replace(true);
    let place = match prepared {
        Ok(place) => place,
        Err(message) => return (false, format!("{} cannot be used as a mount point: {message}", wanted.mount_path)),
    };
    let Some(program) = agent.mounts.program() else { return (false, "there is no mount program".to_owned()) };
    let file = program.clone();
    let spawned = agent.workers.run(move || spawn_program(&file.file)).await;
    let started = match spawned.map_err(|error| error.to_string()).and_then(|result| result) {
        Ok(parts) => {
            let started = MountProgram::start(parts, &wanted, &place.path, &program.stages).await;
            started.map_err(|error| error.to_string())
        }
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
                    mount.state().is_up = true;
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
    mount.state().is_up = false;
    let _ = agent.workers.run(move || place.clear()).await;
    (was_mounted, message)
}

/// Covers the mount point, unless that was done before and nothing has changed since.
async fn prepare(agent: &Arc<Agent>, mount: &Arc<Mount>, wanted: &Wanted) -> Result<Arc<Place>, String> {
    let known = mount.state().place.take();
    let (worker, id, path) = (agent.clone(), wanted.id.clone(), wanted.mount_path.clone());
    let prepared = agent.workers.run(move || {
        if let Some(place) = known {
            if place.is_intact() {
                place.clear();
                return Ok(place);
            }
            place.remove();
        }
        Place::open(&worker.mounts.places, &id, &path).map(Arc::new)
    });
    let place = prepared.await.map_err(|error| error.to_string())??;
    mount.state().place = Some(place.clone());
    // `stop` has not seen it.
    if mount.is_stopping() {
        mount.leave(agent).await;
        return Err("it is no longer wanted".to_owned());
    }
    Ok(place)
}

/// Looks at the mount itself, and asks the bucket.
async fn check(agent: Arc<Agent>, mount: Arc<Mount>) {
    let (epoch, place) = {
        let state = mount.state();
        (state.epoch, state.place.clone())
    };
    let looked = agent.workers.run(move || place.is_some_and(|place| place.is_mounted() && place.responds()));
    let is_mounted = matches!(tokio::time::timeout(CHECK_LIMIT, looked).await, Ok(Ok(true)));
    let answer = mount.command(json!({"do": "check", "deadline_ms": 5_000}), CHECK_LIMIT).await;
    mount.end_if_silent(answer.is_some());
    if mount.is_stopping() || mount.state().epoch != epoch {
        return;
    }
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
