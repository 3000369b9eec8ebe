//! Managed processes (spec 2.11, 4.4): they belong to the machine, not to a request or a session.
//!
//! The life of one:
//!
//!   1. `start.rs` makes its record, its cgroup and its pipes or terminal, and execs the program on a worker.
//!   2. `pump.rs`, a task of its own, takes all output into the journal for as long as anyone can write some; it hears
//!      from the reaper how the leader ended. It waits a little for those who read along (`readers.rs`).
//!   3. `watch_trees` below looks, whenever a child of the agent has died, whether a tree has become empty: the last of
//!      a tree is always the agent's own child or an orphan it inherited.
//!   4. `end.rs` sends signals and ends trees; `input.rs` writes; `connect.rs` reads the journal to whoever asks.
//!   5. The record stays until it is the oldest ended one and a new one needs its place.
//!
//! The contract is `protocol/src/guest-processes.ts`.

mod connect;
mod end;
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
use crate::reap;
use crate::reply::{Done, Failure, send_json};
use crate::sys;
use crate::tree::Tree;

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
    /// Oldest first.
    records: Vec<Arc<Process>>,
    made: u64,
    /// Groups of records that were dropped while something in them still lived.
    left_over: Vec<Tree>,
}

/// What a new record is made of.
struct Draft {
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

    fn get(&self, id: &str) -> Done<Arc<Process>> {
        let found = self.with_table(|table| table.records.iter().find(|process| process.id == id).cloned());
        Ok(found.ok_or_else(not_found)?)
    }

    fn add(&self, draft: Draft, live_max: usize, records_max: usize) -> Done<Arc<Process>> {
        let (process, dropped) = self.with_table(|table| table.add(draft, live_max, records_max))?;
        self.with_journals(|journals| {
            journals.add(process.key);
            dropped.iter().for_each(|old| journals.remove(old.key));
        });
        if !dropped.is_empty() {
            sys::give_memory_back();
        }
        Ok(process)
    }

    /// For agents that end: all trees at once.
    pub fn kill_all(&self) {
        for process in self.list() {
            if let Some(tree) = &process.facts().tree {
                tree.kill();
            }
        }
    }
}

impl Table {
    fn add(&mut self, draft: Draft, live_max: usize, records_max: usize) -> Done<(Arc<Process>, Vec<Arc<Process>>)> {
        let live = self.records.iter().filter(|process| !process.facts().state.is_ended()).count();
        if live >= live_max {
            let message = format!("{live_max} processes are running, which is the limit");
            return Err(Failure::new(StatusCode::TOO_MANY_REQUESTS, "process_limit_reached", message).into());
        }
        let mut dropped = Vec::new();
        while self.records.len() >= records_max {
            let Some(oldest) = self.records.iter().position(|process| process.facts().state.is_ended()) else { break };
            let old = self.records.remove(oldest);
            self.left_over.extend(old.facts().tree.take());
            dropped.push(old);
        }
        self.left_over.retain(|tree| match tree.is_empty() {
            true => {
                tree.remove();
                false
            }
            false => true,
        });
        self.made += 1;
        let mut id = format!("proc_{}", sys::random_hex());
        while self.records.iter().any(|process| process.id == id) {
            id = format!("proc_{}x{}", sys::random_hex(), self.made);
        }
        let Draft { kind, cmd, args, cwd } = draft;
        let process = Arc::new(Process::new(id, self.made, kind, cmd, args, cwd));
        self.records.push(process.clone());
        Ok((process, dropped))
    }
}

fn not_found() -> Failure {
    Failure::new(StatusCode::NOT_FOUND, "process_not_found", "process not found")
}

/// Between two looks: a fork bomb dies by the thousand.
const LOOK_PAUSE: Duration = Duration::from_millis(2);
/// For trees whose last member is nobody's child of ours: moved there by hand, or adopted by a subreaper elsewhere.
const LOOK_ANYWAY: Duration = Duration::from_secs(1);

/// Runs for ever, beside the channel.
pub async fn watch_trees(agent: Arc<Agent>) {
    let mut deaths = reap::deaths();
    loop {
        let waits_for_tree = |process: &Arc<Process>| {
            process.look_at_tree();
            let facts = process.facts();
            facts.state.is_ended() && !facts.tree_exited
        };
        let waiting = agent.processes.list().iter().filter(|process| waits_for_tree(process)).count();
        let patience = if waiting > 0 { LOOK_ANYWAY } else { Duration::from_secs(3600) };
        let died = tokio::time::timeout(patience, deaths.changed()).await;
        if matches!(died, Ok(Err(_))) {
            return;
        }
        tokio::time::sleep(LOOK_PAUSE).await;
    }
}

#[derive(Serialize)]
struct List {
    processes: Vec<View>,
}

#[derive(Serialize)]
struct Empty {}

/// `path` is what follows `/processes`.
pub async fn answer(
    agent: &Arc<Agent>,
    head: &Parts,
    path: &str,
    body: RecvStream,
    respond: &mut SendResponse<Bytes>,
) -> Done {
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
        (&Method::DELETE, "") => end::delete(agent, &process, query).await?,
        (&Method::GET, "wait") => end::wait(&process, query).await?,
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
            end::signal(&process, body).await?;
            return send_json(respond, StatusCode::OK, &Empty {});
        }
        (method, verb) => {
            let message = format!("no such endpoint: {method} /processes/<id>/{verb}");
            return Err(Failure::new(StatusCode::NOT_FOUND, "not_found", message).into());
        }
    }
    send_json(respond, StatusCode::OK, &views_of(agent, vec![process]).await?.pop())
}
