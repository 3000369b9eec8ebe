//! A pseudo-terminal: the agent has the master, the program the other side.

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

/// 0 is the default of each side.
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

/// More of a command line than this is not shown.
const COMMAND_LINE_SHOWN_BYTES: usize = 16 * 1024;

/// Also gives the program's side. It never becomes the agent's own controlling terminal.
pub fn open(size: Size) -> Result<(Terminal, OwnedFd)> {
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: fresh descriptors of our own; the ioctls take a pointer to a local int, and flags.
    let (master, other) = unsafe {
        let master = OwnedFd::from_raw_fd(check(libc::posix_openpt(flags))?);
        let unlock: libc::c_int = 0;
        check(libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &unlock))?;
        // By the master, not by a path: it works whatever is mounted at /dev/pts.
        let other = check(libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags))?;
        (master, OwnedFd::from_raw_fd(other))
    };
    sys::set_nonblocking(master.as_fd())?;
    let terminal = Terminal { master: sys::watch(master, Interest::READABLE | Interest::WRITABLE)? };
    terminal.resize(size)?;
    Ok((terminal, other))
}

impl Terminal {
    /// The kernel raises SIGWINCH for the foreground group before it returns, if the size is a new one.
    pub fn resize(&self, size: Size) -> Result<()> {
        let or = |side: u16, default: u16| if side == 0 { default } else { side };
        let size = libc::winsize {
            ws_row: or(size.rows, ROWS_DEFAULT),
            ws_col: or(size.cols, COLS_DEFAULT),
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        // SAFETY: reads a local.
        check(unsafe { libc::ioctl(self.master.get_ref().as_raw_fd(), libc::TIOCSWINSZ, &size) })?;
        Ok(())
    }

    /// The process group that has the terminal.
    pub fn foreground_group(&self) -> Option<i32> {
        let mut group: libc::pid_t = 0;
        // SAFETY: an out-parameter of our own.
        check(unsafe { libc::ioctl(self.master.get_ref().as_raw_fd(), libc::TIOCGPGRP, &mut group) }).ok()?;
        (group > 0).then_some(group)
    }
}

/// Reads /proc, which can block: call it on a worker. None when the group's leader has ended, and while it is still in
/// the midst of its exec.
pub fn describe(group: i32) -> Option<Foreground> {
    if is_still_the_agent(group) {
        return None;
    }
    let line = fs::read(format!("/proc/{group}/cmdline")).ok()?;
    let line = line.get(..COMMAND_LINE_SHOWN_BYTES).unwrap_or(&line);
    let mut words = line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    // A login shell is called `-bash`, and clients look for `bash` to know that a shell is idle.
    let cmd = words.next().map(|cmd| cmd.strip_prefix('-').unwrap_or(&cmd).to_owned()).filter(|cmd| !cmd.is_empty())?;
    let mut args: Vec<String> = words.collect();
    // Each word ends in a NUL, so behind the last one is nothing.
    if args.last().is_some_and(String::is_empty) {
        args.pop();
    }
    Some(Foreground { pid: group, cmd, args })
}

/// The kernel lets a parent that shares its memory go on a moment before the child has left that memory for its own.
fn is_still_the_agent(pid: i32) -> bool {
    let program = |pid: &str| fs::metadata(format!("/proc/{pid}/exe")).map(|file| (file.dev(), file.ino())).ok();
    let its = program(&pid.to_string());
    its.is_some() && its == program("self")
}
