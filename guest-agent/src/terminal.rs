//! A pseudo-terminal: the agent holds the master, the program the other side.

use std::fs;
use std::io::Result;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::sys::{self, check};

const ROWS_DEFAULT: u16 = 24;
const COLS_DEFAULT: u16 = 80;
pub const TERM: &str = "xterm-256color";

/// 0 means the default.
#[derive(Clone, Copy, Default, Deserialize)]
pub struct Size {
    #[serde(default)]
    pub rows: u16,
    #[serde(default)]
    pub cols: u16,
}

pub struct Terminal {
    pub master: AsyncFd<OwnedFd>,
}

#[derive(Serialize)]
pub struct Foreground {
    pub pid: i32,
    pub cmd: String,
    pub args: Vec<String>,
}

/// Command lines are truncated to this length.
const COMMAND_LINE_SHOWN_BYTES: usize = 16 * 1024;

/// Returns the terminal and the program's side of it. It never becomes the agent's controlling terminal.
pub fn open(size: Size) -> Result<(Terminal, OwnedFd)> {
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: new descriptors that this function owns; the ioctls take a pointer to a local int, and flags.
    let (master, program_side) = unsafe {
        let master = OwnedFd::from_raw_fd(check(libc::posix_openpt(flags))?);
        let unlock: libc::c_int = 0;
        check(libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &unlock))?;
        // Opened through the master, not by path, so that it works whatever is mounted at /dev/pts.
        let program_side = check(libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags))?;
        (master, OwnedFd::from_raw_fd(program_side))
    };
    sys::set_nonblocking(master.as_fd())?;
    let terminal = Terminal { master: sys::watch(master, Interest::READABLE | Interest::WRITABLE)? };
    terminal.resize(size)?;
    Ok((terminal, program_side))
}

impl Terminal {
    /// If the size changed, the kernel sends SIGWINCH to the foreground group before this returns.
    pub fn resize(&self, size: Size) -> Result<()> {
        let or_default = |side: u16, default: u16| if side == 0 { default } else { side };
        let size = libc::winsize {
            ws_row: or_default(size.rows, ROWS_DEFAULT),
            ws_col: or_default(size.cols, COLS_DEFAULT),
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        // SAFETY: reads a local.
        check(unsafe { libc::ioctl(self.master.get_ref().as_raw_fd(), libc::TIOCSWINSZ, &size) })?;
        Ok(())
    }

    /// The foreground process group.
    pub fn foreground_group(&self) -> Option<i32> {
        let mut group: libc::pid_t = 0;
        // SAFETY: writes to a local.
        check(unsafe { libc::ioctl(self.master.get_ref().as_raw_fd(), libc::TIOCGPGRP, &mut group) }).ok()?;
        (group > 0).then_some(group)
    }
}

/// Reads /proc, which can block, so it must run on a worker thread. None when the group's leader has exited, or while
/// it is still executing `exec`.
pub fn describe(group: i32) -> Option<Foreground> {
    if is_still_the_agent(group) {
        return None;
    }
    let line = fs::read(format!("/proc/{group}/cmdline")).ok()?;
    let line = line.get(..COMMAND_LINE_SHOWN_BYTES).unwrap_or(&line);
    let mut words = line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    // A login shell is called `-bash`; clients look for `bash` to detect an idle shell.
    let cmd = words.next().map(|cmd| cmd.strip_prefix('-').unwrap_or(&cmd).to_owned()).filter(|cmd| !cmd.is_empty())?;
    let mut args: Vec<String> = words.collect();
    // Each word ends with a NUL, so the last split is empty.
    if args.last().is_some_and(String::is_empty) {
        args.pop();
    }
    Some(Foreground { pid: group, cmd, args })
}

/// With CLONE_VFORK the kernel resumes the parent shortly before the child has switched from the shared memory to its
/// own; until then the child still looks like the agent.
fn is_still_the_agent(pid: i32) -> bool {
    let program = |pid: &str| fs::metadata(format!("/proc/{pid}/exe")).map(|file| (file.dev(), file.ino())).ok();
    let executable = program(&pid.to_string());
    executable.is_some() && executable == program("self")
}
