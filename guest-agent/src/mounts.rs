//! Disks: buckets that are mounted in the machine. The contract with the host is `protocol/src/guest-mounts.ts`.
//!
//! The life of a mount:
//!
//!   1. PUT /mounts has the complete set of wanted mounts. New ones are started, those that are not listed are saved,
//!      unmounted and removed. One whose address or token changed keeps running and uses the new one.
//!   2. The mount point is covered (`place.rs`): until the disk is mounted, and whenever it is not, programs that use it get
//!      an error.
//!   3. `supervise.rs` runs the mount program (`bucket-mount/`), one process per mount, and starts it again when it ends.
//!      Changes that it had not saved are in its stage folder, and the next one saves them.
//!   4. Whenever the status of a mount changes, hosts that read GET /mounts/watch receive it. Every 30 s the mount is
//!      checked: that it is still mounted, and that the bucket answers.
//!   5. Before a pause, POST /mounts/flush saves everything and reports what is left. After a resume, POST /wake closes
//!      connections and drops what is cached; in a fork it discards unsaved changes and removes all mounts.

mod mount;
mod mount_table;
mod place;
mod program;
mod report;
mod stages;
mod supervise;
mod wanted;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{Method, Response, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::agent::Agent;
use crate::reply::{Failure, HandlerError, HandlerResult, read_json, send_all, send_json, start};

use mount::Mount;
use place::Places;
use report::Report;
pub use stages::Stages;
use wanted::{MOUNTS_MAX, Wanted, check};

/// Time for saving when a mount is removed.
const UNMOUNT_DEADLINE: Duration = Duration::from_secs(20);
/// A mount program that does not answer by then is killed; it saves nothing that a resume needs.
const WAKE_DEADLINE: Duration = Duration::from_secs(2);
/// Time until the directories of new mounts are covered.
const COVER_LIMIT: Duration = Duration::from_secs(5);
const FLUSH_DEADLINE_MAX: Duration = Duration::from_secs(300);

pub struct Mounts {
    table: Mutex<BTreeMap<String, Arc<Mount>>>,
    /// One change of the set at a time.
    changing: tokio::sync::Mutex<()>,
    changed: Arc<watch::Sender<u64>>,
    program: Mutex<Option<Arc<MountProgramFile>>>,
    /// The last mounts that were removed with unsaved files. The host may not have received the answer that said so.
    unsaved_removals: Mutex<Vec<Removed>>,
    places: Places,
}

/// The mount program, and where it stages changes.
pub struct MountProgramFile {
    pub file: ProgramFile,
    pub stages: Stages,
}

pub enum ProgramFile {
    /// Only in memory: the initramfs that it was in is gone.
    Open(File),
    Path(PathBuf),
}

impl Default for Mounts {
    fn default() -> Self {
        let changed = Arc::new(watch::Sender::new(0));
        Self {
            table: Mutex::default(),
            changing: tokio::sync::Mutex::default(),
            changed,
            program: Mutex::default(),
            unsaved_removals: Mutex::default(),
            places: Places::default(),
        }
    }
}

#[derive(Deserialize)]
struct SetRequest {
    mounts: Vec<Wanted>,
}

#[derive(Deserialize)]
struct FlushRequest {
    deadline_ms: u64,
}

#[derive(Serialize)]
struct Reports {
    mounts: Vec<Report>,
}

#[derive(Serialize)]
struct Applied {
    mounts: Vec<Report>,
    removed: Vec<Removed>,
}

#[derive(Clone, Serialize)]
struct Removed {
    id: String,
    /// Their changes remain in the stage folder of the mount.
    unsaved_files: u64,
}

pub async fn handle(
    agent: &Arc<Agent>,
    method: &Method,
    path: &str,
    body: &mut RecvStream,
    respond: &mut SendResponse<Bytes>,
) -> HandlerResult {
    match (method.as_str(), path) {
        ("GET", "") => send_json(respond, StatusCode::OK, &agent.mounts.reports()),
        ("GET", "/watch") => agent.mounts.stream_to_host(respond).await,
        ("PUT", "") => {
            let request: SetRequest = read_json(body).await?;
            let removed = agent.mounts.with_earlier(set_mounts(agent, request.mounts).await?);
            send_json(respond, StatusCode::OK, &Applied { mounts: agent.mounts.reports().mounts, removed })
        }
        ("POST", "/flush") => {
            let request: FlushRequest = read_json(body).await?;
            let deadline = Duration::from_millis(request.deadline_ms).min(FLUSH_DEADLINE_MAX);
            flush(agent, deadline).await;
            send_json(respond, StatusCode::OK, &agent.mounts.reports())
        }
        _ => Err(Failure::new(StatusCode::NOT_FOUND, "not_found", format!("no such endpoint: {method} /mounts{path}"))
            .into()),
    }
}

impl Mounts {
    pub fn set_program(&self, program: MountProgramFile) {
        *self.program.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(program));
    }

