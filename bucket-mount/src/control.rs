//! What the guest agent asks of the program: lines of JSON on its standard input, each answered by a line on its standard
//! output.
//!
//!   {"id":1,"do":"status"}                         → {"id":1,"ok":true,"status":{…}}
//!   {"id":2,"do":"check"}                          asks the bucket as well, so that the answer says whether it is reachable
//!   {"id":3,"do":"flush","deadline_ms":5000}       saves everything; ok is false if something is unsaved at the deadline
//!   {"id":4,"do":"wake"}                           after a resume: closes connections and drops what is cached
//!   {"id":7,"do":"connect","address":…,"token":…}  uses another proxy or token from now on
//!   {"id":5,"do":"discard"}                        in a fork: forgets unsaved changes, unmounts and exits
//!   {"id":6,"do":"unmount","deadline_ms":5000}     saves everything, unmounts and exits
//!
//! The program sends {"event":"mounted"} when it serves requests, {"event":"failed","message":…} before it exits because
//! it cannot, and {"event":"status","status":{…}} when something has changed that the user should know.

use std::io::Write;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::file::save::save_all;
use crate::fuse::device::unmount;
use crate::mount::{Conditions, Mount, Problem, cut};

#[derive(Deserialize)]
struct Command {
    id: u64,
    #[serde(rename = "do")]
    action: String,
    deadline_ms: Option<u64>,
    address: Option<SocketAddr>,
    token: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Status {
    pub conditions: Conditions,
    pub read_only: bool,
    pub dirty_files: usize,
    pub dirty_bytes: u64,
    /// Of some of the files.
    pub dirty_names: Vec<String>,
    /// How many files are kept because they conflict with the bucket, also those of earlier runs.
    pub conflicts_total: usize,
    pub problems: Vec<Problem>,
    /// Why the bucket cannot be reached; absent if it can, or was not asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreachable: Option<String>,
}

#[derive(Serialize)]
struct Answer {
    id: u64,
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    status: Status,
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    Mounted,
    Failed { message: String },
    Status { status: Status },
}

pub fn send(event: &impl Serialize) {
    let mut line = serde_json::to_vec(event).unwrap_or_default();
    line.push(b'\n');
    // If the agent is gone, the end of standard input says so.
    let _ = std::io::stdout().write_all(&line);
}

pub fn status(mount: &Mount) -> Status {
    let dirty = mount.dirty_nodes();
    Status {
        conditions: mount.tested_conditions.get(),
        read_only: mount.config.read_only,
        dirty_files: dirty.len(),
        dirty_bytes: dirty.iter().filter_map(|node| node.stage()).map(|stage| stage.local_bytes()).sum(),
        dirty_names: dirty.iter().take(NAMES_MAX).filter_map(|node| Some(cut(&mount.key(node).ok()?))).collect(),
        conflicts_total: mount.stages.count_kept(),
        problems: mount.problems(),
        unreachable: None,
    }
}

/// As many as the guest agent passes on.
const NAMES_MAX: usize = 8;

/// Whether the program keeps running.
#[derive(PartialEq)]
pub enum Next {
    Continue,
    Exit,
}

/// A slow command does not delay the next one: a wake must not wait for a flush.
pub async fn handle(mount: &Rc<Mount>, line: &str) -> Next {
    let Ok(command) = serde_json::from_str::<Command>(line) else { return Next::Continue };
    let deadline = Duration::from_millis(command.deadline_ms.unwrap_or(DEFAULT_DEADLINE_MS));
    let mut answer = Answer { id: command.id, ok: true, message: None, status: status(mount) };
    let mut next = Next::Continue;
    match command.action.as_str() {
        "status" => {}
        "check" => {
            let failed = match tokio::time::timeout(deadline, mount.client.check_bucket()).await {
                Ok(result) => result.err().map(|failure| failure.to_string()),
                Err(_) => Some("the bucket did not answer in time".to_owned()),
            };
            answer.ok = failed.is_none();
            answer.status.unreachable = failed;
        }
        "flush" => {
            let is_saved = flush(mount, deadline).await;
            answer = Answer { ok: is_saved, status: status(mount), ..answer };
        }
        "wake" => wake(mount),
        "connect" => match (command.address, command.token) {
            (Some(address), Some(token)) => {
                mount.client.transport.connect_to(address, token);
                mount.connected.notify_waiters();
            }
            _ => answer.ok = false,
        },
        "discard" => {
            discard(mount);
            answer.status = status(mount);
            answer.message = unmount(&mount.config.mount_point, true).err().map(|error| error.to_string());
            next = Next::Exit;
        }
        "unmount" => {
            answer.ok = flush(mount, deadline).await;
            let path = &mount.config.mount_point;
            // Programs that use it must not prevent a detach.
            answer.message = unmount(path, false).or_else(|_| unmount(path, true)).err().map(|error| error.to_string());
            answer.status = status(mount);
            next = Next::Exit;
        }
        unknown => {
            answer.ok = false;
            answer.message = Some(format!("unknown command {unknown}"));
        }
    }
    send(&answer);
    next
}

const DEFAULT_DEADLINE_MS: u64 = 10_000;

/// Whether everything is saved.
async fn flush(mount: &Rc<Mount>, deadline: Duration) -> bool {
    let started = Instant::now();
    while let Some(left) = deadline.checked_sub(started.elapsed()) {
        let saving = mount.clone();
        // At the deadline it continues: an upload that is cut off would have to start again.
        let task = tokio::task::spawn_local(async move { save_all(&saving).await });
        if !matches!(tokio::time::timeout(left, task).await, Ok(Ok(0))) {
            return false;
        }
        // A program may have changed a file meanwhile.
        if mount.dirty_nodes().is_empty() {
            return true;
        }
    }
    false
}

/// The connections are those of a machine that no longer runs, and the bucket may have changed for weeks.
fn wake(mount: &Mount) {
    mount.client.transport.close_all();
    for node in mount.tree.borrow().all() {
        node.fresh_until.set(None);
        if let Some(directory) = node.directory.as_deref() {
            directory.expire();
        }
    }
}

/// In a fork: the changes belong to the sandbox that it was made from.
fn discard(mount: &Mount) {
    for node in mount.tree.borrow().all() {
        let stage = node.stage.borrow_mut().take();
        if let Some(stage) = stage {
            stage.discard();
        }
    }
    mount.client.transport.close_all();
}
