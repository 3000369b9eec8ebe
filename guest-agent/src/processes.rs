//! Managed processes. They belong to the machine, not to a request or a host session.
//!
//! The lifecycle of one:
//!
//!   1. `start.rs` creates its record, its cgroup and its pipes or terminal, and execs the program on a worker thread.
//!   2. `pump.rs`, a separate task, reads all output into the journal as long as any process can write to it, and
//!      receives the leader's exit status from the reaper. It waits briefly for slow readers (`readers.rs`).
//!   3. Whenever a child of the agent has exited, `watch_trees` below checks whether a process tree has become empty: the
//!      last process of a tree is always the agent's own child or an orphan that it inherited.
//!   4. `control.rs` sends signals and terminates trees; `input.rs` writes input; `connect.rs` streams the journal.
//!   5. The record is kept until it is the oldest ended one and a new process needs its place.
//!
//! The contract is `protocol/src/guest-processes.ts`.

mod build_step;
mod connect;
mod control;
mod input;
mod journal;
mod journals;
mod process;
mod pump;
mod readers;
mod signals;
mod start;
mod view;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::request::Parts;
use http::{Method, StatusCode};
use serde::Serialize;

use crate::agent::Agent;
use crate::process_tree::ProcessTree;
use crate::reaper;
use crate::reply::{Failure, HandlerResult, send_json};
use crate::sys;

use journals::Journals;
use process::{Kind, Process};
use view::{View, first_view_of, views_of};

const LIVE_MAX: usize = 64;
const RECORDS_MAX: usize = 256;

#[derive(Default)]
pub struct Processes {
    table: Mutex<Table>,
    journals: Mutex<Journals>,
}

#[derive(Default)]
struct Table {
    /// Ordered by creation, oldest first.
    records: Vec<Arc<Process>>,
    created: u64,
    /// Process trees of dropped records in which processes were still alive.
    orphaned_trees: Vec<ProcessTree>,
}

/// The fields of a new record.
struct NewProcess {
    kind: Kind,
    cmd: String,
    args: Vec<String>,
    cwd: String,
}

