//! POST /freeze and POST /thaw: while the root filesystem is frozen, its disk does not change and needs no recovery, so the
//! host can take a copy. Programs that write wait meanwhile, so a freeze ends after some time even if the host is gone.

use std::fs::File;
use std::io::Error;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;

use crate::reply::Failure;
use crate::sys::check;

/// _IOWR('X', 119, int) and _IOWR('X', 120, int)
const FIFREEZE: libc::Ioctl = 0xc004_5877_u32 as libc::Ioctl;
const FITHAW: libc::Ioctl = 0xc004_5878_u32 as libc::Ioctl;
/// The host needs less than a second.
pub const FREEZE_MAX: Duration = Duration::from_secs(30);

/// The number of freezes so far. A thaw by the timer concerns only the freeze that started it.
static FREEZES: AtomicU64 = AtomicU64::new(0);

#[derive(Serialize)]
pub struct Frozen {
    /// Used by files and by the filesystem itself.
    used_bytes: u64,
    #[serde(skip)]
    pub number: u64,
}

/// Runs on a worker thread, like the others.
pub fn freeze() -> Result<Frozen, Failure> {
    let failed = |error: Error| Failure::internal("failed to freeze the root filesystem", &error);
    let root = File::open("/").map_err(failed)?;
    // SAFETY: an open descriptor, and all zeros is a valid statfs that the kernel fills.
    check(unsafe { libc::syncfs(root.as_raw_fd()) }).map_err(failed)?;
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    check(unsafe { libc::fstatfs(root.as_raw_fd(), &mut stat) }).map_err(failed)?;
    let number = FREEZES.fetch_add(1, Ordering::SeqCst) + 1;
    // SAFETY: the argument is not used.
    match check(unsafe { libc::ioctl(root.as_raw_fd(), FIFREEZE, 0) }) {
        // Frozen already, by a request whose reply was lost.
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
        Err(error) => return Err(failed(error)),
        Ok(_) => {}
    }
    let block_bytes = u64::try_from(stat.f_bsize).unwrap_or(1);
    Ok(Frozen { used_bytes: stat.f_blocks.saturating_sub(stat.f_bfree) * block_bytes, number })
}

pub fn thaw() -> Result<(), Failure> {
    let failed = |error: Error| Failure::internal("failed to thaw the root filesystem", &error);
    let root = File::open("/").map_err(failed)?;
    // SAFETY: the argument is not used.
    match check(unsafe { libc::ioctl(root.as_raw_fd(), FITHAW, 0) }) {
        // It is not frozen.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        Err(error) => Err(failed(error)),
        Ok(_) => Ok(()),
    }
}

pub fn is_latest(number: u64) -> bool {
    FREEZES.load(Ordering::SeqCst) == number
}
