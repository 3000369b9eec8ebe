//! Thin wrappers with error checks for system calls that std does not offer.

use std::ffi::CString;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Turns -1 into the error in errno.
pub fn check(result: libc::c_int) -> Result<libc::c_int> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

pub fn check_long(result: libc::c_long) -> Result<libc::c_long> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

pub fn c_string(bytes: impl AsRef<[u8]>) -> Result<CString> {
    CString::new(bytes.as_ref()).map_err(|_| Error::from_raw_os_error(libc::EINVAL))
}

pub fn c_path(path: &Path) -> Result<CString> {
    c_string(path.as_os_str().as_bytes())
}

/// Opens with exactly these flags, plus close-on-exec.
pub fn open(path: &Path, flags: libc::c_int, mode: libc::mode_t) -> Result<OwnedFd> {
    let path = c_path(path)?;
    loop {
        // SAFETY: a valid C string; the new descriptor is owned by the result.
        match check(unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC, mode) }) {
            Ok(fd) => return Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
}

pub fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    let mut ends: [RawFd; 2] = [-1; 2];
    // SAFETY: there is room for two descriptors; both are new and owned by the result.
    check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) })?;
    let [reader, writer] = ends;
    Ok(unsafe { (OwnedFd::from_raw_fd(reader), OwnedFd::from_raw_fd(writer)) })
}

pub fn set_nonblocking(fd: BorrowedFd) -> Result<()> {
    // SAFETY: plain fcntl on a borrowed descriptor.
    let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) })?;
    Ok(())
}

/// Registers a descriptor with the event loop.
pub fn watch(fd: OwnedFd, interest: Interest) -> Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd always returns the same descriptor and keeps it open for its lifetime.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest) }?)
}

pub fn read(fd: BorrowedFd, buffer: &mut [u8]) -> Result<usize> {
    // SAFETY: the buffer has the given length.
    let count = unsafe { libc::read(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
    usize::try_from(count).map_err(|_| Error::last_os_error())
}

pub fn write(fd: BorrowedFd, buffer: &[u8]) -> Result<usize> {
    // SAFETY: as above.
    let count = unsafe { libc::write(fd.as_raw_fd(), buffer.as_ptr().cast(), buffer.len()) };
    usize::try_from(count).map_err(|_| Error::last_os_error())
}

pub fn mount(source: &str, target: &str, kind: &str, flags: libc::c_ulong, data: &str) -> Result<()> {
    let (source, target) = (c_string(source)?, c_string(target)?);
    let (kind, data) = (c_string(kind)?, c_string(data)?);
    // SAFETY: four valid C strings.
    check(unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, data.as_ptr().cast()) })?;
    Ok(())
}

/// Random bytes as hex, for names that must not collide. Before the host's entropy arrives, two clones may generate the
/// same value: nothing secret may be derived from it.
pub fn random_hex() -> String {
    let mut bytes = [0u8; 8];
    // SAFETY: the buffer has the given length. A short result leaves zeros, which only makes the name less random.
    unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), libc::GRND_NONBLOCK) };
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Keeps the agent small: freed pages return to the guest, and all threads share one heap.
pub fn configure_heap() {
    // SAFETY: mallopt only sets parameters; called before any thread is started.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 128 * 1024);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 256 * 1024);
    }
}

/// Also returns free pages in the middle of the heap: a pause does not have to save pages that the guest does not use.
pub fn trim_heap() {
    // SAFETY: only touches free memory.
    unsafe { libc::malloc_trim(0) };
}
