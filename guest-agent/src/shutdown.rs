//! The end: processes are asked, then killed; the disk is flushed and made read-only; the machine is turned off.

use std::fs::File;
use std::io::Error;
use std::os::fd::AsRawFd;
use std::time::Duration;

use tokio::time::sleep;

use crate::kmsg::say;
use crate::reply::Failure;
use crate::sys::{check, mount};

/// For the answer to POST /poweroff to leave, and for programs to heed SIGTERM.
const GRACE: Duration = Duration::from_millis(200);

pub async fn power_off() {
    say("turning off");
    // SAFETY: to every process but ourselves.
    unsafe { libc::kill(-1, libc::SIGTERM) };
    sleep(GRACE).await;
    unsafe { libc::kill(-1, libc::SIGKILL) };
    turn_off();
}

/// Also the way out when the machine could not be booted.
pub fn turn_off() {
    // SAFETY: plain system calls.
    unsafe { libc::sync() };
    // Read-only writes the journal out, so that the next mount has nothing to replay.
    if let Err(error) = mount("", "/", "", libc::MS_REMOUNT | libc::MS_RDONLY, "") {
        say(&format!("the root filesystem stays writable: {error}"));
    }
    unsafe { libc::reboot(libc::RB_POWER_OFF) };
}

/// POST /sync: what was written is on the disk when it answers.
pub fn sync_root() -> Result<(), Failure> {
    let failed = |error: Error| Failure::internal("could not flush the root filesystem", &error);
    let root = File::open("/").map_err(failed)?;
    // SAFETY: an open descriptor.
    check(unsafe { libc::syncfs(root.as_raw_fd()) }).map_err(failed)?;
    Ok(())
}
