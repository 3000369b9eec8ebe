//! The processes of one session, as /proc tells them: all a program started, but for those that made a session of
//! their own.

use std::fs;

/// Those that fork while we look are found in the next round.
const ROUNDS_MAX: usize = 10;

pub fn kill_session(session: i32) {
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

pub fn members_of(session: i32) -> Vec<i32> {
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
