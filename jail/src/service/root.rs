//! The root directory of a service: an empty, read-only file system in memory, in which nothing appears but what the
//! command line names, `/proc` of the jail's own processes unless the service needs none, a few devices, and private `/tmp`
//! and `/dev/shm`.
//!
//! The service owns some of the folders that are mounted, and an earlier process of it may have put links there. So a
//! path in the new root is walked part by part without following links.

use std::ffi::{CStr, CString};
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::options::{Entry, Kind, Options, parts};
use crate::mounts::{make_current_folder_root, mount};
use crate::sys::{Failure, Step, c_string, check, check_long};

/// Exists everywhere. What it contains has been opened before it is hidden.
const ROOT: &CStr = c"/tmp";
const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];
const DEVICE_LINKS: [(&str, &str); 4] = [
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
];
/// Empty folders that belong to the service, in memory.
const PRIVATE_FOLDERS: [&str; 2] = ["/tmp", "/dev/shm"];
const NOTHING: libc::c_ulong = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;

pub fn enter(options: &Options) -> std::result::Result<(), Failure> {
    // The service must be able to enter the folders that are made here, also if the caller makes files for itself only.
    // SAFETY: no pointers.
    unsafe { libc::umask(0o022) };
    // Nothing that is mounted from now on becomes visible outside, or the other way round.
    mount(None, c"/", None, libc::MS_REC | libc::MS_PRIVATE, None).step("make mounts private")?;
    let devices = DEVICES.map(|path| Entry { path: path.to_owned(), kind: Kind::Device(path.to_owned()) });
    let links = DEVICE_LINKS.map(|(path, to)| Entry { path: path.to_owned(), kind: Kind::Link(to.to_owned()) });
    let entries: Vec<&Entry> = devices.iter().chain(&links).chain(&options.entries).collect();
    // Opened while the machine's own root is still whole.
    let sources: Vec<Option<OwnedFd>> = entries.iter().map(|entry| open_source(entry)).collect::<Result_<_>>()?;
    mount(Some(c"jail"), ROOT, Some(c"tmpfs"), NOTHING, Some(c"mode=755,size=4m,nr_inodes=8k"))
        .step("mount the root")?;
    let root = open_at(libc::AT_FDCWD, ROOT, libc::O_PATH | libc::O_DIRECTORY).step("open the root")?;
    let owned = format!("mode=700,uid={},gid={},size=1g", options.uid, options.gid);
    let owned = c_string(&owned).step("read the user id")?;
    for path in PRIVATE_FOLDERS {
        let folder = make_folders(&root, path).step(&format!("make {path}"))?;
        mount(Some(c"jail"), &link_of(&folder), Some(c"tmpfs"), NOTHING, Some(&owned))
            .step(&format!("mount {path}"))?;
    }
    // After the private folders: a data directory may be in /tmp.
    for (entry, source) in entries.iter().zip(&sources) {
        place(&root, entry, source.as_ref()).step(&format!("put {} into the jail", entry.path))?;
    }
    if !options.without_proc {
        let proc = make_folders(&root, "/proc").step("make /proc")?;
        mount(Some(c"proc"), &link_of(&proc), Some(c"proc"), NOTHING, Some(c"subset=pid")).step("mount /proc")?;
    }
    let read_only = libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY | NOTHING;
    mount(None, ROOT, None, read_only, None).step("make the root read-only")?;
    drop(sources);
    // What the service creates is for itself alone.
    // SAFETY: no pointers.
    unsafe { libc::umask(0o077) };
    change_root(&root).step("change the root")
}

type Result_<T> = std::result::Result<T, Failure>;

fn open_source(entry: &Entry) -> Result_<Option<OwnedFd>> {
    let (Kind::Read(from) | Kind::Write(from) | Kind::Device(from)) = &entry.kind else { return Ok(None) };
    let name = format!("open {from}");
    let path = c_string(from).step(&name)?;
    open_at(libc::AT_FDCWD, &path, libc::O_PATH).step(&name).map(Some)
}

fn place(root: &OwnedFd, entry: &Entry, source: Option<&OwnedFd>) -> Result<()> {
    let (parent, name) = entry.path.rsplit_once('/').ok_or(Error::from_raw_os_error(libc::EINVAL))?;
    match (&entry.kind, source) {
        (Kind::Link(to), _) => {
            let folder = make_folders(root, parent)?;
            let (to, name) = (c_string(to)?, c_string(name)?);
            // SAFETY: valid C strings and a descriptor.
            check(unsafe { libc::symlinkat(to.as_ptr(), folder.as_raw_fd(), name.as_ptr()) })?;
        }
        (Kind::Text(content), _) => {
            use std::io::Write;
            let file = make_file(&make_folders(root, parent)?, name)?;
            std::fs::File::from(file).write_all(content.as_bytes())?;
        }
        (kind, Some(source)) => {
            let target = if is_folder(source)? {
                make_folders(root, &entry.path)?
            } else {
                let folder = make_folders(root, parent)?;
                match make_file(&folder, name) {
                    // It is in a folder that has been mounted, or mounted twice.
                    Err(error) if is_exists(&error) => {
                        open_at(folder.as_raw_fd(), &c_string(name)?, libc::O_PATH | libc::O_NOFOLLOW)?
                    }
                    made => made?,
                }
            };
            bind(source, &target, kind)?;
        }
        (_, None) => return Err(Error::from_raw_os_error(libc::EINVAL)),
    }
    Ok(())
}

