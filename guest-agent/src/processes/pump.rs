//! Reads all output of a process into its journal, and its exit status from the reaper.
//!
//! Reading waits only briefly for readers of the journal (`readers.rs`), and not at all if there are none. The task
//! runs as long as any process holds the other end of the pipes or the terminal, even after the leader has exited.
//!
//! Everything that the leader wrote before it exited is in the journal before its exit is reported: when the exit
//! status arrives, the pipes are emptied first.

use std::cell::RefCell;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};

use crate::agent::Agent;
use crate::reaper::{self, ExitStatus};
use crate::sys;
use crate::terminal::Terminal;

use super::journal::{EVENT_MAX_BYTES, Journal, Stream};
use super::journals::Journals;
use super::process::Process;

/// How long, after the leader's exit, descendants that hold its pipes delay the end of the output.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// After this many events in a row the task yields and checks whether the leader has exited.
const EVENTS_PER_TURN: usize = 16;
/// The largest pipe that an unprivileged program can request, in events.
const FINAL_EVENTS_MAX: usize = 1024 * 1024 / EVENT_MAX_BYTES;

thread_local! {
    /// Shared by all pumps: filled and copied within one poll.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; EVENT_MAX_BYTES]);
}

pub struct Source {
    stream: Stream,
    input: Input,
}

enum Input {
    Pipe(AsyncFd<OwnedFd>),
    Master(Arc<Terminal>),
}

impl Source {
    pub fn new(stream: Stream, terminal: Arc<Terminal>) -> Self {
        Self { stream, input: Input::Master(terminal) }
    }

    pub fn of_pipe(stream: Stream, pipe: OwnedFd) -> std::io::Result<Self> {
        sys::set_nonblocking(pipe.as_fd())?;
        Ok(Self { stream, input: Input::Pipe(sys::watch(pipe, Interest::READABLE)?) })
    }

    fn fd(&self) -> &AsyncFd<OwnedFd> {
        match &self.input {
            Input::Pipe(pipe) => pipe,
            Input::Master(terminal) => &terminal.master,
        }
    }
}

pub struct Pump {
    agent: Arc<Agent>,
    process: Arc<Process>,
    sources: Vec<Source>,
    /// The agent's copy of the program's side of a terminal; closed when the leader exits.
    program_side: Option<OwnedFd>,
    exit_status: Option<oneshot::Receiver<ExitStatus>>,
    drain: Option<Pin<Box<Sleep>>>,
    turn: usize,
}

enum Step {
    Output,
    Exited(Option<ExitStatus>),
    DrainTimeout,
    Finished,
}

/// Result of one read.
enum ReadOutcome {
    Event,
    Eof,
    WouldBlock,
}

impl Pump {
    pub fn new(
        agent: Arc<Agent>,
        process: Arc<Process>,
        sources: Vec<Source>,
        program_side: Option<OwnedFd>,
        exit_status: oneshot::Receiver<ExitStatus>,
    ) -> Self {
        Self { agent, process, sources, program_side, exit_status: Some(exit_status), drain: None, turn: 0 }
    }

    pub async fn run(mut self) {
        let mut taken = 0;
        loop {
            match std::future::poll_fn(|context| self.poll_step(context, taken >= EVENTS_PER_TURN)).await {
                Step::Output => {
                    taken += 1;
                    self.process.readers.wait_for_slow_readers(self.written()).await;
                }
                Step::Exited(exit_status) => self.on_leader_exit(exit_status),
                Step::DrainTimeout => {
                    self.drain = None;
                    self.process.mark_drained();
                }
                Step::Finished => break,
            }
            if taken > EVENTS_PER_TURN {
                taken = 0;
                tokio::task::yield_now().await;
            }
        }
        self.process.mark_drained();
    }

    fn written(&self) -> u64 {
        let journal = |all: &mut Journals| all.get(self.process.key).map_or(0, Journal::written);
        self.agent.processes.with_journals(journal)
    }

    fn poll_step(&mut self, context: &mut Context<'_>, check_exit_first: bool) -> Poll<Step> {
        if check_exit_first {
            if let Poll::Ready(step) = self.poll_exit(context) {
                return Poll::Ready(step);
            }
        }
        // Rotates, so that a flood on one source does not starve the other.
        self.turn += 1;
        let count = self.sources.len();
        for offset in 0..count {
            let index = (self.turn + offset) % count;
            let polled = self.sources.get(index).map(|source| self.poll_source(source, context));
            match polled {
                Some(Poll::Ready(true)) => return Poll::Ready(Step::Output),
                Some(Poll::Ready(false)) => {
                    self.sources.remove(index);
                    // The indexes have shifted: start again.
                    return self.poll_step(context, check_exit_first);
                }
                Some(Poll::Pending) | None => {}
            }
        }
        self.poll_exit(context)
    }

    fn poll_exit(&mut self, context: &mut Context<'_>) -> Poll<Step> {
        if let Some(exit_status) = &mut self.exit_status {
            // The reaper never drops a waiter; if it did, there would be no exit status, and none is invented.
            let exit_status = ready!(Pin::new(exit_status).poll(context)).ok();
            return Poll::Ready(Step::Exited(exit_status));
        }
        if self.sources.is_empty() {
            return Poll::Ready(Step::Finished);
        }
        match &mut self.drain {
            Some(drain) => drain.as_mut().poll(context).map(|()| Step::DrainTimeout),
            None => Poll::Pending,
        }
    }

    fn on_leader_exit(&mut self, exit_status: Option<ExitStatus>) {
        self.exit_status = None;
        self.program_side = None;
        for source in &self.sources {
            for _ in 0..FINAL_EVENTS_MAX {
                if !matches!(self.read(source), ReadOutcome::Event) {
                    break;
                }
            }
        }
        match exit_status {
            Some(exit_status) => self.process.mark_exited(exit_status),
            None => self.process.mark_failed(),
        }
        self.process.check_tree();
        reaper::notify_watchers();
        self.drain = Some(Box::pin(sleep(DRAIN_TIMEOUT)));
    }

    /// Returns true when an event was read, false when the source has ended.
    fn poll_source(&self, source: &Source, context: &mut Context<'_>) -> Poll<bool> {
        while let Ok(mut guard) = ready!(source.fd().poll_read_ready(context)) {
            match self.read(source) {
                ReadOutcome::Event => return Poll::Ready(true),
                ReadOutcome::Eof => return Poll::Ready(false),
                ReadOutcome::WouldBlock => guard.clear_ready(),
            }
        }
        Poll::Ready(false)
    }

    fn read(&self, source: &Source) -> ReadOutcome {
        SCRATCH.with_borrow_mut(|scratch| {
            loop {
                match sys::read(source.fd().get_ref().as_fd(), scratch) {
                    Ok(0) => return ReadOutcome::Eof,
                    Ok(count) => {
                        let bytes = scratch.get(..count).unwrap_or_default();
                        // A dropped record has no journal; its output is still read so that the program is not blocked.
                        self.agent.processes.with_journals(|all| all.append(self.process.key, source.stream, bytes));
                        self.process.notify_changed();
                        return ReadOutcome::Event;
                    }
                    Err(error) => match error.kind() {
                        ErrorKind::WouldBlock => return ReadOutcome::WouldBlock,
                        ErrorKind::Interrupted => {}
                        // EIO: no process has the terminal open.
                        _ => return ReadOutcome::Eof,
                    },
                }
            }
        })
    }
}
