//! Takes all that a process writes into its journal, and its end from the reaper.
//!
//! Reading waits for readers of the journal only a little (`readers.rs`), and not at all for nobody. The task lives as
//! long as anybody holds the other end of the pipes or the terminal, also after the leader has ended.
//!
//! What the leader wrote before it ended is in the journal before its end is told: when the reaper has spoken, the
//! pipes are read empty first.

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
use crate::reap::{self, Ending};
use crate::sys;
use crate::terminal::Terminal;

use super::journal::{EVENT_MAX_BYTES, Journal, Stream};
use super::journals::Journals;
use super::process::Process;

/// After the leader's end, for descendants that hold its pipes (wire 6).
const DRAIN_MAX: Duration = Duration::from_secs(2);
/// A flood yields to the others after this many events, and looks whether its leader has ended.
const EVENTS_AT_ONCE: usize = 16;
/// The largest pipe an ordinary program can ask for, in events.
const LAST_EVENTS_MAX: usize = 1024 * 1024 / EVENT_MAX_BYTES;

thread_local! {
    /// Shared by all pumps: read and copied out within one poll.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; EVENT_MAX_BYTES]);
}

pub struct Source {
    stream: Stream,
    end: End,
}

enum End {
    Pipe(AsyncFd<OwnedFd>),
    Master(Arc<Terminal>),
}

impl Source {
    pub fn new(stream: Stream, terminal: Arc<Terminal>) -> Self {
        Self { stream, end: End::Master(terminal) }
    }

    pub fn of_pipe(stream: Stream, pipe: OwnedFd) -> std::io::Result<Self> {
        sys::set_nonblocking(pipe.as_fd())?;
        Ok(Self { stream, end: End::Pipe(sys::watch(pipe, Interest::READABLE)?) })
    }

    fn fd(&self) -> &AsyncFd<OwnedFd> {
        match &self.end {
            End::Pipe(pipe) => pipe,
            End::Master(terminal) => &terminal.master,
        }
    }
}

pub struct Pump {
    agent: Arc<Agent>,
    process: Arc<Process>,
    sources: Vec<Source>,
    /// Ours, of a terminal; let go at the leader's end.
    other_side: Option<OwnedFd>,
    ending: Option<oneshot::Receiver<Ending>>,
    drain: Option<Pin<Box<Sleep>>>,
    turn: usize,
}

enum Step {
    Output,
    Exited(Option<Ending>),
    Late,
    Over,
}

/// What one read gave.
enum Piece {
    Taken,
    Ended,
    NotYet,
}

impl Pump {
    pub fn new(
        agent: Arc<Agent>,
        process: Arc<Process>,
        sources: Vec<Source>,
        other_side: Option<OwnedFd>,
        ending: oneshot::Receiver<Ending>,
    ) -> Self {
        Self { agent, process, sources, other_side, ending: Some(ending), drain: None, turn: 0 }
    }

    pub async fn run(mut self) {
        let mut taken = 0;
        loop {
            match std::future::poll_fn(|context| self.poll_step(context, taken >= EVENTS_AT_ONCE)).await {
                Step::Output => {
                    taken += 1;
                    self.process.readers.wait_for_them(self.written()).await;
                }
                Step::Exited(ending) => self.leader_ended(ending),
                Step::Late => {
                    self.drain = None;
                    self.process.is_drained();
                }
                Step::Over => break,
            }
            if taken > EVENTS_AT_ONCE {
                taken = 0;
                tokio::task::yield_now().await;
            }
        }
        self.process.is_drained();
    }

    fn written(&self) -> u64 {
        let journal = |all: &mut Journals| all.get(self.process.key).map_or(0, Journal::written);
        self.agent.processes.with_journals(journal)
    }

    fn poll_step(&mut self, context: &mut Context<'_>, flooded: bool) -> Poll<Step> {
        if flooded {
            if let Poll::Ready(step) = self.poll_ending(context) {
                return Poll::Ready(step);
            }
        }
        // Whose turn it is: a flood on one must not starve the other.
        self.turn += 1;
        let count = self.sources.len();
        for offset in 0..count {
            let index = (self.turn + offset) % count;
            let polled = self.sources.get(index).map(|source| self.poll_source(source, context));
            match polled {
                Some(Poll::Ready(true)) => return Poll::Ready(Step::Output),
                Some(Poll::Ready(false)) => {
                    self.sources.remove(index);
                    // The numbers have shifted: once more from the beginning.
                    return self.poll_step(context, flooded);
                }
                Some(Poll::Pending) | None => {}
            }
        }
        self.poll_ending(context)
    }

    fn poll_ending(&mut self, context: &mut Context<'_>) -> Poll<Step> {
        if let Some(ending) = &mut self.ending {
            // The reaper never drops a waiter; if it did, there is no status and none is made up.
            let ending = ready!(Pin::new(ending).poll(context)).ok();
            return Poll::Ready(Step::Exited(ending));
        }
        if self.sources.is_empty() {
            return Poll::Ready(Step::Over);
        }
        match &mut self.drain {
            Some(drain) => drain.as_mut().poll(context).map(|()| Step::Late),
            None => Poll::Pending,
        }
    }

    fn leader_ended(&mut self, ending: Option<Ending>) {
        self.ending = None;
        self.other_side = None;
        for source in &self.sources {
            for _ in 0..LAST_EVENTS_MAX {
                if !matches!(self.read(source), Piece::Taken) {
                    break;
                }
            }
        }
        match ending {
            Some(ending) => self.process.has_exited(ending),
            None => self.process.has_failed(),
        }
        self.process.look_at_tree();
        reap::tell_watchers();
        self.drain = Some(Box::pin(sleep(DRAIN_MAX)));
    }

    /// True: an event was taken; false: nothing will come any more.
    fn poll_source(&self, source: &Source, context: &mut Context<'_>) -> Poll<bool> {
        while let Ok(mut guard) = ready!(source.fd().poll_read_ready(context)) {
            match self.read(source) {
                Piece::Taken => return Poll::Ready(true),
                Piece::Ended => return Poll::Ready(false),
                Piece::NotYet => guard.clear_ready(),
            }
        }
        Poll::Ready(false)
    }

    fn read(&self, source: &Source) -> Piece {
        SCRATCH.with_borrow_mut(|scratch| {
            loop {
                match sys::read(source.fd().get_ref().as_fd(), scratch) {
                    Ok(0) => return Piece::Ended,
                    Ok(count) => {
                        let bytes = scratch.get(..count).unwrap_or_default();
                        // A record that was dropped has no journal; its program is still not held up.
                        self.agent.processes.with_journals(|all| all.append(self.process.key, source.stream, bytes));
                        self.process.tell();
                        return Piece::Taken;
                    }
                    Err(error) => match error.kind() {
                        ErrorKind::WouldBlock => return Piece::NotYet,
                        ErrorKind::Interrupted => {}
                        // EIO: nobody has the other side of the terminal open.
                        _ => return Piece::Ended,
                    },
                }
            }
        })
    }
}
