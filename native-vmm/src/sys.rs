//! Wrappers with error checks for system calls that std does not offer.

use std::ffi::CString;
use std::io::{Error, Result};
use std::ptr::null;

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

pub fn close_all_on_exec() -> Result<()> {
    // SAFETY: no pointers.
    check_long(unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) })?;
    Ok(())
}

/// Forks a process whose parent is the parent of this one. Returns its pid, or 0 in the new process.
pub fn fork_sibling() -> Result<libc::pid_t> {
    let flags = (libc::CLONE_PARENT | libc::SIGCHLD) as libc::c_long;
    // SAFETY: like fork in a process with one thread; the null pointers mean that the child copies the stack.
    let pid = check_long(unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) })?;
    Ok(pid as libc::pid_t)
}

pub fn mount(source: &str, target: &str, kind: Option<&str>, flags: libc::c_ulong) -> Result<()> {
    let (source, target) = (c_string(source)?, c_string(target)?);
    let kind = kind.map(c_string).transpose()?;
    let kind = kind.as_ref().map_or(null(), |kind| kind.as_ptr());
    // SAFETY: valid C strings or null.
    check(unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind, flags, null()) })
        .map_err(|error| Error::other(format!("failed to mount {target:?}: {error}")))?;
    Ok(())
}