fn bind(source: &OwnedFd, target: &OwnedFd, kind: &Kind) -> Result<()> {
    mount(Some(&link_of(source)), &link_of(target), None, libc::MS_BIND | libc::MS_REC, None)?;
    let flags = match kind {
        Kind::Read(_) => libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV,
        Kind::Device(_) => libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC,
        _ => libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC,
    };
    // The target's descriptor leads below the mount, its path to the mount.
    restrict(&real_path(target)?, flags)
}

/// Adds flags to a mount and all mounts in it. `mount_setattr` is of Linux 5.12; before, only the mount itself can be
/// changed without losing other flags, which suffices because the service has no rights on what is mounted inside.
fn restrict(path: &CStr, flags: u64) -> Result<()> {
    let attributes = libc::mount_attr { attr_set: flags, attr_clr: 0, propagation: 0, userns_fd: 0 };
    // SAFETY: a valid C string and a pointer to a local value with its size.
    let result = check_long(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::AT_RECURSIVE,
            &attributes,
            size_of::<libc::mount_attr>(),
        )
    });
    match result {
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
            // The four flags have the same values here and there.
            let kept = file_system_flags(path)? & (libc::MS_RDONLY | NOTHING);
            mount(None, path, None, libc::MS_REMOUNT | libc::MS_BIND | kept | flags as libc::c_ulong, None)
        }
        result => result.map(|_| ()),
    }
}

fn file_system_flags(path: &CStr) -> Result<libc::c_ulong> {
    // SAFETY: zeroes are a valid statvfs; a valid C string and a pointer to a local value.
    unsafe {
        let mut found: libc::statvfs = std::mem::zeroed();
        check(libc::statvfs(path.as_ptr(), &mut found))?;
        Ok(found.f_flag)
    }
}

/// Opens the folder at a path below `root`, and makes what is missing of it.
fn make_folders(root: &OwnedFd, path: &str) -> Result<OwnedFd> {
    let mut folder = root.try_clone()?;
    for part in parts(path) {
        let name = c_string(part)?;
        // SAFETY: a valid C string and a descriptor.
        match check(unsafe { libc::mkdirat(folder.as_raw_fd(), name.as_ptr(), 0o755) }) {
            Err(error) if !is_exists(&error) => return Err(error),
            _ => {}
        }
        folder = open_at(folder.as_raw_fd(), &name, libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW)?;
    }
    Ok(folder)
}

fn make_file(folder: &OwnedFd, name: &str) -> Result<OwnedFd> {
    open_at(folder.as_raw_fd(), &c_string(name)?, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL)
}

fn open_at(folder: libc::c_int, path: &CStr, flags: libc::c_int) -> Result<OwnedFd> {
    // SAFETY: a valid C string; the new descriptor has no other owner.
    unsafe {
        let fd = check(libc::openat(folder, path.as_ptr(), flags | libc::O_CLOEXEC, 0o444))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

fn is_folder(fd: &OwnedFd) -> Result<bool> {
    // SAFETY: zeroes are a valid stat; a pointer to a local value.
    unsafe {
        let mut found: libc::stat = std::mem::zeroed();
        check(libc::fstat(fd.as_raw_fd(), &mut found))?;
        Ok(found.st_mode & libc::S_IFMT == libc::S_IFDIR)
    }
}

fn is_exists(error: &Error) -> bool {
    error.raw_os_error() == Some(libc::EEXIST)
}

/// Leads to the open file itself, whatever has happened to its path.
fn link_of(fd: &OwnedFd) -> CString {
    CString::new(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap_or_default()
}

fn real_path(fd: &OwnedFd) -> Result<CString> {
    use std::os::unix::ffi::OsStringExt;
    let path = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
    CString::new(path.into_os_string().into_vec()).map_err(|_| Error::from_raw_os_error(libc::EINVAL))
}

fn change_root(root: &OwnedFd) -> Result<()> {
    // SAFETY: a descriptor.
    check(unsafe { libc::fchdir(root.as_raw_fd()) })?;
    make_current_folder_root()
}
