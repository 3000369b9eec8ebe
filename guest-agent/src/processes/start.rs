//! POST /processes. Answers after the exec. The start itself is a task of its own: a caller who goes away while it is
//! under way finds the process in the list.

use std::collections::BTreeMap;
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
use crate::login::find_login_shell;
use crate::reap::{self, Child, Ending};
use crate::reply::{Done, Failure, parse_json, read_body};
use crate::spawn::{Program, Refused, check_strings, describe, environment, spawn};
use crate::sys;
use crate::terminal::{self, Size, TERM, Terminal};
use crate::tree::Tree;

use super::journal::Stream;
use super::process::{Kind, Process, Started};
use super::pump::{Pump, Source};
use super::view::{View, view_of};
use super::{Draft, LIVE_MAX, RECORDS_MAX};

const START_MAX_BYTES: usize = 256 * 1024;
/// Of cmd and args in a record: 256 of them must not fill a small machine.
const ARGS_KEPT_BYTES: usize = 16 * 1024;

#[derive(Deserialize)]
struct Wanted {
    cmd: Option<String>,
    args: Option<Vec<String>>,
    cwd: Option<String>,
    env: Option<BTreeMap<String, String>>,
    pty: Option<Size>,
    live_max: Option<usize>,
    records_max: Option<usize>,
}

/// What to run, when all that was left out is filled in.
struct Resolved {
    cmd: String,
    name: Option<String>,
    args: Vec<String>,
    cwd: Option<String>,
    env: BTreeMap<String, String>,
    pty: Option<Size>,
}

/// The record as it was when the program had just started: a short one may be over by the time of the answer.
pub async fn start(agent: &Arc<Agent>, mut body: RecvStream) -> Done<(Arc<Process>, View)> {
    let text = read_body(&mut body, START_MAX_BYTES).await?;
    let mut wanted: Wanted = parse_json(&text)?;
    wanted.cmd = wanted.cmd.filter(|cmd| !cmd.is_empty());
    wanted.cwd = wanted.cwd.filter(|cwd| !cwd.is_empty());
    let words = wanted.cmd.iter().chain(wanted.args.iter().flatten()).chain(&wanted.cwd);
    check_strings(words, wanted.env.get_or_insert_default())?;

    let (tell, told) = oneshot::channel();
    let agent = agent.clone();
    tokio::spawn(async move {
        // Nobody may be waiting any more: the record tells.
        let _ = tell.send(make(&agent, wanted).await);
    });
    told.await.map_err(|_| Failure::internal("start", &Error::other("it ended without an answer")))?
}

async fn make(agent: &Arc<Agent>, wanted: Wanted) -> Done<(Arc<Process>, View)> {
    let (live_max, records_max) = (wanted.live_max.unwrap_or(LIVE_MAX), wanted.records_max.unwrap_or(RECORDS_MAX));
    let (resolved, cwd) = resolve(agent, wanted).await?;
    let kind = if resolved.pty.is_some() { Kind::Pty } else { Kind::Process };
    let args = kept_args(&resolved.cmd, &resolved.args);
    let draft = Draft { kind, cmd: cut(&resolved.cmd, ARGS_KEPT_BYTES), args, cwd };
    let process = agent.processes.add(draft, live_max, records_max)?;
    match launch(agent, &process, resolved).await {
        Ok(view) => Ok((process, view)),
        Err(failure) => {
            process.has_failed();
            Err(failure.into())
        }
    }
}

/// Also gives the directory it will run in, for the record.
async fn resolve(agent: &Agent, wanted: Wanted) -> Done<(Resolved, String)> {
    let Wanted { cmd, args, cwd, env, pty, .. } = wanted;
    let (args, mut env) = (args.unwrap_or_default(), env.unwrap_or_default());
    if cmd.is_none() && pty.is_none() {
        return Err(invalid_cmd("cmd is required unless pty is given").into());
    }
    let wants_shell = cmd.is_none();
    let looked = agent.work.run(move || (wants_shell.then(find_login_shell).flatten(), Path::new("/root").is_dir()));
    let (shell, has_home) = looked.await.map_err(|error| Failure::internal("worker", &error))?;
    let home = if has_home { "/root" } else { "/" };
    let record_cwd = cwd.clone().unwrap_or_else(|| home.to_owned());
    let (cmd, name) = match (cmd, shell) {
        (Some(cmd), _) => (cmd, None),
        (None, Some(shell)) => {
            env.entry("SHELL".to_owned()).or_insert_with(|| shell.path.clone());
            (shell.path, Some(shell.name))
        }
        (None, None) => return Err(invalid_cmd("there is no login shell").into()),
    };
    let mut env = environment(agent, env);
    if pty.is_some() {
        env.entry("TERM".to_owned()).or_insert_with(|| TERM.to_owned());
    }
    Ok((Resolved { cmd, name, args, cwd, env, pty }, record_cwd))
}

