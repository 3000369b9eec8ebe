//! The mount point. All of this runs on worker threads: a path can lead through a mount that hangs.

use std::fs;
use std::io::{Error, Result};
use std::path::Path;

use crate::sys::{c_path, check};

/// As in bucket-mount/src/fuse/device.rs.
const TYPE: &str = "fuse.bucket-mount";

/// Creates the directory, and removes what a mount program that was killed left mounted there.
pub fn prepare(mount_path: &str) -> Result<()> {
    while is_mounted(mount_path) {
        detach(mount_path)?;
    }
    fs::create_dir_all(mount_path)?;
    if !fs::symlink_metadata(mount_path)?.is_dir() {
        return Err(Error::other("it is a symbolic link"));
    }
    Ok(())
}

/// Programs that use it keep what they have open, and get errors.
pub fn detach(mount_path: &str) -> Result<()> {
    let path = c_path(Path::new(mount_path))?;
    // SAFETY: a valid C string.
    check(unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW) }).map(drop)
}

/// Whether the visible mount at the path is one of a mount program. Without one, files would go to the directory below.
pub fn is_mounted(mount_path: &str) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let wanted = mount_path.trim_end_matches('/').replace('\\', "\\134").replace(' ', "\\040").replace('\t', "\\011");
    let last = mounts.lines().rfind(|line| line.split(' ').nth(4) == Some(&wanted));
    last.is_some_and(|line| line.contains(&format!(" - {TYPE} ")))
}

/// A request through the mount: false if it fails. Blocks while the mount does.
pub fn responds(mount_path: &str) -> bool {
    fs::metadata(mount_path).is_ok()
}
