//! The processes of one exec: the program leads a session and a process group of its own number, and unless they make
//! a session of their own, all it starts belong to it.

use std::fs;

use crate::reap::{self, Child};
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

/// Those that fork while we look are found in the next round.
const ROUNDS_MAX: usize = 10;

fn kill_session(session: i32) {
    for _ in 0..ROUNDS_MAX {
        let members = members_of(session);
        if members.is_empty() {
            return;
        }
        for pid in members {
            // SAFETY: plain kill.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    }
}

fn members_of(session: i32) -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| lives_in(*pid, session)).collect()
}

fn lives_in(pid: i32, session: i32) -> bool {
    let Ok(stat) = fs::read(format!("/proc/{pid}/stat")) else { return false };
    let stat = String::from_utf8_lossy(&stat);
    // `pid (name) state ppid pgrp session …`; the name may hold spaces and parentheses.
    let Some((_, rest)) = stat.rsplit_once(')') else { return false };
    let mut fields = rest.split_ascii_whitespace();
    let dead = matches!(fields.next(), Some("Z" | "X"));
    !dead && fields.nth(2).is_some_and(|field| field.parse() == Ok(session))
}
