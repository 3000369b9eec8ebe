//! The machine's own file system, without what is mounted on it.
//!
//! A disk can be mounted over `/etc`, `/root` or `/var`, where the agent has files. It must not use those of the bucket: they
//! belong to the user, and a bucket that does not answer would prevent a resume. So the agent opens a copy of the mount of its
//! root at its start. The copy is in no namespace, and mounts on the original do not appear in it.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::kmsg::log;
use crate::sys::{c_path, check_long};

pub struct OwnRoot {
    path: PathBuf,
    /// Keeps the copy.
    _tree: Option<OwnedFd>,
}

impl OwnRoot {
    /// Without the privilege for it, as in development, the directory itself is used.
    pub fn open(root: &Path) -> Self {
        match copy_mount(root) {
            Ok(tree) => {
                let path = format!("/proc/{}/fd/{}", std::process::id(), tree.as_raw_fd()).into();
                Self { path, _tree: Some(tree) }
            }
            Err(error) => {
                log(&format!("failed to copy the mount of {}: {error}", root.display()));
                Self { path: root.to_path_buf(), _tree: None }
            }
        }
    }

    /// Leads to the root, for this process and its children.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn copy_mount(root: &Path) -> std::io::Result<OwnedFd> {
    let root = c_path(root)?;
    let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC;
    // SAFETY: a valid C string; the new descriptor is owned by the result.
    let fd = check_long(unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, root.as_ptr(), flags) })?;
    let tree = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    make_private(&tree)?;
    Ok(tree)
}

/// If mounts on the original are shared, they would appear in the copy.
fn make_private(tree: &OwnedFd) -> std::io::Result<()> {
    // SAFETY: all zeros is a valid value.
    let mut wanted: libc::mount_attr = unsafe { std::mem::zeroed() };
    wanted.propagation = libc::MS_PRIVATE;
    let (flags, size) = (libc::AT_EMPTY_PATH, size_of::<libc::mount_attr>());
    // SAFETY: an open descriptor, an empty path, and a structure with its size.
    let changed =
        unsafe { libc::syscall(libc::SYS_mount_setattr, tree.as_raw_fd(), c"".as_ptr(), flags, &wanted, size) };
    check_long(changed).map(drop)
}
