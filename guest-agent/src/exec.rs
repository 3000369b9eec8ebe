//! POST /exec: runs a program and streams its output.
//!
//! The request body consists of frames: one `command` (JSON), then, if the command asked for stdin, `stdin` frames; the
//! end of the body is the end of stdin. The response consists of frames too: `started`, any number of `stdout` and
//! `stderr`, and `exit`; or a single `error` when the program could not be started. `exit` is sent when the program has
//! been reaped and both pipes have reached their end, so a background child that keeps them open keeps the exec open.
//!
//! Back-pressure: the next output is read from the pipe only when HTTP/2's flow control has accepted the previous
//! piece, and stdin's window is released only when the program has read. A `yes` whose output is not read therefore
//! costs 64 KiB in the pipe and one piece here.
//!
//! When the stream is reset or the session ends, this future stops or is dropped, and dropping `Group` kills the
//! program's whole session immediately. There is no SIGTERM first, because the caller has disconnected and could not
//! see the program's reaction.

pub mod frames;
mod group;
mod pipes;

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{Response, StatusCode};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use crate::agent::Agent;
use crate::reaper::{self, ExitStatus};
use crate::reply::{Failure, HandlerError, HandlerResult, JSON_MAX_BYTES, parse_json, send_all, start};
use crate::spans::step;
use crate::spawn::{Program, SpawnError, check_strings, describe, environment, spawn};
use crate::sys;

use frames::{COMMAND, ERROR, EXIT, FrameReader, STARTED, json_frame};
use group::Group;
use pipes::{Output, feed_stdin};

/// How long processes outside the session may hold the pipes open after a timeout.
const PIPE_GRACE: Duration = Duration::from_secs(2);
const FOREVER: Duration = Duration::from_secs(10 * 365 * 86_400);

#[derive(Deserialize)]
struct Command {
    cmd: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    cwd: Option<String>,
    /// Whether stdin frames follow; otherwise the program reads /dev/null.
    #[serde(default)]
    stdin: bool,
    timeout_ms: Option<u64>,
}

#[derive(Serialize)]
struct Started {
    pid: i32,
}

#[derive(Serialize)]
struct NotStarted {
    kind: &'static str,
    message: String,
}

#[derive(Serialize)]
struct Exit {
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    timed_out: bool,
}

/// The agent's ends of the program's pipes.
struct Pipes {
    stdin: Option<OwnedFd>,
    stdout: OwnedFd,
    stderr: OwnedFd,
}

pub async fn exec(agent: &Arc<Agent>, body: RecvStream, respond: &mut SendResponse<Bytes>) -> HandlerResult {
    let mut frames = FrameReader::new(body);
    let command: Command = parse_json(&step("read command", frames.read_whole(COMMAND, JSON_MAX_BYTES)).await?)?;
    check_strings([&command.cmd].into_iter().chain(&command.args).chain(&command.cwd), &command.env)?;
    let timeout = command.timeout_ms.map_or(FOREVER, |ms| Duration::from_millis(ms).min(FOREVER));
    let (program, pipes) = prepare(agent, command).map_err(|error| Failure::internal("pipes", &error))?;

    let outcome = step("start program", start_program(agent, program)).await?;

    let head = Response::builder().status(StatusCode::OK).header("content-type", "application/x-warren-frames");
    let mut send = start(respond, head)?;
    match outcome {
        Ok((group, exit_status)) => {
            send.send_data(json_frame(STARTED, &Started { pid: group.pid() }), false)?;
            let exit = watch(&group, exit_status, pipes, frames, &mut send, timeout).await?;
            group.release();
            send.send_data(json_frame(EXIT, &exit), true)?;
        }
        Err(error) => send.send_data(json_frame(ERROR, &not_started(error)), true)?,
    }
    Ok(())
}

fn prepare(agent: &Agent, command: Command) -> std::io::Result<(Program, Pipes)> {
    let (child_stdin, stdin) = if command.stdin {
        let (reader, writer) = sys::pipe()?;
        (reader, Some(writer))
    } else {
        (OwnedFd::from(OpenOptions::new().read(true).open("/dev/null")?), None)
    };
    let (stdout, child_stdout) = sys::pipe()?;
    let (stderr, child_stderr) = sys::pipe()?;
    let program = Program {
        env: environment(agent, command.env),
        cmd: command.cmd,
        name: None,
        args: command.args,
        cwd: command.cwd,
        stdin: child_stdin,
        stdout: child_stdout,
        stderr: child_stderr,
        terminal: false,
        cgroup: None,
        run_as: None,
    };
    Ok((program, Pipes { stdin, stdout, stderr }))
}

type StartOutcome = Result<(Group, oneshot::Receiver<ExitStatus>), SpawnError>;

/// Runs on a worker thread, because exec may have to read the program from a slow or hanging filesystem. If the request
/// ends before the program has started, dropping the result drops the group and kills it.
async fn start_program(agent: &Agent, program: Program) -> HandlerResult<StartOutcome> {
    let workers = agent.workers.clone();
    let starting = agent.workers.run(move || {
        let starting = reaper::begin_start();
        let (leader, exit_status) = starting.register(spawn(&program)?);
        Ok((Group::new(leader, workers), exit_status))
    });
    Ok(starting.await.map_err(|error| Failure::internal("worker", &error))?)
}

fn not_started(spawn_error: SpawnError) -> NotStarted {
    match spawn_error {
        SpawnError::NotFound => NotStarted { kind: "not_found", message: "command not found".into() },
        SpawnError::NotExecutable(error) => NotStarted { kind: "not_executable", message: describe(&error) },
        SpawnError::Cwd(error) => NotStarted { kind: "other", message: format!("cwd: {}", describe(&error)) },
        SpawnError::Other(error) => NotStarted { kind: "other", message: describe(&error) },
    }
}

async fn watch(
    group: &Group,
    exit_status: oneshot::Receiver<ExitStatus>,
    pipes: Pipes,
    frames: FrameReader,
    send: &mut SendStream<Bytes>,
    timeout: Duration,
) -> HandlerResult<Exit> {
    let setup = |error| HandlerError::Failed(Failure::internal("pipes", &error));
    let mut output = Output::new(pipes.stdout, pipes.stderr).map_err(setup)?;
    let feeding = feed_stdin(pipes.stdin, frames);
    let running = async {
        while let Some(piece) = output.next(send).await? {
            send_all(send, piece).await?;
        }
        let mut exit_status = exit_status;
        std::future::poll_fn(|context| pipes::poll_unless_reset(send, context, &mut exit_status)).await
    };
    let clock = sleep_until(Instant::now() + timeout);
    tokio::pin!(feeding, running, clock);
    let (mut fed, mut timed_out) = (false, false);
    let exit_status = loop {
        tokio::select! {
            ended = &mut running => break ended?,
            outcome = &mut feeding, if !fed => {
                outcome?;
                fed = true;
            }
            () = &mut clock => {
                if timed_out {
                    break ExitStatus::Signaled(libc::SIGKILL);
                }
                timed_out = true;
                group.kill();
                clock.as_mut().reset(Instant::now() + PIPE_GRACE);
            }
        }
    };
    let (code, signal) = match exit_status {
        ExitStatus::Exited(code) => (Some(code), None),
        ExitStatus::Signaled(signal) => (None, Some(signal)),
    };
    Ok(Exit { code, signal, timed_out })
}
