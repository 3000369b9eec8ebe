//! The processes of one exec: the program leads a session and a process group of its own number, and unless they make
//! a session of their own, all it starts belong to it.

use crate::reap::{self, Child};
use crate::session::kill_session;
use crate::work::Work;

pub struct Group {
    leader: Child,
    work: Work,
    /// Let go: whoever still runs was left in the background on purpose.
    held: bool,
}

impl Group {
    pub fn new(leader: Child, work: Work) -> Self {
        Self { leader, work, held: true }
    }

    pub fn pid(&self) -> i32 {
        self.leader.pid
    }

    pub fn let_go(mut self) {
        self.held = false;
    }

    pub fn kill(&self) {
        // An exec can outlive its leader, held open by a process of another session. Its number may come round.
        if reap::is_taken_over(&self.leader) {
            return;
        }
        let pid = self.leader.pid;
        // SAFETY: plain kill.
        unsafe { libc::kill(-pid, libc::SIGKILL) };
        // Shells with job control put their children into groups of their own; the session still tells.
        self.work.submit(move || kill_session(pid));
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.held {
            self.kill();
        }
    }
}
