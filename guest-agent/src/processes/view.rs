//! Process records as the caller sees them: ProcessView of `protocol/src/process.ts`.

use std::sync::Arc;

use serde::Serialize;

use crate::agent::Agent;
use crate::reaper::ExitStatus;
use crate::reply::{Failure, HandlerResult};
use crate::terminal::{self, Foreground};

use super::process::{Kind, Process, State};
use super::signals::signal_name;

#[derive(Serialize)]
pub struct View {
    process_id: String,
    kind: Kind,
    pid: i32,
    state: State,
    leader_exited: bool,
    tree_exited: bool,
    created_at: String,
    finished_at: Option<String>,
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<String>,
    output: OutputView,
    cmd: String,
    args: Vec<String>,
    cwd: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    foreground: Option<Foreground>,
}

#[derive(Serialize)]
struct OutputView {
    oldest_seq: u64,
    newest_seq: u64,
    bytes: usize,
}

/// Without the foreground process.
pub fn view_of(agent: &Agent, process: &Process) -> View {
    let output = agent.processes.with_journals(|journals| match journals.get(process.key) {
        Some(journal) if journal.newest() > 0 => {
            OutputView { oldest_seq: journal.oldest(), newest_seq: journal.newest(), bytes: journal.bytes() }
        }
        _ => OutputView { oldest_seq: 0, newest_seq: 0, bytes: 0 },
    });
    let inner = process.lock();
    let (exit_code, signal) = match inner.exit_status {
        Some(ExitStatus::Exited(code)) => (Some(code), None),
        Some(ExitStatus::Signaled(number)) => (None, Some(signal_name(number))),
        None => (None, None),
    };
    View {
        process_id: process.id.clone(),
        kind: process.kind,
        pid: inner.leader.as_ref().map_or(0, |leader| leader.pid),
        state: inner.state,
        leader_exited: inner.state.is_ended(),
        tree_exited: inner.tree_exited,
        created_at: process.created_at.clone(),
        finished_at: inner.finished_at.clone(),
        exit_code,
        signal,
        output,
        cmd: process.cmd.clone(),
        args: process.args.clone(),
        cwd: process.cwd.clone(),
        foreground: None,
    }
}

/// With the foreground process of PTYs, which is foregrounds up on a worker thread.
pub async fn views_of(agent: &Arc<Agent>, processes: Vec<Arc<Process>>) -> HandlerResult<Vec<View>> {
    let mut foregrounds = foregrounds_of(agent, &processes).await?.into_iter();
    let view = |process: &Arc<Process>| {
        let foreground = foregrounds.next().flatten();
        let view = view_of(agent, process);
        // It may have exited during the look-up.
        View { foreground: foreground.filter(|_| !view.leader_exited), ..view }
    };
    Ok(processes.iter().map(view).collect())
}

/// The view of a process that was just started, with its foreground process.
pub async fn first_view_of(agent: &Arc<Agent>, process: Arc<Process>, view: View) -> HandlerResult<View> {
    let foreground = foregrounds_of(agent, &[process]).await?.pop().flatten();
    Ok(View { foreground, ..view })
}

async fn foregrounds_of(agent: &Arc<Agent>, processes: &[Arc<Process>]) -> HandlerResult<Vec<Option<Foreground>>> {
    let group =
        |process: &Arc<Process>| process.lock().terminal.as_ref().and_then(|terminal| terminal.foreground_group());
    let groups: Vec<Option<i32>> = processes.iter().map(group).collect();
    if groups.iter().all(Option::is_none) {
        return Ok(Vec::new());
    }
    let foregrounds =
        agent.workers.run(move || groups.into_iter().map(|group| Some((group?, terminal::describe(group?)))).collect());
    let foregrounds: Vec<Option<(i32, Option<Foreground>)>> =
        foregrounds.await.map_err(|error| Failure::internal("worker", &error))?;
    let merged = |(process, found): (&Arc<Process>, Option<(i32, Option<Foreground>)>)| {
        let (group, seen) = found?;
        seen.or_else(|| as_started(process, group))
    };
    Ok(processes.iter().zip(foregrounds).map(merged).collect())
}

/// Used while /proc does not show the new program yet: the leader of a new process is what it was started as.
fn as_started(process: &Process, group: i32) -> Option<Foreground> {
    let leads = process.lock().leader.as_ref().is_some_and(|leader| leader.pid == group);
    leads.then(|| Foreground { pid: group, cmd: process.cmd.clone(), args: process.args.clone() })
}
