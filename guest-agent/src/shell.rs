//! POST /shell: a login shell on a terminal, for the lifetime of the stream. The request body carries the client's
//! frames (input and terminal size); the response is the terminal's output.
//!
//! Output is read from the terminal only when the previous piece has been accepted, so output that is not read stops
//! the program where a real terminal would. When the stream or the session ends the terminal is closed and its
//! processes receive SIGHUP, as when a terminal window is closed; a program that should survive must use nohup or
//! setsid.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{Response, StatusCode};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use crate::agent::Agent;
use crate::exec::frames::{FrameReader, truncated_frame};
use crate::login_shell::find_login_shell;
use crate::reaper::{self, Child, ExitStatus};
use crate::reply::{Failure, HandlerError, HandlerResult, send_all, start};
use crate::spawn::{Program, environment, spawn};
use crate::sys;
use crate::terminal::{self, Size, TERM, Terminal};

const INPUT: u8 = 0;
const RESIZE: u8 = 1;
const PAYLOAD_MAX_BYTES: usize = 1024 * 1024;
const PIECE_BYTES: usize = 16 * 1024;
/// Ctrl-D, sent when the client has finished sending.
const END_OF_INPUT: &[u8] = &[4];
const END_OF_INPUT_INTERVAL: Duration = Duration::from_secs(1);
/// How long a shell may take to exit after SIGHUP, and how long output is read after the shell has exited.
const EXIT_GRACE: Duration = Duration::from_secs(2);

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; PIECE_BYTES]);
}

pub async fn shell(agent: &Arc<Agent>, body: RecvStream, respond: &mut SendResponse<Bytes>) -> HandlerResult {
    let failed = |message: String| Failure::new(StatusCode::BAD_GATEWAY, "shell_failed", message);
    let (terminal, program_side) =
        terminal::open(Size::default()).map_err(|error| failed(format!("terminal: {error}")))?;
    let (worker, stdio) = (agent.clone(), program_side.try_clone());
    let stdio = stdio.map_err(|error| failed(format!("terminal: {error}")))?;
    let starting = agent.workers.run(move || start_shell(&worker, stdio));
    let started = starting.await.map_err(|error| failed(format!("worker: {error}")))?;
    let (leader, exit_status) = started.map_err(failed)?;
    let leader = KillOnDrop(Some(leader));

    let head = Response::builder().status(StatusCode::OK).header("content-type", "application/octet-stream");
    let mut send = start(respond, head)?;
    let output = forward_output(&terminal, program_side, exit_status, &mut send);
    let input = forward_input(&terminal, FrameReader::new(body));
    let ended = tokio::select! {
        finished = output => finished,
        stopped = input => stopped.map(|never| match never {}),
    };
    drop(leader);
    ended
}

/// Runs on a worker thread.
fn start_shell(agent: &Agent, stdio: OwnedFd) -> Result<(Child, oneshot::Receiver<ExitStatus>), String> {
    let shell = find_login_shell().ok_or("the image has no login shell")?;
    let extra = BTreeMap::from([("SHELL".to_owned(), shell.path.clone())]);
    let mut env = environment(agent, extra);
    env.entry("TERM".to_owned()).or_insert_with(|| TERM.to_owned());
    let copy = || stdio.try_clone().map_err(|error| format!("terminal: {error}"));
    let program = Program {
        cmd: shell.path,
        name: Some(shell.name),
        args: Vec::new(),
        env,
        cwd: None,
        stdin: copy()?,
        stdout: copy()?,
        stderr: copy()?,
        terminal: true,
        cgroup: None,
        run_as: None,
    };
    let starting = reaper::begin_start();
    let pid = spawn(&program).map_err(|error| format!("{}: {error:?}", program.cmd))?;
    Ok(starting.register(pid))
}

