//! POST /processes: starts a process and responds after the exec. The start runs as a separate task: if the caller
//! disconnects meanwhile, the process still appears in the list.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use h2::RecvStream;
use http::StatusCode;
use serde::Deserialize;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

use crate::agent::Agent;
use crate::login_shell::find_login_shell;
use crate::process_tree::ProcessTree;
use crate::reaper::{self, Child, ExitStatus};
use crate::reply::{Failure, HandlerResult, parse_json, read_body};
use crate::spawn::{Program, SpawnError, check_strings, describe, environment, spawn};
use crate::sys;
use crate::terminal::{self, Size, TERM, Terminal};

use super::build_step::{BuildStep, PreparedStep, StepFiles};
use super::journal::Stream;
use super::process::{Kind, Process, Started};
use super::pump::{Pump, Source};
use super::view::{View, view_of};
use super::{LIVE_MAX, NewProcess, RECORDS_MAX};

/// A script of 64 KiB and as many variables, and JSON may take six bytes for one.
const START_MAX_BYTES: usize = 1024 * 1024;
/// Limit for cmd and args in a record: 256 records must not fill the memory of a small machine.
const RECORDED_ARGS_MAX_BYTES: usize = 16 * 1024;

#[derive(Deserialize)]
struct StartRequest {
    cmd: Option<String>,
    args: Option<Vec<String>>,
    cwd: Option<String>,
    env: Option<BTreeMap<String, String>>,
    pty: Option<Size>,
    live_max: Option<usize>,
    records_max: Option<usize>,
    build: Option<BuildStep>,
}

/// What to run, with defaults filled in.
struct ResolvedCommand {
    cmd: String,
    name: Option<String>,
    args: Vec<String>,
    cwd: Option<String>,
    env: BTreeMap<String, String>,
    pty: Option<Size>,
    step: Option<PreparedStep>,
}

/// Returns the process and its view at the time of its start: a short program may have exited by the time of the
/// response.
pub async fn start(agent: &Arc<Agent>, mut body: RecvStream) -> HandlerResult<(Arc<Process>, View)> {
    let text = read_body(&mut body, START_MAX_BYTES).await?;
    let mut request: StartRequest = parse_json(&text)?;
    request.cmd = request.cmd.filter(|cmd| !cmd.is_empty());
    request.cwd = request.cwd.filter(|cwd| !cwd.is_empty());
    let words = request.cmd.iter().chain(request.args.iter().flatten()).chain(&request.cwd);
    check_strings(words, request.env.get_or_insert_default())?;

    let (sender, receiver) = oneshot::channel();
    let agent = agent.clone();
    tokio::spawn(async move {
        // The caller may have disconnected; the record still shows the process.
        let _ = sender.send(create(&agent, request).await);
    });
    receiver.await.map_err(|_| Failure::internal("start", &Error::other("the start task was dropped")))?
}

async fn create(agent: &Arc<Agent>, request: StartRequest) -> HandlerResult<(Arc<Process>, View)> {
    let (live_max, records_max) = (request.live_max.unwrap_or(LIVE_MAX), request.records_max.unwrap_or(RECORDS_MAX));
    let (mut resolved, cwd) = resolve(agent, request).await?;
    let kind = if resolved.pty.is_some() { Kind::Pty } else { Kind::Process };
    let args = truncate_args(&resolved.cmd, &resolved.args);
    let new = NewProcess { kind, cmd: truncate(&resolved.cmd, RECORDED_ARGS_MAX_BYTES), args, cwd };
    let process = agent.processes.add(new, live_max, records_max)?;
    let files = resolved.step.as_mut().map(PreparedStep::take_files);
    match launch(agent, &process, resolved).await {
        Ok(view) => {
            if let Some(files) = files {
                tokio::spawn(remove_after_exit(process.clone(), files));
            }
            Ok((process, view))
        }
        Err(failure) => {
            process.mark_failed();
            Err(failure.into())
        }
    }
}

