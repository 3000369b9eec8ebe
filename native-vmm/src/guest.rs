//! The guest agent, the real program, on sockets in place of virtio ports.

use std::fs;
use std::io::{Error, Result};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::sys::check;

const AGENT_SOCKET: &str = "/sockets/agent.sock";
/// Where the agent puts it, and where the host agent expects it.
const HELLO_SOCKETS: [&str; 2] = ["/sockets/agent.sock.hello", "/sockets/hello.sock"];
const START_LIMIT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// Settles when it listens.
pub fn start() -> Result<Child> {
    let mut command = Command::new("/guest-agent");
    command.args(["--listen-unix", AGENT_SOCKET]).stdin(Stdio::null()).env_clear();
    command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    // SAFETY: only system calls between fork and exec.
    unsafe { command.pre_exec(ignore_clock_changes) };
    let child = command.spawn()?;
    let deadline = Instant::now() + START_LIMIT;
    while !(Path::new(AGENT_SOCKET).exists() && Path::new(HELLO_SOCKETS[0]).exists()) {
        if Instant::now() > deadline {
            return Err(Error::other("the guest agent does not listen"));
        }
        sleep(POLL_INTERVAL);
    }
    fs::rename(HELLO_SOCKETS[0], HELLO_SOCKETS[1])?;
    Ok(child)
}

/// The agent sets the clock of a guest that wakes. Here the clock is the machine's, which is right: the call does nothing.
fn ignore_clock_changes() -> Result<()> {
    const NUMBER: u32 = 0; // offsetof(seccomp_data, nr)
    let instruction = |code: u32, jump: (u8, u8), k: u32| libc::sock_filter {
        code: code as u16,
        jt: jump.0,
        jf: jump.1,
        k,
    };
    let filter = [
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, (0, 0), NUMBER),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, (0, 1), libc::SYS_clock_settime as u32),
        instruction(libc::BPF_RET | libc::BPF_K, (0, 0), libc::SECCOMP_RET_ERRNO),
        instruction(libc::BPF_RET | libc::BPF_K, (0, 0), libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the program and its filter live longer than the call, which copies them.
    check(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) })?;
    Ok(())
}
