//! Requests whose program received a signal.
//!
//! The kernel reports any signal, but a program does not expect EINTR from close or stat because a child has ended. Only
//! a program that is being killed is answered early. The kernel reports the first signal only, so the program is watched
//! from then on.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;

#[derive(Default)]
pub struct Running(RefCell<HashMap<u64, Rc<Request>>>);

pub struct Request {
    thread: u32,
    pub interrupted: Notify,
}

const WATCH_INTERVAL: Duration = Duration::from_millis(100);

impl Running {
    pub fn add(&self, unique: u64, thread: u32) -> Rc<Request> {
        let request = Rc::new(Request { thread, interrupted: Notify::new() });
        self.0.borrow_mut().insert(unique, request.clone());
        request
    }

    pub fn remove(&self, unique: u64) {
        self.0.borrow_mut().remove(&unique);
    }

    /// The program that waits for a request received a signal.
    pub fn interrupt(self: &Rc<Self>, unique: u64) {
        let running = self.clone();
        tokio::task::spawn_local(async move {
            while let Some(request) = running.find(unique) {
                if is_being_killed(request.thread) {
                    request.interrupted.notify_one();
                    return;
                }
                tokio::time::sleep(WATCH_INTERVAL).await;
            }
        });
    }

    fn find(&self, unique: u64) -> Option<Rc<Request>> {
        self.0.borrow().get(&unique).cloned()
    }
}

/// The kernel adds SIGKILL to every thread of a program that a signal ends.
fn is_being_killed(thread: u32) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{thread}/status")) else { return true };
    let is_pending = |name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name));
        let signals = value.and_then(|value| u64::from_str_radix(value.trim(), 16).ok()).unwrap_or_default();
        signals & (1 << (libc::SIGKILL - 1)) != 0
    };
    is_pending("SigPnd:") || is_pending("ShdPnd:")
}