/// Also returns the directory it will run in, for the record.
async fn resolve(agent: &Agent, request: StartRequest) -> HandlerResult<(ResolvedCommand, String)> {
    let StartRequest { cmd, args, cwd, env, pty, build, .. } = request;
    let (args, mut env) = (args.unwrap_or_default(), env.unwrap_or_default());
    if cmd.is_none() && pty.is_none() {
        return Err(invalid_cmd("cmd is required unless pty is given").into());
    }
    let wants_shell = cmd.is_none();
    let lookup = agent.workers.run(move || (wants_shell.then(find_login_shell).flatten(), Path::new("/root").is_dir()));
    let (shell, has_home) = lookup.await.map_err(|error| Failure::internal("worker", &error))?;
    let home = if has_home { "/root" } else { "/" };
    let record_cwd = cwd.clone().unwrap_or_else(|| home.to_owned());
    let (cmd, name) = match (cmd, shell) {
        (Some(cmd), _) => (cmd, None),
        (None, Some(shell)) => {
            env.entry("SHELL".to_owned()).or_insert_with(|| shell.path.clone());
            (shell.path, Some(shell.name))
        }
        (None, None) => return Err(invalid_cmd("the image has no login shell").into()),
    };
    let (mut env, step) = match build {
        Some(build) => {
            let (folder, mut env) = (record_cwd.clone(), env);
            let prepared = agent.workers.run(move || build.prepare(&folder, &mut env).map(|step| (env, Some(step))));
            prepared.await.map_err(|error| Failure::internal("worker", &error))??
        }
        None => (environment(agent, env), None),
    };
    if pty.is_some() {
        env.entry("TERM".to_owned()).or_insert_with(|| TERM.to_owned());
    }
    Ok((ResolvedCommand { cmd, name, args, cwd, env, pty, step }, record_cwd))
}

/// The files exist as long as the program that they are for.
async fn remove_after_exit(process: Arc<Process>, files: StepFiles) {
    process.wait_until(|inner| inner.state.is_ended().then_some(())).await;
    drop(files);
}

fn truncate_args(cmd: &str, args: &[String]) -> Vec<String> {
    let mut left = RECORDED_ARGS_MAX_BYTES.saturating_sub(cmd.len());
    let mut truncated = Vec::new();
    for arg in args {
        if arg.len() > left {
            truncated.push("…".to_owned());
            break;
        }
        left -= arg.len();
        truncated.push(arg.clone());
    }
    truncated
}