/// Kills the shell a grace period after it was dropped. The SIGHUP comes from closing the terminal, which is dropped too.
struct KillOnDrop(Option<Child>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let Some(leader) = self.0.take().filter(|leader| !reaper::is_reaped(leader)) else { return };
        let kill = move || {
            if !reaper::is_reaped(&leader) {
                // SAFETY: plain kill of a process group whose leader has not been reaped.
                unsafe { libc::kill(-leader.pid, libc::SIGKILL) };
            }
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(async move {
                sleep(EXIT_GRACE).await;
                kill();
            })),
            Err(_) => kill(),
        }
    }
}

/// Runs until the shell has exited and all its output is sent.
async fn forward_output(
    terminal: &Terminal,
    program_side: OwnedFd,
    mut exit_status: oneshot::Receiver<ExitStatus>,
    send: &mut SendStream<Bytes>,
) -> HandlerResult {
    // The agent keeps the program's side open while the shell runs: otherwise a shell that closes its terminal for a
    // moment would look as if it had exited.
    let mut program_side = Some(program_side);
    let deadline = sleep(Duration::MAX);
    tokio::pin!(deadline);
    loop {
        let piece = tokio::select! {
            biased;
            piece = next_piece(terminal, send) => piece?,
            _ = &mut exit_status, if program_side.is_some() => {
                program_side = None;
                deadline.as_mut().reset(Instant::now() + EXIT_GRACE);
                continue;
            }
            () = &mut deadline, if program_side.is_none() => None,
        };
        match piece {
            Some(piece) => send_all(send, piece).await?,
            None => return Ok(send.send_data(Bytes::new(), true)?),
        }
    }
}

/// None when no process has the terminal open any more.
async fn next_piece(terminal: &Terminal, send: &mut SendStream<Bytes>) -> HandlerResult<Option<Bytes>> {
    std::future::poll_fn(|context| {
        if send.poll_reset(context).is_ready() {
            return Poll::Ready(Err(HandlerError::Disconnected));
        }
        while let Ok(mut guard) = ready!(terminal.master.poll_read_ready(context)) {
            let read = SCRATCH.with_borrow_mut(|scratch| {
                let count = sys::read(terminal.master.get_ref().as_fd(), scratch)?;
                Ok::<_, std::io::Error>(Bytes::copy_from_slice(scratch.get(..count).unwrap_or_default()))
            });
            match read {
                Ok(piece) if !piece.is_empty() => return Poll::Ready(Ok(Some(piece))),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => guard.clear_ready(),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                _ => break,
            }
        }
        Poll::Ready(Ok(None))
    })
    .await
}

/// Ends only with an error: a client that has finished sending still wants to read the remaining output.
async fn forward_input(terminal: &Terminal, mut frames: FrameReader) -> HandlerResult<Infallible> {
    while let Some((kind, length)) = frames.header().await? {
        match (kind, length) {
            (INPUT, 0..=PAYLOAD_MAX_BYTES) => {
                let mut left = length;
                while left > 0 {
                    let piece = frames.take(left).await?.ok_or_else(truncated_frame)?;
                    left -= piece.len();
                    write_all(terminal, &piece).await;
                    frames.release(piece.len())?;
                }
            }
            (RESIZE, 4) => {
                let mut payload = frames.payload(length).await?;
                let size = Size { rows: payload.get_u16(), cols: payload.get_u16() };
                // An invalid size leaves the terminal unchanged.
                let _ = terminal.resize(size);
            }
            _ => return Err(Failure::invalid("unknown shell frame").into()),
        }
    }
    // Repeated, because a Ctrl-D that arrives while a line editor sets up its terminal is lost.
    loop {
        write_all(terminal, END_OF_INPUT).await;
        sleep(END_OF_INPUT_INTERVAL).await;
    }
}

/// Bytes that a closed terminal does not accept are discarded.
async fn write_all(terminal: &Terminal, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let Ok(mut ready) = terminal.master.writable().await else { return };
        match ready.try_io(|master| sys::write(master.get_ref().as_fd(), bytes)) {
            Ok(Ok(count)) => bytes = bytes.get(count..).unwrap_or_default(),
            Ok(Err(_)) => return,
            Err(_would_block) => {}
        }
    }
}
