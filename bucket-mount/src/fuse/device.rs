//! /dev/fuse: mounts, reads requests and writes answers.

use std::ffi::CString;
use std::fs;
use std::io::{Error, ErrorKind, IoSlice, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::abi::{NOTIFY_INVAL_ENTRY, NOTIFY_INVAL_INODE};
use super::wire::Output;

pub struct Device {
    fd: AsyncFd<OwnedFd>,
}

/// What the mount is called in /proc/mounts.
const SOURCE: &str = "bucket";
const TYPE: &str = "fuse.bucket-mount";
/// The default of 128 KiB lets a program wait for every second request.
const READ_AHEAD_KIB: u32 = 1024;

impl Device {
    /// Mounts on an existing directory.
    pub fn mount(mount_point: &Path, read_only: bool) -> Result<Self> {
        // SAFETY: plain open; the new descriptor is owned by the result.
        let fd = unsafe {
            let flags = libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC;
            let fd = check(libc::open(c"/dev/fuse".as_ptr(), flags))?;
            OwnedFd::from_raw_fd(fd)
        };
        let options =
            format!("fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other", fd.as_raw_fd());
        let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOATIME | if read_only { libc::MS_RDONLY } else { 0 };
        let (source, kind, options) = (c_string(SOURCE)?, c_string(TYPE)?, c_string(&options)?);
        let target = c_string(mount_point.as_os_str().as_bytes())?;
        // SAFETY: all are valid C strings.
        check(unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, options.as_ptr().cast()) })?;
        // SAFETY: an OwnedFd always returns the same descriptor and keeps it open for its lifetime.
        Ok(Self { fd: unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }? })
    }

    /// None: there is no request at the moment; wait with `readable`. An error of ENODEV means that it is unmounted.
    pub fn read<'a>(&self, buffer: &'a mut [u8]) -> Result<Option<&'a [u8]>> {
        loop {
            // SAFETY: a buffer with its length.
            let count = unsafe { libc::read(self.fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
            if let Ok(count) = usize::try_from(count) {
                return Ok(buffer.get(..count));
            }
            let error = Error::last_os_error();
            match error.raw_os_error() {
                // The program that asked was killed before the request was read.
                Some(libc::ENOENT | libc::EINTR) => {}
                Some(libc::EAGAIN) => return Ok(None),
                _ => return Err(error),
            }
        }
    }

    pub async fn readable(&self) -> Result<()> {
        let mut ready = self.fd.readable().await?;
        ready.clear_ready();
        Ok(())
    }

    pub fn reply(&self, unique: u64, result: std::result::Result<&[u8], i32>) {
        let (data, error) = match result {
            Ok(data) => (data, 0),
            Err(code) => ([].as_slice(), -code),
        };
        // An error means that the request was aborted, or that the mount is gone: no program waits for the answer.
        let _ = self.write(error, unique, data);
    }

    /// The kernel forgets attributes and data of a node.
    pub fn invalidate_node(&self, node: u64) {
        let mut output = Output::default();
        output.u64(node).u64(0).u64(0);
        let _ = self.write(NOTIFY_INVAL_INODE, 0, &output.0);
    }

    /// The kernel forgets a name. Must not be called while a request for the same directory is answered.
    pub fn invalidate_entry(&self, parent: u64, name: &str) {
        let mut output = Output::default();
        output.u64(parent).u32(name.len() as u32).u32(0).bytes(name.as_bytes()).bytes(&[0]);
        let _ = self.write(NOTIFY_INVAL_ENTRY, 0, &output.0);
    }

    fn write(&self, error: i32, unique: u64, data: &[u8]) -> Result<()> {
        let mut header = Output::default();
        header.u32((16 + data.len()) as u32).bytes(&error.to_ne_bytes()).u64(unique);
        let parts = [IoSlice::new(&header.0), IoSlice::new(data)];
        // SAFETY: IoSlice has the layout of iovec.
        let count = unsafe { libc::writev(self.fd.as_raw_fd(), parts.as_ptr().cast(), 2) };
        if count < 0 { Err(Error::last_os_error()) } else { Ok(()) }
    }
}

/// Lets the kernel read ahead in larger steps. Must not be called by the thread that serves the mount.
pub fn raise_read_ahead(mount_point: &Path) -> Result<()> {
    let device = fs::metadata(mount_point)?.dev();
    let path = format!("/sys/class/bdi/{}:{}/read_ahead_kb", libc::major(device), libc::minor(device));
    fs::write(path, READ_AHEAD_KIB.to_string())
}

/// With `lazily`, programs that use the mount keep what they have open.
pub fn unmount(mount_point: &Path, lazily: bool) -> Result<()> {
    let target = c_string(mount_point.as_os_str().as_bytes())?;
    // SAFETY: a valid C string.
    check(unsafe { libc::umount2(target.as_ptr(), if lazily { libc::MNT_DETACH } else { 0 }) }).map(drop)
}

/// Whether the mount point is ours: after a failed mount, files would go to the directory below.
pub fn is_mounted(mount_point: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let wanted = escape(mount_point);
    // The last mount on a path is the visible one.
    let last = mounts.lines().rfind(|line| line.split(' ').nth(4) == Some(&wanted));
    last.is_some_and(|line| line.contains(&format!(" - {TYPE} ")))
}

/// As in /proc/self/mountinfo.
fn escape(path: &Path) -> String {
    let text = path.to_string_lossy();
    text.replace('\\', "\\134").replace(' ', "\\040").replace('\t', "\\011").replace('\n', "\\012")
}

fn check(result: libc::c_int) -> Result<libc::c_int> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

fn c_string(text: impl AsRef<[u8]>) -> Result<CString> {
    CString::new(text.as_ref()).map_err(|_| Error::from(ErrorKind::InvalidInput))
}