fn kept_args(cmd: &str, args: &[String]) -> Vec<String> {
    let mut left = ARGS_KEPT_BYTES.saturating_sub(cmd.len());
    let mut kept = Vec::new();
    for arg in args {
        if arg.len() > left {
            kept.push("…".to_owned());
            break;
        }
        left -= arg.len();
        kept.push(arg.clone());
    }
    kept
}

fn cut(text: &str, max_bytes: usize) -> String {
    let end = (0..=max_bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text.get(..end).unwrap_or_default().to_owned()
}

/// The agent's ends.
struct Ends {
    sources: Vec<Source>,
    stdin: Option<Arc<AsyncFd<OwnedFd>>>,
    terminal: Option<Arc<Terminal>>,
    /// Kept until the leader has ended: while nobody has this side open the master reads as ended.
    other_side: Option<OwnedFd>,
}

async fn launch(agent: &Arc<Agent>, process: &Arc<Process>, resolved: Resolved) -> std::result::Result<View, Failure> {
    let prepared = match resolved.pty {
        Some(size) => prepare_terminal(resolved, size),
        None => prepare_pipes(resolved),
    };
    let (program, ends) = prepared.map_err(|error| Failure::internal("pipes", &error))?;
    let (worker, id) = (agent.clone(), process.id.clone());
    let run = agent.work.run(move || run_in_tree(&worker, &id, program));
    let run = run.await.map_err(|error| Failure::internal("worker", &error))?;
    let (leader, ending, tree) = run.map_err(refusal)?;
    process.has_started(Started { leader, tree, stdin: ends.stdin, terminal: ends.terminal });
    let view = view_of(agent, process);
    let pump = Pump::new(agent.clone(), process.clone(), ends.sources, ends.other_side, ending);
    tokio::spawn(pump.run());
    Ok(view)
}

fn prepare_terminal(resolved: Resolved, size: Size) -> Result<(Program, Ends)> {
    let (terminal, other) = terminal::open(size)?;
    let terminal = Arc::new(terminal);
    let stdio = [other.try_clone()?, other.try_clone()?, other.try_clone()?];
    let sources = vec![Source::new(Stream::Pty, terminal.clone())];
    let ends = Ends { sources, stdin: None, terminal: Some(terminal), other_side: Some(other) };
    Ok((program(resolved, stdio, true), ends))
}

fn prepare_pipes(resolved: Resolved) -> Result<(Program, Ends)> {
    let (child_stdin, stdin) = sys::pipe()?;
    let (stdout, child_stdout) = sys::pipe()?;
    let (stderr, child_stderr) = sys::pipe()?;
    sys::set_nonblocking(stdin.as_fd())?;
    let stdin = Arc::new(sys::watch(stdin, Interest::WRITABLE)?);
    let sources = vec![Source::of_pipe(Stream::Stdout, stdout)?, Source::of_pipe(Stream::Stderr, stderr)?];
    let ends = Ends { sources, stdin: Some(stdin), terminal: None, other_side: None };
    Ok((program(resolved, [child_stdin, child_stdout, child_stderr], false), ends))
}

fn program(resolved: Resolved, [stdin, stdout, stderr]: [OwnedFd; 3], terminal: bool) -> Program {
    let Resolved { cmd, name, args, cwd, env, .. } = resolved;
    Program { cmd, name, args, env, cwd, stdin, stdout, stderr, terminal, cgroup: None }
}

type Run = (Child, oneshot::Receiver<Ending>, Tree);

/// On a worker.
fn run_in_tree(agent: &Agent, id: &str, mut program: Program) -> std::result::Result<Run, Refused> {
    let mut tree = None;
    if let Some((made, directory)) = agent.trees.make(id).map_err(Refused::Other)? {
        tree = Some(made);
        program.cgroup = Some(directory);
    }
    let starting = reap::begin_start();
    match spawn(&program) {
        Ok(pid) => {
            let (leader, ending) = starting.register(pid);
            Ok((leader, ending, tree.unwrap_or(Tree::Session(pid))))
        }
        Err(refused) => {
            if let Some(tree) = tree {
                tree.remove();
            }
            Err(refused)
        }
    }
}

fn refusal(refused: Refused) -> Failure {
    match refused {
        Refused::NotFound => invalid_cmd("command not found"),
        Refused::NotExecutable(error) => invalid_cmd(&describe(&error)),
        Refused::Cwd(error) => Failure::new(StatusCode::BAD_REQUEST, "invalid_cwd", describe(&error)),
        Refused::Other(error)
            if matches!(error.raw_os_error(), Some(libc::E2BIG | libc::ENAMETOOLONG | libc::ELOOP)) =>
        {
            invalid_cmd(&describe(&error))
        }
        Refused::Other(error) => Failure::internal("start", &error),
    }
}

fn invalid_cmd(message: &str) -> Failure {
    Failure::new(StatusCode::BAD_REQUEST, "invalid_cmd", message)
}
