//! The one place that waits for children. PID 1 inherits every orphan of the guest and must reap them all; the exit
//! status of a program the agent started itself must reach whoever started it. So nobody else calls `wait`: a
//! starter registers the pid here and gets its status from here.
//!
//! A child can be dead before its pid is registered (programs are started on other threads). While a start is under
//! way, statuses nobody asked for are kept, and handed over when the pid is registered.
//!
//! The table belongs to the process, as its children do.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Exited(i32),
    Signaled(i32),
}

#[derive(Default)]
struct Children {
    starting: usize,
    registered: u64,
    waited_for: HashMap<i32, Waiter>,
    early: HashMap<i32, Ending>,
}

struct Waiter {
    ticket: u64,
    tell: oneshot::Sender<Ending>,
}

/// A registered child: pids come round again, tickets do not.
pub struct Child {
    pub pid: i32,
    pub ticket: u64,
}

static CHILDREN: Mutex<Option<Children>> = Mutex::new(None);

/// A start under way; ends by `register` or by being dropped (the start failed).
pub struct Starting(());

pub fn begin_start() -> Starting {
    with_children(|children| children.starting += 1);
    Starting(())
}

impl Starting {
    /// The status of `pid` will arrive once, here.
    pub fn register(self, pid: i32) -> (Child, oneshot::Receiver<Ending>) {
        let (tell, receiver) = oneshot::channel();
        let ticket = with_children(|children| {
            children.registered += 1;
            let ticket = children.registered;
            match children.early.remove(&pid) {
                Some(ending) => drop(tell.send(ending)),
                None => drop(children.waited_for.insert(pid, Waiter { ticket, tell })),
            }
            ticket
        });
        (Child { pid, ticket }, receiver)
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        with_children(|children| {
            children.starting = children.starting.saturating_sub(1);
            if children.starting == 0 {
                children.early.clear();
            }
        });
    }
}

/// Whether its status has been taken: from then on its number may be somebody else's.
pub fn is_reaped(child: &Child) -> bool {
    with_children(|children| children.waited_for.get(&child.pid).is_none_or(|waiter| waiter.ticket != child.ticket))
}

static DEATHS: LazyLock<watch::Sender<u64>> = LazyLock::new(|| watch::Sender::new(0));

/// Changes whenever children of the agent, its own or inherited, have been reaped.
pub fn deaths() -> watch::Receiver<u64> {
    DEATHS.subscribe()
}

/// For who found something that the watchers of deaths must look at.
pub fn tell_watchers() {
    DEATHS.send_modify(|count| *count += 1);
}

/// Whether the number of this child, which has been reaped, now belongs to a later child.
pub fn is_taken_over(child: &Child) -> bool {
    with_children(|children| children.waited_for.get(&child.pid).is_some_and(|waiter| waiter.ticket != child.ticket))
}

/// As PID 1 has them by birth: without this an agent of tests would never see the end of a child that forked twice.
pub fn inherit_orphans() {
    // SAFETY: a plain flag of this process.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
}

/// Reaps for ever. SIGCHLD says that at least one child ended, never how many.
pub async fn run() -> std::io::Result<()> {
    let mut ended = signal(SignalKind::child())?;
    loop {
        // Also once before the first signal: children may have ended before we listened.
        while reap_some() {
            // A fork bomb makes zombies without end; the streams get their turn in between.
            tokio::task::yield_now().await;
        }
        if ended.recv().await.is_none() {
            return Ok(());
        }
    }
}

/// Reaps at most a handful; true when there may be more.
fn reap_some() -> bool {
    for _ in 0..64 {
        let mut status = 0;
        // SAFETY: an out-parameter of our own.
        let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) };
        if pid <= 0 {
            return false;
        }
        tell_watchers();
        let ending = if libc::WIFSIGNALED(status) {
            Ending::Signaled(libc::WTERMSIG(status))
        } else {
            Ending::Exited(libc::WEXITSTATUS(status))
        };
        with_children(|children| match children.waited_for.remove(&pid) {
            Some(waiter) => drop(waiter.tell.send(ending)),
            None if children.starting > 0 => drop(children.early.insert(pid, ending)),
            None => {}
        });
    }
    true
}

fn with_children<T>(action: impl FnOnce(&mut Children) -> T) -> T {
    let mut guard: MutexGuard<'_, Option<Children>> = CHILDREN.lock().unwrap_or_else(PoisonError::into_inner);
    action(guard.get_or_insert_with(Children::default))
}
