//! Constants and plain types of the FUSE protocol (include/uapi/linux/fuse.h).

use std::time::Duration;

use crate::time::Time;

pub const ROOT: u64 = 1;
pub const MAJOR: u32 = 7;
/// The version that this program speaks; the kernel uses the lower of the two.
pub const MINOR: u32 = 31;

/// The largest write, which is also the largest read.
pub const DATA_MAX_BYTES: usize = 1024 * 1024;
pub const DATA_MAX_PAGES: u16 = 256;
/// A write with its headers. The kernel refuses to fill a smaller buffer.
pub const REQUEST_MAX_BYTES: usize = DATA_MAX_BYTES + 4096;

pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
}

/// Flags of INIT.
pub mod init {
    pub const ASYNC_READ: u32 = 1 << 0;
    pub const ATOMIC_O_TRUNC: u32 = 1 << 3;
    pub const BIG_WRITES: u32 = 1 << 5;
    pub const AUTO_INVAL_DATA: u32 = 1 << 12;
    pub const DO_READDIRPLUS: u32 = 1 << 13;
    pub const READDIRPLUS_AUTO: u32 = 1 << 14;
    pub const PARALLEL_DIROPS: u32 = 1 << 18;
    pub const MAX_PAGES: u32 = 1 << 22;
    pub const CACHE_SYMLINKS: u32 = 1 << 23;
}

/// Fields that a SETATTR changes.
pub mod set {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const MTIME: u32 = 1 << 5;
    pub const HANDLE: u32 = 1 << 6;
    pub const MTIME_NOW: u32 = 1 << 8;
}

/// Reply to OPEN: what the kernel has cached of the file is still right.
pub const KEEP_CACHE: u32 = 1 << 1;

/// Notifications, sent with the number in place of an error and unique 0.
pub const NOTIFY_INVAL_INODE: i32 = 2;
pub const NOTIFY_INVAL_ENTRY: i32 = 3;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attributes {
    pub node: u64,
    pub size: u64,
    pub mtime: Time,
    /// With the type.
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
}

/// How long the kernel may use an answer without asking again.
#[derive(Clone, Copy)]
pub struct EntryTimes {
    pub entry: Duration,
    pub attributes: Duration,
}