impl Processes {
    pub fn with_journals<T>(&self, action: impl FnOnce(&mut Journals) -> T) -> T {
        action(&mut self.journals.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn with_table<T>(&self, action: impl FnOnce(&mut Table) -> T) -> T {
        action(&mut self.table.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn list(&self) -> Vec<Arc<Process>> {
        self.with_table(|table| table.records.clone())
    }

    fn get(&self, id: &str) -> HandlerResult<Arc<Process>> {
        let found = self.with_table(|table| table.records.iter().find(|process| process.id == id).cloned());
        Ok(found.ok_or_else(not_found)?)
    }

    fn add(&self, new: NewProcess, live_max: usize, records_max: usize) -> HandlerResult<Arc<Process>> {
        let (process, dropped) = self.with_table(|table| table.add(new, live_max, records_max))?;
        self.with_journals(|journals| {
            journals.add(process.key);
            dropped.iter().for_each(|old| journals.remove(old.key));
        });
        if !dropped.is_empty() {
            sys::trim_heap();
        }
        Ok(process)
    }

    /// Kills all process trees, when the agent itself exits.
    pub fn kill_all(&self) {
        for process in self.list() {
            if let Some(tree) = &process.lock().tree {
                tree.kill();
            }
        }
    }
}

impl Table {
    fn add(
        &mut self,
        new: NewProcess,
        live_max: usize,
        records_max: usize,
    ) -> HandlerResult<(Arc<Process>, Vec<Arc<Process>>)> {
        let live = self.records.iter().filter(|process| !process.lock().state.is_ended()).count();
        if live >= live_max {
            let message = format!("{live_max} processes are running, which is the limit");
            return Err(Failure::new(StatusCode::TOO_MANY_REQUESTS, "process_limit_reached", message).into());
        }
        let mut dropped = Vec::new();
        while self.records.len() >= records_max {
            let Some(oldest) = self.records.iter().position(|process| process.lock().state.is_ended()) else { break };
            let old = self.records.remove(oldest);
            self.orphaned_trees.extend(old.lock().tree.take());
            dropped.push(old);
        }
        self.orphaned_trees.retain(|tree| match tree.is_empty() {
            true => {
                tree.remove();
                false
            }
            false => true,
        });
        self.created += 1;
        let mut id = format!("proc_{}", sys::random_hex());
        while self.records.iter().any(|process| process.id == id) {
            id = format!("proc_{}x{}", sys::random_hex(), self.created);
        }
        let NewProcess { kind, cmd, args, cwd } = new;
        let process = Arc::new(Process::new(id, self.created, kind, cmd, args, cwd));
        self.records.push(process.clone());
        Ok((process, dropped))
    }
}

fn not_found() -> Failure {
    Failure::new(StatusCode::NOT_FOUND, "process_not_found", "process not found")
}

/// Minimum time between two checks: a fork bomb may produce thousands of exits at once.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(2);
/// Fallback for trees whose last process is not a child of the agent: it was moved there by hand, or adopted by another
/// subreaper.
const FALLBACK_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Runs forever, next to the channel.
pub async fn watch_trees(agent: Arc<Agent>) {
    let mut exits = reaper::exits();
    loop {
        let waits_for_tree = |process: &Arc<Process>| {
            process.check_tree();
            let inner = process.lock();
            inner.state.is_ended() && !inner.tree_exited
        };
        let waiting = agent.processes.list().iter().filter(|process| waits_for_tree(process)).count();
        let timeout = if waiting > 0 { FALLBACK_CHECK_INTERVAL } else { Duration::from_secs(3600) };
        let exited = tokio::time::timeout(timeout, exits.changed()).await;
        if matches!(exited, Ok(Err(_))) {
            return;
        }
        tokio::time::sleep(MIN_CHECK_INTERVAL).await;
    }
}

#[derive(Serialize)]
struct List {
    processes: Vec<View>,
}

#[derive(Serialize)]
struct Empty {}

/// Handles a request; `path` is the part after `/processes`.
pub async fn handle(
    agent: &Arc<Agent>,
    head: &Parts,
    path: &str,
    body: RecvStream,
    respond: &mut SendResponse<Bytes>,
) -> HandlerResult {
    let query = head.uri.query();
    let (id, verb) = path.trim_start_matches('/').split_once('/').unwrap_or((path.trim_start_matches('/'), ""));
    match (&head.method, id, verb) {
        (&Method::POST, "", "") => {
            let (process, view) = start::start(agent, body).await?;
            return send_json(respond, StatusCode::OK, &first_view_of(agent, process, view).await?);
        }
        (&Method::GET, "", "") => {
            let processes = views_of(agent, agent.processes.list()).await?;
            return send_json(respond, StatusCode::OK, &List { processes });
        }
        _ => {}
    }
    let process = agent.processes.get(id)?;
    match (&head.method, verb) {
        (&Method::GET, "") => {}
        (&Method::DELETE, "") => control::delete(agent, &process, query).await?,
        (&Method::GET, "wait") => control::wait(&process, query).await?,
        (&Method::GET, "connect") => return connect::connect(agent, &process, query, respond).await,
        (&Method::POST, "input") => {
            let written = input::write(&process, body, respond).await?;
            return send_json(respond, StatusCode::OK, &written);
        }
        (&Method::POST, "stdin/close") => {
            input::close(&process).await?;
            return send_json(respond, StatusCode::OK, &Empty {});
        }
        (&Method::POST, "resize") => {
            input::resize(&process, body).await?;
            return send_json(respond, StatusCode::OK, &Empty {});
        }
        (&Method::POST, "signal") => {
            control::signal(&process, body).await?;
            return send_json(respond, StatusCode::OK, &Empty {});
        }
        (method, verb) => {
            let message = format!("no such endpoint: {method} /processes/<id>/{verb}");
            return Err(Failure::new(StatusCode::NOT_FOUND, "not_found", message).into());
        }
    }
    send_json(respond, StatusCode::OK, &views_of(agent, vec![process]).await?.pop())
}
