//! POST /grow: grows the root filesystem to the size of its disk while mounted, with the ext4 ioctl that resize2fs
//! uses, so the image need not contain resize2fs.

use std::fs::{self, File};
use std::io::Error;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::reply::Failure;
use crate::sys::check;

/// _IOW('f', 16, __u64)
const EXT4_IOC_RESIZE_FS: libc::Ioctl = 0x4008_6610_u32 as libc::Ioctl;
const SECTOR_BYTES: u64 = 512;
/// The new size of the disk reaches the guest by an interrupt, measured within 0.1 s of the host's command.
const RESIZE_TIMEOUT: Duration = Duration::from_secs(5);
const RESIZE_POLL_INTERVAL: Duration = Duration::from_millis(5);

#[derive(Deserialize)]
pub struct GrowRequest {
    /// Waits until the disk is at least this large.
    device_bytes: Option<u64>,
}

#[derive(Serialize)]
pub struct GrowResponse {
    device_bytes: u64,
    /// Size of the filesystem before growing.
    before_bytes: u64,
    after_bytes: u64,
}

pub fn grow(request: &GrowRequest) -> Result<GrowResponse, Failure> {
    let failed = |error: Error| Failure::internal("failed to grow the root filesystem", &error);
    let root = File::open("/").map_err(failed)?;
    let device_bytes = wait_for_device(request.device_bytes).map_err(failed)?;
    let (block_bytes, before_bytes) = filesystem_size(&root).map_err(failed)?;
    let blocks = device_bytes / block_bytes;
    // SAFETY: the ioctl reads one u64.
    check(unsafe { libc::ioctl(root.as_raw_fd(), EXT4_IOC_RESIZE_FS, &blocks) }).map_err(failed)?;
    let (_, after_bytes) = filesystem_size(&root).map_err(failed)?;
    Ok(GrowResponse { device_bytes, before_bytes, after_bytes })
}

fn wait_for_device(at_least: Option<u64>) -> Result<u64, Error> {
    let device = fs::metadata("/")?.dev();
    let size_file = format!("/sys/dev/block/{}:{}/size", libc::major(device), libc::minor(device));
    let deadline = Instant::now() + RESIZE_TIMEOUT;
    loop {
        let sectors: u64 = fs::read_to_string(&size_file)?.trim().parse().map_err(Error::other)?;
        let bytes = sectors * SECTOR_BYTES;
        if at_least.is_none_or(|wanted| bytes >= wanted) {
            return Ok(bytes);
        }
        if Instant::now() > deadline {
            return Err(Error::other(format!("the disk still has only {bytes} bytes")));
        }
        sleep(RESIZE_POLL_INTERVAL);
    }
}

/// Block size, and the size in bytes without ext4's own metadata.
fn filesystem_size(root: &File) -> Result<(u64, u64), Error> {
    // SAFETY: all zeros is valid, and the kernel fills it.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    check(unsafe { libc::fstatfs(root.as_raw_fd(), &mut stat) })?;
    let block_bytes = u64::try_from(stat.f_bsize).map_err(Error::other)?.max(1);
    Ok((block_bytes, stat.f_blocks * block_bytes))
}
