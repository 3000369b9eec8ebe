//! Turns the machine off: processes get SIGTERM, then SIGKILL; the disk is flushed and remounted read-only; the power
//! is turned off.

use std::fs::File;
use std::io::Error;
use std::os::fd::AsRawFd;
use std::time::Duration;

use tokio::time::sleep;

use crate::kmsg::log;
use crate::reply::Failure;
use crate::sys::{check, mount};

/// Time for the response to POST /poweroff to be sent, and for programs to handle SIGTERM.
const GRACE: Duration = Duration::from_millis(200);

pub async fn power_off() {
    log("turning off");
    // SAFETY: signals every process except this one.
    unsafe { libc::kill(-1, libc::SIGTERM) };
    sleep(GRACE).await;
    unsafe { libc::kill(-1, libc::SIGKILL) };
    turn_off();
}

/// Also called when booting failed.
pub fn turn_off() {
    // SAFETY: plain system calls.
    unsafe { libc::sync() };
    // Remounting read-only writes the journal, so that the next mount has nothing to replay.
    if let Err(error) = mount("", "/", "", libc::MS_REMOUNT | libc::MS_RDONLY, "") {
        log(&format!("failed to remount the root filesystem read-only: {error}"));
    }
    unsafe { libc::reboot(libc::RB_POWER_OFF) };
}

/// POST /sync: returns when everything written so far is on the disk.
pub fn sync_root() -> Result<(), Failure> {
    let failed = |error: Error| Failure::internal("failed to flush the root filesystem", &error);
    let root = File::open("/").map_err(failed)?;
    // SAFETY: an open descriptor.
    check(unsafe { libc::syncfs(root.as_raw_fd()) }).map_err(failed)?;
    Ok(())
}
