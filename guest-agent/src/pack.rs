//! POST /pack: makes an image of this machine's root filesystem. What belongs to this machine is removed, the variables of
//! the image are written, and unused blocks are given back, so that the copy of the disk is small.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Error, Result};
use std::os::fd::AsRawFd;
use std::path::Path;

use serde::Deserialize;

use crate::identity::Identity;
use crate::image_envs;
use crate::kmsg::log;
use crate::reply::Failure;
use crate::shutdown::sync_root;
use crate::sys::check;
use crate::trust;

/// _IOWR('X', 121, struct fstrim_range)
const FITRIM: libc::Ioctl = 0xc018_5879_u32 as libc::Ioctl;
const HOSTNAME: &str = "sandbox";

#[derive(Deserialize)]
pub struct PackRequest {
    envs: BTreeMap<String, String>,
}

/// Runs on a worker thread.
pub fn pack(request: &PackRequest) -> std::result::Result<(), Failure> {
    let root = Path::new("/");
    let failed = |error: Error| Failure::internal("failed to pack the root filesystem", &error);
    remove_identity(root).map_err(failed)?;
    image_envs::write(root, &request.envs).map_err(failed)?;
    sync_root()?;
    // Without it the image is larger and the same otherwise.
    if let Err(error) = trim(root) {
        log(&format!("failed to trim the root filesystem: {error}"));
    }
    sync_root()
}

/// Every sandbox gets these anew. They are removed all the same: an image should not carry the keys of one machine.
pub fn remove_identity(root: &Path) -> Result<()> {
    let identity = Identity { root: root.into(), is_init: false };
    identity.remove_host_keys()?;
    identity.forget_machine_id()?;
    identity.set_hostname(HOSTNAME)?;
    identity.write_hosts((HOSTNAME, None), &[])?;
    trust::install(root, &[])?;
    Ok(())
}

#[repr(C)]
struct TrimRange {
    start: u64,
    len: u64,
    minlen: u64,
}

fn trim(root: &Path) -> Result<()> {
    let root = fs::File::open(root)?;
    let mut range = TrimRange { start: 0, len: u64::MAX, minlen: 0 };
    // SAFETY: the ioctl reads and writes the struct.
    check(unsafe { libc::ioctl(root.as_raw_fd(), FITRIM, &mut range) })?;
    Ok(())
}
