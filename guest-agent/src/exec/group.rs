//! The processes of one exec: the program leads a session and a process group, which contain everything it starts
//! except processes that create another session.

use crate::reaper::{self, Child};
use crate::unix_session::kill_session;
use crate::workers::WorkerPool;

pub struct Group {
    leader: Child,
    workers: WorkerPool,
    /// False once released: remaining processes were left in the background on purpose.
    kill_on_drop: bool,
}

impl Group {
    pub fn new(leader: Child, workers: WorkerPool) -> Self {
        Self { leader, workers, kill_on_drop: true }
    }

    pub fn pid(&self) -> i32 {
        self.leader.pid
    }

    pub fn release(mut self) {
        self.kill_on_drop = false;
    }

    pub fn kill(&self) {
        // An exec can outlive its leader while a process of another session holds its pipes; the pid may then be
        // reused.
        if reaper::is_pid_reused(&self.leader) {
            return;
        }
        let pid = self.leader.pid;
        // SAFETY: plain kill.
        unsafe { libc::kill(-pid, libc::SIGKILL) };
        // Shells with job control put their children into separate process groups, which the session still covers.
        self.workers.submit(move || kill_session(pid));
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.kill_on_drop {
            self.kill();
        }
    }
}
