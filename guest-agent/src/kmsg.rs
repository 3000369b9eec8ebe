//! Where the agent's few words go: the kernel log when it is PID 1 (the serial console shows it, `dmesg` keeps it),
//! stderr otherwise. Nothing a user sent is ever written here.

use std::fs::OpenOptions;
use std::io::Write;

pub fn say(message: &str) {
    let line = format!("<5>warren-agent: {message}\n");
    // Opened each time: it is rare, and /dev is remounted below us while booting.
    let kernel_log = if std::process::id() == 1 { OpenOptions::new().write(true).open("/dev/kmsg").ok() } else { None };
    let wrote = match kernel_log {
        Some(mut log) => log.write_all(line.as_bytes()),
        None => std::io::stderr().write_all(line.get(3..).unwrap_or_default().as_bytes()),
    };
    // A lost log line must not become a second failure.
    let _ = wrote;
}
