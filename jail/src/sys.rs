//! Wrappers with error checks for system calls that std does not offer.

use std::ffi::CString;
use std::fmt;
use std::io::{Error, Result};

/// What was attempted, and why it failed.
pub struct Failure {
    step: String,
    error: Error,
}

impl Failure {
    pub fn new(step: &str, error: Error) -> Failure {
        Failure { step: step.to_owned(), error }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "failed to {}: {}", self.step, self.error)
    }
}

/// Names the step that a result belongs to: `.step("fork")` for "failed to fork: …".
pub trait Step<T> {
    fn step(self, name: &str) -> std::result::Result<T, Failure>;
}

impl<T> Step<T> for Result<T> {
    fn step(self, name: &str) -> std::result::Result<T, Failure> {
        self.map_err(|error| Failure::new(name, error))
    }
}

/// A number on a command line.
pub fn number<T: std::str::FromStr>(text: &str) -> std::result::Result<T, String> {
    text.parse().map_err(|_| format!("{text} is not a number that can be used here"))
}

/// Turns -1 into the error in errno.
pub fn check(result: libc::c_int) -> Result<libc::c_int> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

pub fn check_long(result: libc::c_long) -> Result<libc::c_long> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

pub fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::from_raw_os_error(libc::EINVAL))
}

pub fn close_on_exec(fd: libc::c_int) -> Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) })?;
    Ok(())
}

pub fn close_range(first: libc::c_int, last: libc::c_int) {
    if first <= last {
        // SAFETY: no pointers; nothing uses these descriptors any more.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    }
}

/// Whether the other end of a pipe or socket has been closed, as the kernel does when its process ends.
pub fn has_hung_up(fd: libc::c_int) -> Result<bool> {
    let mut state = libc::pollfd { fd, events: 0, revents: 0 };
    // SAFETY: one element, which lives longer than the call.
    check(unsafe { libc::poll(&mut state, 1, 0) })?;
    Ok(state.revents & (libc::POLLHUP | libc::POLLERR) != 0)
}

/// Forks a process whose parent is the parent of this one. Returns its pid, or 0 in the new process.
pub fn fork_sibling() -> Result<libc::pid_t> {
    let flags = (libc::CLONE_PARENT | libc::SIGCHLD) as libc::c_long;
    // SAFETY: like fork in a process with one thread; the null pointers mean that the child copies the stack.
    let pid = check_long(unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) })?;
    Ok(pid as libc::pid_t)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_caller_that_has_ended_is_noticed() {
        let (mine, callers) = UnixStream::pair().unwrap();
        assert!(!has_hung_up(mine.as_raw_fd()).unwrap());
        drop(callers);
        assert!(has_hung_up(mine.as_raw_fd()).unwrap());
    }
}
