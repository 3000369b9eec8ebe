//! The processes of one Unix session (setsid), read from /proc: everything that a program started, except processes
//! that created another session.

use std::fs;

/// Processes that fork during a round are found in the next one.
const ROUNDS_MAX: usize = 10;

pub fn kill_session(session: i32) {
    for _ in 0..ROUNDS_MAX {
        let members = session_members(session);
        if members.is_empty() {
            return;
        }
        for pid in members {
            // SAFETY: plain kill.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    }
}

pub fn session_members(session: i32) -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| is_live_member(*pid, session)).collect()
}

fn is_live_member(pid: i32, session: i32) -> bool {
    let Ok(stat) = fs::read(format!("/proc/{pid}/stat")) else { return false };
    let stat = String::from_utf8_lossy(&stat);
    // `pid (name) state ppid pgrp session …`; the name may hold spaces and parentheses.
    let Some((_, rest)) = stat.rsplit_once(')') else { return false };
    let mut fields = rest.split_ascii_whitespace();
    let dead = matches!(fields.next(), Some("Z" | "X"));
    !dead && fields.nth(2).is_some_and(|field| field.parse() == Ok(session))
}