    fn program(&self) -> Option<Arc<MountProgramFile>> {
        self.program.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Mount>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> Vec<Arc<Mount>> {
        self.table().values().cloned().collect()
    }

    fn unsaved_removals(&self) -> MutexGuard<'_, Vec<Removed>> {
        self.unsaved_removals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember(&self, removed: &Removed) {
        let mut all = self.unsaved_removals();
        all.retain(|earlier| earlier.id != removed.id);
        if removed.unsaved_files > 0 {
            all.push(removed.clone());
        }
        let excess = all.len().saturating_sub(MOUNTS_MAX);
        all.drain(..excess);
    }

    /// With the newest of those that were removed before. A host that knows of them ignores them.
    fn with_earlier(&self, mut removed: Vec<Removed>) -> Vec<Removed> {
        let earlier = self.unsaved_removals().clone();
        for one in earlier.into_iter().rev() {
            if removed.len() < MOUNTS_MAX && removed.iter().all(|known| known.id != one.id) {
                removed.push(one);
            }
        }
        removed
    }

    fn reports(&self) -> Reports {
        Reports { mounts: self.all().iter().map(|mount| mount.report()).collect() }
    }

    /// GET /mounts/watch: a line with all reports now and after each change, until the host disconnects.
    async fn stream_to_host(&self, respond: &mut SendResponse<Bytes>) -> HandlerResult {
        let head = Response::builder().status(StatusCode::OK).header("content-type", "application/x-ndjson");
        let mut send = start(respond, head)?;
        let mut changed = self.changed.subscribe();
        loop {
            changed.borrow_and_update();
            let mut line = serde_json::to_vec(&self.reports()).unwrap_or_default();
            line.push(b'\n');
            send_all(&mut send, line.into()).await?;
            tokio::select! {
                _ = changed.changed() => {}
                _ = std::future::poll_fn(|context| send.poll_reset(context)) => return Err(HandlerError::Disconnected),
            }
        }
    }

    async fn send_to_all(&self, command: serde_json::Value, limit: Duration) {
        let tasks = self.all().into_iter().map(|mount| {
            let command = command.clone();
            tokio::spawn(async move { mount.command(command, limit).await })
        });
        for task in tasks.collect::<Vec<_>>() {
            let _ = task.await;
        }
    }
}

/// Saves everything, all mounts at the same time. What is left is in the reports.
async fn flush(agent: &Arc<Agent>, deadline: Duration) {
    let command = json!({"do": "flush", "deadline_ms": deadline.as_millis() as u64});
    let tasks = agent.mounts.all().into_iter().map(|mount| {
        let (agent, command) = (agent.clone(), command.clone());
        tokio::spawn(async move {
            if mount.command(command, deadline + Duration::from_secs(1)).await.is_none() {
                mount.count_left_behind(&agent).await;
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        let _ = task.await;
    }
}

/// Returns when the mounts that are not wanted any more are gone, and programs cannot write to the directories below new ones.
async fn set_mounts(agent: &Arc<Agent>, wanted: Vec<Wanted>) -> HandlerResult<Vec<Removed>> {
    check(&wanted)?;
    if agent.mounts.program().is_none() && !wanted.is_empty() {
        let message = "this machine has no mount program";
        return Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, "disks_unavailable", message).into());
    }
    let _alone = agent.mounts.changing.lock().await;
    // First, and at the same time: a mount whose token has changed must not wait until another one is saved or answers.
    let updates: Vec<_> = wanted.iter().filter_map(|wanted| update_known(agent, wanted)).collect();
    let stays = |mount: &Arc<Mount>| wanted.iter().any(|wanted| wanted.is_same_place(&mount.wanted()));
    let removed: Vec<Arc<Mount>> = agent.mounts.all().into_iter().filter(|mount| !stays(mount)).collect();
    let removed = remove(agent, removed).await;
    let mut added = Vec::new();
    for wanted in wanted {
        if agent.mounts.table().contains_key(&wanted.id) {
            continue;
        }
        agent.mounts.unsaved_removals().retain(|removed| removed.id != wanted.id);
        let mount = Mount::new(wanted, agent.mounts.changed.clone());
        agent.mounts.table().insert(mount.wanted().id.clone(), mount.clone());
        tokio::spawn(supervise::supervise(agent.clone(), mount.clone()));
        added.push(mount);
    }
    for update in updates {
        let _ = update.await;
    }
    let all_covered = async {
        for mount in added {
            mount.wait_until_covered().await;
        }
    };
    // A path can lead through a mount that hangs.
    let _ = tokio::time::timeout(COVER_LIMIT, all_covered).await;
    Ok(removed)
}

/// None: it is new, or must be mounted at another place.
fn update_known(agent: &Arc<Agent>, wanted: &Wanted) -> Option<JoinHandle<()>> {
    let mount = agent.mounts.table().get(&wanted.id).cloned()?;
    if !wanted.is_same_place(&mount.wanted()) {
        return None;
    }
    let (agent, wanted) = (agent.clone(), wanted.clone());
    Some(tokio::spawn(async move { mount.update(&agent, wanted).await }))
}

async fn remove(agent: &Arc<Agent>, mounts: Vec<Arc<Mount>>) -> Vec<Removed> {
    let tasks: Vec<_> = mounts
        .into_iter()
        .map(|mount| {
            let agent = agent.clone();
            tokio::spawn(async move {
                let command = json!({"do": "unmount", "deadline_ms": UNMOUNT_DEADLINE.as_millis() as u64});
                mount.stop(&agent, command, UNMOUNT_DEADLINE + Duration::from_secs(2)).await;
                mount.remove_empty_stage(&agent).await;
                let id = mount.wanted().id;
                agent.mounts.table().remove(&id);
                agent.mounts.changed.send_modify(|count| *count += 1);
                let removed = Removed { id, unsaved_files: mount.unsaved_files() };
                agent.mounts.remember(&removed);
                removed
            })
        })
        .collect();
    let mut removed = Vec::new();
    for task in tasks {
        removed.extend(task.await);
    }
    removed
}

/// Called after a restore, before the programs of the user run on the new machine's network. A fork has no disks: what its
/// source had not saved is the source's.
pub async fn after_restore(agent: &Arc<Agent>, is_new_machine: bool) {
    if !is_new_machine {
        agent.mounts.all().iter().for_each(|mount| mount.expire());
        agent.mounts.send_to_all(json!({"do": "wake"}), WAKE_DEADLINE).await;
        return;
    }
    let _alone = agent.mounts.changing.lock().await;
    let mounts = std::mem::take(&mut *agent.mounts.table());
    let tasks = mounts.into_values().map(|mount| {
        let agent = agent.clone();
        tokio::spawn(async move { mount.stop(&agent, json!({"do": "discard"}), WAKE_DEADLINE).await })
    });
    for task in tasks.collect::<Vec<_>>() {
        let _ = task.await;
    }
    agent.mounts.unsaved_removals().clear();
    // Also those of mounts that were detached before everything was saved.
    if let Some(program) = agent.mounts.program() {
        let _ = agent.workers.run(move || program.stages.clear()).await;
    }
    agent.mounts.changed.send_modify(|count| *count += 1);
}
