//! The only place that waits for children. PID 1 inherits every orphan of the guest and must reap them all, and the
//! exit status of a program that the agent started must reach the code that started it. Therefore no other code calls
//! `wait`: it registers the pid here and receives the status from here.
//!
//! A child can exit before its pid is registered, because programs are started on other threads. While a start is in
//! progress, exit statuses of unknown pids are stored and delivered when the pid is registered.
//!
//! The table is global because children belong to the whole process.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    Exited(i32),
    Signaled(i32),
}

#[derive(Default)]
struct Children {
    starting: usize,
    registered: u64,
    waiters: HashMap<i32, Waiter>,
    unclaimed: HashMap<i32, ExitStatus>,
}

struct Waiter {
    serial: u64,
    sender: oneshot::Sender<ExitStatus>,
}

/// A registered child. Pids are reused, serial numbers are not.
pub struct Child {
    pub pid: i32,
    pub serial: u64,
}

static CHILDREN: Mutex<Option<Children>> = Mutex::new(None);

/// A start in progress. It ends with `register`, or when it is dropped because the start failed.
pub struct Starting(());

pub fn begin_start() -> Starting {
    with_children(|children| children.starting += 1);
    Starting(())
}

impl Starting {
    /// The exit status of `pid` is sent to the returned receiver.
    pub fn register(self, pid: i32) -> (Child, oneshot::Receiver<ExitStatus>) {
        let (sender, receiver) = oneshot::channel();
        let serial = with_children(|children| {
            children.registered += 1;
            let serial = children.registered;
            match children.unclaimed.remove(&pid) {
                Some(exit_status) => drop(sender.send(exit_status)),
                None => drop(children.waiters.insert(pid, Waiter { serial, sender })),
            }
            serial
        });
        (Child { pid, serial }, receiver)
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        with_children(|children| {
            children.starting = children.starting.saturating_sub(1);
            if children.starting == 0 {
                children.unclaimed.clear();
            }
        });
    }
}

/// Whether the child has been reaped. From then on its pid may belong to another process.
pub fn is_reaped(child: &Child) -> bool {
    with_children(|children| children.waiters.get(&child.pid).is_none_or(|waiter| waiter.serial != child.serial))
}

static EXITS: LazyLock<watch::Sender<u64>> = LazyLock::new(|| watch::Sender::new(0));

/// Changes whenever children of the agent, started or inherited, have been reaped.
pub fn exits() -> watch::Receiver<u64> {
    EXITS.subscribe()
}

/// Makes the watchers of exits check their process trees.
pub fn notify_watchers() {
    EXITS.send_modify(|count| *count += 1);
}

/// Whether the pid of this reaped child now belongs to a newer registered child.
pub fn is_pid_reused(child: &Child) -> bool {
    with_children(|children| children.waiters.get(&child.pid).is_some_and(|waiter| waiter.serial != child.serial))
}

/// Orphans are reparented to PID 1 automatically. An agent that is not PID 1 has to ask for them, or it would never see
/// the exit of a child that forked twice.
pub fn inherit_orphans() {
    // SAFETY: sets a flag of this process.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
}

/// Reaps children forever. SIGCHLD means that at least one child exited, not how many.
pub async fn run() -> std::io::Result<()> {
    let mut ended = signal(SignalKind::child())?;
    loop {
        // Runs once before the first signal too: children may have exited before the handler was installed.
        while reap_some() {
            // Yields in between, so that a fork bomb, which creates zombies continuously, does not block the streams.
            tokio::task::yield_now().await;
        }
        if ended.recv().await.is_none() {
            return Ok(());
        }
    }
}

/// Reaps a limited number of children; returns true when there may be more.
fn reap_some() -> bool {
    for _ in 0..64 {
        let mut status = 0;
        // SAFETY: writes to a local.
        let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) };
        if pid <= 0 {
            return false;
        }
        notify_watchers();
        let exit_status = if libc::WIFSIGNALED(status) {
            ExitStatus::Signaled(libc::WTERMSIG(status))
        } else {
            ExitStatus::Exited(libc::WEXITSTATUS(status))
        };
        with_children(|children| match children.waiters.remove(&pid) {
            Some(waiter) => drop(waiter.sender.send(exit_status)),
            None if children.starting > 0 => drop(children.unclaimed.insert(pid, exit_status)),
            None => {}
        });
    }
    true
}

fn with_children<T>(action: impl FnOnce(&mut Children) -> T) -> T {
    let mut guard: MutexGuard<'_, Option<Children>> = CHILDREN.lock().unwrap_or_else(PoisonError::into_inner);
    action(guard.get_or_insert_with(Children::default))
}