fn truncate(text: &str, max_bytes: usize) -> String {
    let end = (0..=max_bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text.get(..end).unwrap_or_default().to_owned()
}

/// The agent's ends of the pipes or the terminal.
struct AgentEnds {
    sources: Vec<Source>,
    stdin: Option<Arc<AsyncFd<OwnedFd>>>,
    terminal: Option<Arc<Terminal>>,
    /// Kept open until the leader has exited: while no process has this side open, the master reads end-of-file.
    program_side: Option<OwnedFd>,
}

async fn launch(
    agent: &Arc<Agent>,
    process: &Arc<Process>,
    resolved: ResolvedCommand,
) -> std::result::Result<View, Failure> {
    let prepared = match resolved.pty {
        Some(size) => prepare_terminal(resolved, size),
        None => prepare_pipes(resolved),
    };
    let (program, ends) = prepared.map_err(|error| Failure::internal("pipes", &error))?;
    let (worker, id) = (agent.clone(), process.id.clone());
    let run = agent.workers.run(move || run_in_tree(&worker, &id, program));
    let run = run.await.map_err(|error| Failure::internal("worker", &error))?;
    let (leader, exit_status, tree) = run.map_err(spawn_failure)?;
    process.mark_running(Started { leader, tree, stdin: ends.stdin, terminal: ends.terminal });
    let view = view_of(agent, process);
    let pump = Pump::new(agent.clone(), process.clone(), ends.sources, ends.program_side, exit_status);
    tokio::spawn(pump.run());
    Ok(view)
}

fn prepare_terminal(resolved: ResolvedCommand, size: Size) -> Result<(Program, AgentEnds)> {
    let (terminal, program_side) = terminal::open(size)?;
    let terminal = Arc::new(terminal);
    let stdio = [program_side.try_clone()?, program_side.try_clone()?, program_side.try_clone()?];
    let sources = vec![Source::new(Stream::Pty, terminal.clone())];
    let ends = AgentEnds { sources, stdin: None, terminal: Some(terminal), program_side: Some(program_side) };
    Ok((program(resolved, stdio, true), ends))
}

fn prepare_pipes(resolved: ResolvedCommand) -> Result<(Program, AgentEnds)> {
    let (child_stdin, stdin) = match &resolved.step {
        Some(_) => (OwnedFd::from(File::open("/dev/null")?), None),
        None => sys::pipe().map(|(reader, writer)| (reader, Some(writer)))?,
    };
    let (stdout, child_stdout) = sys::pipe()?;
    let (stderr, child_stderr) = sys::pipe()?;
    let stdin = stdin.map(watch_stdin).transpose()?;
    let sources = vec![Source::of_pipe(Stream::Stdout, stdout)?, Source::of_pipe(Stream::Stderr, stderr)?];
    let ends = AgentEnds { sources, stdin, terminal: None, program_side: None };
    Ok((program(resolved, [child_stdin, child_stdout, child_stderr], false), ends))
}

fn watch_stdin(stdin: OwnedFd) -> Result<Arc<AsyncFd<OwnedFd>>> {
    sys::set_nonblocking(stdin.as_fd())?;
    Ok(Arc::new(sys::watch(stdin, Interest::WRITABLE)?))
}

fn program(resolved: ResolvedCommand, [stdin, stdout, stderr]: [OwnedFd; 3], terminal: bool) -> Program {
    let ResolvedCommand { cmd, name, args, cwd, env, step, .. } = resolved;
    let run_as = step.map(|step| step.run_as);
    Program { cmd, name, args, env, cwd, stdin, stdout, stderr, terminal, cgroup: None, run_as }
}

type Run = (Child, oneshot::Receiver<ExitStatus>, ProcessTree);

/// Runs on a worker thread.
fn run_in_tree(agent: &Agent, id: &str, mut program: Program) -> std::result::Result<Run, SpawnError> {
    let mut tree = None;
    if let Some((created, directory)) = agent.trees.create(id).map_err(SpawnError::Other)? {
        tree = Some(created);
        program.cgroup = Some(directory);
    }
    let starting = reaper::begin_start();
    match spawn(&program) {
        Ok(pid) => {
            let (leader, exit_status) = starting.register(pid);
            Ok((leader, exit_status, tree.unwrap_or(ProcessTree::Session(pid))))
        }
        Err(error) => {
            if let Some(tree) = tree {
                tree.remove();
            }
            Err(error)
        }
    }
}

fn spawn_failure(spawn_error: SpawnError) -> Failure {
    match spawn_error {
        SpawnError::NotFound => invalid_cmd("command not found"),
        SpawnError::NotExecutable(error) => invalid_cmd(&describe(&error)),
        SpawnError::Cwd(error) => Failure::new(StatusCode::BAD_REQUEST, "invalid_cwd", describe(&error)),
        SpawnError::Other(error)
            if matches!(error.raw_os_error(), Some(libc::E2BIG | libc::ENAMETOOLONG | libc::ELOOP)) =>
        {
            invalid_cmd(&describe(&error))
        }
        SpawnError::Other(error) => Failure::internal("start", &error),
    }
}

fn invalid_cmd(message: &str) -> Failure {
    Failure::new(StatusCode::BAD_REQUEST, "invalid_cmd", message)
}
