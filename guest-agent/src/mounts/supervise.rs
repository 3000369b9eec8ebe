//! Keeps one mount alive: starts its program, starts it again when it ends, and checks it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;

use super::mount::{CHECK_LIMIT, Mount, Status};
use super::place::Place;
use super::program::{Event, MountProgram, spawn_program};
use super::wanted::Wanted;
use crate::agent::Agent;

const CHECK_INTERVAL: Duration = Duration::from_secs(30);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);

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
        mount.count_left_behind(agent).await;
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
    // The program says nothing before it has reached its store.
    mount.count_left_behind(agent).await;
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
                    mount.learn(status);
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
pub(super) async fn check(agent: Arc<Agent>, mount: Arc<Mount>) {
    let _alone = mount.checking.lock().await;
    let (epoch, place) = {
        let state = mount.state();
        (state.epoch, state.place.clone())
    };
    let is_mounted = match mount.is_looking.swap(true, Ordering::SeqCst) {
        // It hangs. Another look would only take another thread.
        true => false,
        false => {
            let is_looking = mount.is_looking.clone();
            let looked = agent.workers.run(move || {
                let is_mounted = place.is_some_and(|place| place.is_mounted() && place.responds());
                is_looking.store(false, Ordering::SeqCst);
                is_mounted
            });
            matches!(tokio::time::timeout(CHECK_LIMIT, looked).await, Ok(Ok(true)))
        }
    };
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
