//! The mounts of a jail, for both of its modes.

use std::ffi::CStr;
use std::io::Result;
use std::ptr::null;

use crate::sys::{check, check_long};

/// Replaces the root of this mount namespace with the current folder. The old root is detached, so that no path leads to it.
pub fn make_current_folder_root() -> Result<()> {
    // SAFETY: valid C strings.
    unsafe {
        // With the same folder twice the old root is mounted on top of the new one, and is removed from there.
        check_long(libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()))?;
        check(libc::umount2(c".".as_ptr(), libc::MNT_DETACH))?;
        check(libc::chdir(c"/".as_ptr()))?;
    }
    Ok(())
}

pub fn mount(
    source: Option<&CStr>,
    target: &CStr,
    kind: Option<&CStr>,
    flags: libc::c_ulong,
    data: Option<&CStr>,
) -> Result<()> {
    let pointer = |text: Option<&CStr>| text.map_or(null(), CStr::as_ptr);
    // SAFETY: valid C strings or null.
    check(unsafe { libc::mount(pointer(source), target.as_ptr(), pointer(kind), flags, pointer(data).cast()) })?;
    Ok(())
}
