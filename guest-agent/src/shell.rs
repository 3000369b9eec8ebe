//! POST /shell: a login shell on a terminal, for as long as the stream lives. The body is what the client sends (spec
//! 4.11), frame by frame; the answer is what the terminal shows.
//!
//! Output is read from the terminal only when the piece before it has been taken, so a flood nobody reads stops where a
//! real terminal would stop it. When the stream or the session ends the terminal is hung up, as when a window is
//! closed: whoever meant to stay has made sure of it with nohup or setsid.

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
use crate::exec::frames::{FrameReader, cut_short};
use crate::login::find_login_shell;
use crate::reap::{self, Child, Ending};
use crate::reply::{Done, Failure, Stop, send_all, start};
use crate::spawn::{Program, environment, spawn};
use crate::sys;
use crate::terminal::{self, Size, TERM, Terminal};

const INPUT: u8 = 0;
const RESIZE: u8 = 1;
const PAYLOAD_MAX_BYTES: usize = 1024 * 1024;
const PIECE_BYTES: usize = 16 * 1024;
/// Ctrl-D, for a caller who has said all.
const END_OF_INPUT: &[u8] = &[4];
const END_AGAIN: Duration = Duration::from_secs(1);
/// For a shell that is hung up, and for the last output of one that has ended.
const PATIENCE: Duration = Duration::from_secs(2);

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; PIECE_BYTES]);
}

pub async fn shell(agent: &Arc<Agent>, body: RecvStream, respond: &mut SendResponse<Bytes>) -> Done {
    let failed = |message: String| Failure::new(StatusCode::BAD_GATEWAY, "shell_failed", message);
    let (terminal, other) = terminal::open(Size::default()).map_err(|error| failed(format!("terminal: {error}")))?;
    let (worker, stdio) = (agent.clone(), other.try_clone());
    let stdio = stdio.map_err(|error| failed(format!("terminal: {error}")))?;
    let starting = agent.work.run(move || start_shell(&worker, stdio));
    let started = starting.await.map_err(|error| failed(format!("worker: {error}")))?;
    let (leader, ending) = started.map_err(failed)?;
    let leader = HungUp(Some(leader));

    let head = Response::builder().status(StatusCode::OK).header("content-type", "application/octet-stream");
    let mut send = start(respond, head)?;
    let showing = show(&terminal, other, ending, &mut send);
    let typing = type_frames(&terminal, FrameReader::new(body));
    let ended = tokio::select! {
        shown = showing => shown,
        stopped = typing => stopped.map(|never| match never {}),
    };
    drop(leader);
    ended
}

/// On a worker.
fn start_shell(agent: &Agent, stdio: OwnedFd) -> Result<(Child, oneshot::Receiver<Ending>), String> {
    let shell = find_login_shell().ok_or("there is no login shell")?;
    let asked = BTreeMap::from([("SHELL".to_owned(), shell.path.clone())]);
    let mut env = environment(agent, asked);
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
    };
    let starting = reap::begin_start();
    let pid = spawn(&program).map_err(|refused| format!("{}: {refused:?}", program.cmd))?;
    Ok(starting.register(pid))
}

/// The terminal is closed by whoever drops it, which is the SIGHUP. A shell that ignores it is not waited for.
struct HungUp(Option<Child>);

impl Drop for HungUp {
    fn drop(&mut self) {
        let Some(leader) = self.0.take().filter(|leader| !reap::is_reaped(leader)) else { return };
        let insist = move || {
            if !reap::is_reaped(&leader) {
                // SAFETY: plain kill of a group whose leader has not been reaped.
                unsafe { libc::kill(-leader.pid, libc::SIGKILL) };
            }
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(async move {
                sleep(PATIENCE).await;
                insist();
            })),
            Err(_) => insist(),
        }
    }
}

/// Until the shell has ended and all it wrote is sent.
async fn show(
    terminal: &Terminal,
    other: OwnedFd,
    mut ending: oneshot::Receiver<Ending>,
    send: &mut SendStream<Bytes>,
) -> Done {
    // Ours, open as long as the shell lives: without it a shell that closes its terminal for a moment looks ended.
    let mut other = Some(other);
    let late = sleep(Duration::MAX);
    tokio::pin!(late);
    loop {
        let piece = tokio::select! {
            biased;
            piece = next_piece(terminal, send) => piece?,
            _ = &mut ending, if other.is_some() => {
                other = None;
                late.as_mut().reset(Instant::now() + PATIENCE);
                continue;
            }
            () = &mut late, if other.is_none() => None,
        };
        match piece {
            Some(piece) => send_all(send, piece).await?,
            None => return Ok(send.send_data(Bytes::new(), true)?),
        }
    }
}

/// None: the terminal has no other side any more.
async fn next_piece(terminal: &Terminal, send: &mut SendStream<Bytes>) -> Done<Option<Bytes>> {
    std::future::poll_fn(|context| {
        if send.poll_reset(context).is_ready() {
            return Poll::Ready(Err(Stop::Gone));
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

/// Ends only by an error: who has said all still wants to see the end.
async fn type_frames(terminal: &Terminal, mut frames: FrameReader) -> Done<Infallible> {
    while let Some((kind, length)) = frames.header().await? {
        match (kind, length) {
            (INPUT, 0..=PAYLOAD_MAX_BYTES) => {
                let mut left = length;
                while left > 0 {
                    let piece = frames.take(left).await?.ok_or_else(cut_short)?;
                    left -= piece.len();
                    type_all(terminal, &piece).await;
                    frames.release(piece.len())?;
                }
            }
            (RESIZE, 4) => {
                let mut payload = frames.payload(length).await?;
                let size = Size { rows: payload.get_u16(), cols: payload.get_u16() };
                // A size of nonsense leaves the terminal as it is.
                let _ = terminal.resize(size);
            }
            _ => return Err(Failure::invalid("a frame that no shell client sends").into()),
        }
    }
    // Again and again: one that comes while a line editor sets up its terminal is lost.
    loop {
        type_all(terminal, END_OF_INPUT).await;
        sleep(END_AGAIN).await;
    }
}

/// What a terminal that has ended does not take is of no use any more.
async fn type_all(terminal: &Terminal, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let Ok(mut ready) = terminal.master.writable().await else { return };
        match ready.try_io(|master| sys::write(master.get_ref().as_fd(), bytes)) {
            Ok(Ok(count)) => bytes = bytes.get(count..).unwrap_or_default(),
            Ok(Err(_)) => return,
            Err(_would_block) => {}
        }
    }
}
