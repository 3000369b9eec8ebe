//! The file system of the program: a read-only root with the folders and devices that were named, and nothing else.
//!
//! `/proc` shows the processes of the jail only, without the files about the machine (`subset=pid`, Linux 5.8).

use std::ffi::CStr;
use std::io::Result;

use super::options::{Access, Options};
use crate::mounts::{make_current_folder_root, mount};
use crate::sys::{Failure, Step, c_string, check};

pub fn enter(options: &Options) -> std::result::Result<(), Failure> {
    // Nothing that is mounted from now on becomes visible outside, or the other way round.
    mount(None, c"/", None, libc::MS_REC | libc::MS_PRIVATE, None).step("make mounts private")?;
    let root = c_string(&options.root).step("read the root")?;
    mount(Some(&root), &root, None, libc::MS_BIND, None).step(&format!("mount {}", options.root))?;
    for bind in &options.binds {
        let source = c_string(&bind.source).step("read a source")?;
        let target = c_string(&format!("{}{}", options.root, bind.target)).step("read a target")?;
        let name = format!("mount {} as {}", bind.source, bind.target);
        mount(Some(&source), &target, None, libc::MS_BIND, None).step(&name)?;
        let access = match bind.access {
            Access::Read => libc::MS_RDONLY | libc::MS_NODEV,
            Access::Write => libc::MS_NODEV | libc::MS_NOEXEC,
            Access::Device => libc::MS_NOEXEC,
        };
        mount(None, &target, None, libc::MS_REMOUNT | libc::MS_BIND | libc::MS_NOSUID | access, None).step(&name)?;
    }
    let empty = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    let proc = c_string(&format!("{}/proc", options.root)).step("read the root")?;
    mount(Some(c"proc"), &proc, Some(c"proc"), empty, Some(c"subset=pid")).step("mount /proc")?;
    let read_only = libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV;
    mount(None, &root, None, read_only, None).step("make the root read-only")?;
    change_root(&root).step("change the root")?;
    for (path, fd) in &options.folders {
        open_folder(path, *fd).step(&format!("open {path}"))?;
    }
    Ok(())
}

/// A descriptor that was opened outside would lead out of the jail: a folder has a `..`.
fn open_folder(path: &str, fd: libc::c_int) -> Result<()> {
    let path = c_string(path)?;
    // SAFETY: a valid C string; the descriptors belong to this process.
    unsafe {
        let opened = check(libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY))?;
        if opened != fd {
            check(libc::dup2(opened, fd))?;
            check(libc::close(opened))?;
        }
    }
    Ok(())
}

fn change_root(root: &CStr) -> Result<()> {
    // SAFETY: a valid C string.
    check(unsafe { libc::chdir(root.as_ptr()) })?;
    make_current_folder_root()
}
