//! POST /exec: runs a program and streams what it says.
//!
//! The request body is frames: one `command` (JSON), then, if it asked for stdin, `stdin` frames; the end of the body
//! is the end of stdin. The answer is frames too: `started`, any number of `stdout` and `stderr`, and `exit`; or
//! `error` alone when the program could not start. `exit` comes when the program has been reaped AND both pipes are at
//! their end: a background child that keeps them open keeps the exec open, as the spec has it.
//!
//! Back-pressure: output is read from the pipe only when the piece before it has been taken by HTTP/2's windows, and
//! stdin's window is only given back when the program has read. So a `yes` nobody reads costs 64 KiB in the pipe and
//! one piece here.
//!
//! When the stream is reset, or the session ends, this future is dropped or stops, and dropping `Group` kills the
//! program's whole session at once. There is no SIGTERM first: the caller is gone, nobody would see a farewell.

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
use crate::reap::{self, Ending};
use crate::reply::{Done, Failure, JSON_MAX_BYTES, Stop, parse_json, send_all, start};
use crate::spawn::{Program, Refused, check_strings, describe, environment, spawn};
use crate::sys;

use frames::{COMMAND, ERROR, EXIT, FrameReader, STARTED, json_frame};
use group::Group;
use pipes::{Output, feed_stdin};

/// After a time limit has struck, so long may a process outside the session still hold the pipes.
const LINGER: Duration = Duration::from_secs(2);
const FOREVER: Duration = Duration::from_secs(10 * 365 * 86_400);

#[derive(Deserialize)]
struct Command {
    cmd: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    cwd: Option<String>,
    /// Whether stdin frames follow; without it the program reads /dev/null.
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

pub async fn exec(agent: &Arc<Agent>, body: RecvStream, respond: &mut SendResponse<Bytes>) -> Done {
    let mut frames = FrameReader::new(body);
    let command: Command = parse_json(&frames.read_whole(COMMAND, JSON_MAX_BYTES).await?)?;
    check_strings([&command.cmd].into_iter().chain(&command.args).chain(&command.cwd), &command.env)?;
    let timeout = command.timeout_ms.map_or(FOREVER, |ms| Duration::from_millis(ms).min(FOREVER));
    let (program, pipes) = prepare(agent, command).map_err(|error| Failure::internal("pipes", &error))?;

    let outcome = start_program(agent, program).await?;

    let head = Response::builder().status(StatusCode::OK).header("content-type", "application/x-warren-frames");
    let mut send = start(respond, head)?;
    match outcome {
        Ok((group, ending)) => {
            send.send_data(json_frame(STARTED, &Started { pid: group.pid() }), false)?;
            let exit = watch(&group, ending, pipes, frames, &mut send, timeout).await?;
            group.let_go();
            send.send_data(json_frame(EXIT, &exit), true)?;
        }
        Err(refused) => send.send_data(json_frame(ERROR, &not_started(refused)), true)?,
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
    };
    Ok((program, Pipes { stdin, stdout, stderr }))
}

type StartOutcome = Result<(Group, oneshot::Receiver<Ending>), Refused>;

/// On a worker: exec may have to read the program from a slow or hanging filesystem. Should the request be gone by
/// the time it has started, the result is dropped, and the group with it.
async fn start_program(agent: &Agent, program: Program) -> Done<StartOutcome> {
    let work = agent.work.clone();
    let starting = agent.work.run(move || {
        let starting = reap::begin_start();
        let (leader, ending) = starting.register(spawn(&program)?);
        Ok((Group::new(leader, work), ending))
    });
    Ok(starting.await.map_err(|error| Failure::internal("worker", &error))?)
}

fn not_started(refused: Refused) -> NotStarted {
    match refused {
        Refused::NotFound => NotStarted { kind: "not_found", message: "command not found".into() },
        Refused::NotExecutable(error) => NotStarted { kind: "not_executable", message: describe(&error) },
        Refused::Cwd(error) => NotStarted { kind: "other", message: format!("cwd: {}", describe(&error)) },
        Refused::Other(error) => NotStarted { kind: "other", message: describe(&error) },
    }
}

async fn watch(
    group: &Group,
    ending: oneshot::Receiver<Ending>,
    pipes: Pipes,
    frames: FrameReader,
    send: &mut SendStream<Bytes>,
    timeout: Duration,
) -> Done<Exit> {
    let setup = |error| Stop::Refused(Failure::internal("pipes", &error));
    let mut output = Output::new(pipes.stdout, pipes.stderr).map_err(setup)?;
    let feeding = feed_stdin(pipes.stdin, frames);
    let running = async {
        while let Some(piece) = output.next(send).await? {
            send_all(send, piece).await?;
        }
        let mut ending = ending;
        std::future::poll_fn(|context| pipes::poll_unless_reset(send, context, &mut ending)).await
    };
    let clock = sleep_until(Instant::now() + timeout);
    tokio::pin!(feeding, running, clock);
    let (mut fed, mut timed_out) = (false, false);
    let ending = loop {
        tokio::select! {
            ended = &mut running => break ended?,
            outcome = &mut feeding, if !fed => {
                outcome?;
                fed = true;
            }
            () = &mut clock => {
                if timed_out {
                    break Ending::Signaled(libc::SIGKILL);
                }
                timed_out = true;
                group.kill();
                clock.as_mut().reset(Instant::now() + LINGER);
            }
        }
    };
    let (code, signal) = match ending {
        Ending::Exited(code) => (Some(code), None),
        Ending::Signaled(signal) => (None, Some(signal)),
    };
    Ok(Exit { code, signal, timed_out })
}
