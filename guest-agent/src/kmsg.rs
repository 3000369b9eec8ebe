//! Logging: to the kernel log when the agent is PID 1 (it appears on the serial console and in `dmesg`), to stderr
//! otherwise. Data sent by users is never logged.

use std::fs::OpenOptions;
use std::io::Write;

pub fn log(message: &str) {
    let line = format!("<5>warren-agent: {message}\n");
    // Opened each time: messages are rare, and /dev is remounted during boot.
    let kernel_log = if std::process::id() == 1 { OpenOptions::new().write(true).open("/dev/kmsg").ok() } else { None };
    let wrote = match kernel_log {
        Some(mut file) => file.write_all(line.as_bytes()),
        None => std::io::stderr().write_all(line.get(3..).unwrap_or_default().as_bytes()),
    };
    // A lost log line must not cause another failure.
    let _ = wrote;
}
