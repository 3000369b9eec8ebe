//! The mount point of a disk, and its cover. All of this runs on worker threads: a path can lead through a mount that hangs.
//!
//! While a disk is wanted but not mounted, programs must not write to the directory below: these files would never reach the
//! bucket, and the disk would hide them. So the agent mounts a cover first, on which everything fails with ENOTCONN, and the
//! mount program mounts the disk on top of it. The cover stays until the disk is detached. There is no moment without one of
//! them, whenever the mount program ends.
//!
//! The cover is a FUSE mount whose program is gone. Its mount id tells which disk is mounted on it, also after a program has
//! renamed a directory above.

use std::fs;
use std::io::{Error, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::mount_table::{self, Mounted};
use crate::sys::{c_path, check, mount, open};

/// As in bucket-mount/src/fuse/device.rs.
const DISK: &str = "fuse.bucket-mount";
const COVER: &str = "fuse.bucket-cover";
/// Mounts of an agent that is gone; only tests have such.
const LEFTOVERS_MAX: usize = 8;
/// File systems of the kernel, and the runtime directory of the agent. The API refuses these paths, but a symbolic link can lead
/// there.
const CLOSED: [&str; 4] = ["/dev", "/proc", "/run", "/sys"];

/// Where disks are, by the id of their mount: two paths can lead to the same directory.
#[derive(Default)]
pub struct Places(Mutex<Vec<(String, PathBuf)>>);

impl Places {
    fn claim(&self, id: &str, path: &Path) -> Result<(), String> {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let overlaps = |other: &PathBuf| other.starts_with(path) || path.starts_with(other);
        if let Some((_, other)) = places.iter().find(|(other, place)| other != id && overlaps(place)) {
            return Err(format!("another disk of this sandbox is at {}, and disks cannot be nested", other.display()));
        }
        places.retain(|(other, _)| other != id);
        places.push((id.to_owned(), path.to_path_buf()));
        Ok(())
    }

    pub fn release(&self, id: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|(other, _)| other != id);
    }
}

pub struct Place {
    /// Without symbolic links.
    pub path: PathBuf,
    cover: OwnedFd,
    cover_id: u64,
}

impl Place {
    /// Creates the directory if there is none, and covers it. The error says what the user can do.
    pub fn open(places: &Places, id: &str, mount_path: &str) -> Result<Self, String> {
        let directory = open_directory(Path::new(mount_path))?;
        let failed = |error: Error| format!("failed to look at it: {error}");
        let path = fs::read_link(fd_path(&directory)).map_err(failed)?;
        let leads =
            if path == Path::new(mount_path) { String::new() } else { format!("it leads to {}, ", path.display()) };
        if path == Path::new("/") || CLOSED.iter().any(|closed| path.starts_with(closed)) {
            return Err(format!("{leads}where no disk can be mounted; choose another mount_path"));
        }
        places.claim(id, &path).map_err(|why| format!("{leads}{why}; choose another mount_path"))?;
        let directory = remove_leftovers(&path, directory).map_err(failed)?;
        let covered = cover(&path, &directory);
        let (cover, cover_id) =
            covered.map_err(|error| format!("failed to cover it until the disk is there: {error}"))?;
        Ok(Self { path, cover, cover_id })
    }

    /// False if the user has unmounted the cover, or moved it by renaming a directory above.
    pub fn is_intact(&self) -> bool {
        mount_table::read().iter().any(|mount| mount.id == self.cover_id && mount.point == self.path)
    }

    /// Whether the disk is mounted on the cover.
    pub fn is_mounted(&self) -> bool {
        self.disk().is_some()
    }

    /// A request through the mount: false if it fails. Blocks while the mount does.
    pub fn responds(&self) -> bool {
        fs::metadata(&self.path).is_ok()
    }

    /// Removes what a mount program that was killed left on the cover. Programs that use it keep what they have open, and get
    /// errors.
    pub fn clear(&self) {
        for _ in 0..LEFTOVERS_MAX {
            let Some(disk) = self.disk() else { return };
            if detach(&disk.point).is_err() {
                return;
            }
        }
    }

    /// Also removes the disk, if it is there. What the directory contained before is visible again.
    pub fn remove(&self) {
        if !mount_table::read().iter().any(|mount| mount.id == self.cover_id) {
            return;
        }
        let path = fd_path(&self.cover);
        if let Ok(path) = c_path(&path) {
            // SAFETY: a valid C string. The link leads to the cover, not to what is mounted on it.
            unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
        }
    }

    fn disk(&self) -> Option<Mounted> {
        mount_table::read().into_iter().find(|mount| mount.parent == self.cover_id && mount.kind == DISK)
    }
}

fn open_directory(path: &Path) -> Result<OwnedFd, String> {
    let flags = libc::O_PATH | libc::O_DIRECTORY;
    match open(path, flags, 0) {
        Ok(directory) => return Ok(directory),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(explain(path, &error)),
    }
    if let Err(error) = fs::create_dir_all(path) {
        return Err(explain(path, &error));
    }
    open(path, flags, 0).map_err(|error| explain(path, &error))
}

fn explain(path: &Path, error: &Error) -> String {
    let is_missing = |path: &Path| fs::metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound);
    let dangling = path.ancestors().find(|above| above.is_symlink() && is_missing(above));
    if let Some(link) = dangling {
        return format!(
            "{} is a symbolic link to a directory that does not exist; create that, or choose another mount_path",
            link.display()
        );
    }
    match error.raw_os_error() {
        Some(libc::ENOTDIR | libc::EEXIST) => {
            "a file is in its place; remove that, or choose another mount_path".to_owned()
        }
        Some(libc::ENOTCONN) => "it is in another disk of this sandbox; choose another mount_path".to_owned(),
        _ => format!("{error}; choose another mount_path"),
    }
}

/// Returns the directory without them.
fn remove_leftovers(path: &Path, mut directory: OwnedFd) -> std::io::Result<OwnedFd> {
    for _ in 0..LEFTOVERS_MAX {
        let id = mount_table::id_of(&directory)?;
        let found = mount_table::read().into_iter().find(|mount| mount.id == id);
        if !found.is_some_and(|mount| mount.point == path && (mount.kind == DISK || mount.kind == COVER)) {
            return Ok(directory);
        }
        detach(path)?;
        directory = open(path, libc::O_PATH | libc::O_DIRECTORY, 0)?;
    }
    Err(Error::other("there is always another mount on it"))
}

/// Returns the root of the cover, and its mount id.
fn cover(path: &Path, directory: &OwnedFd) -> std::io::Result<(OwnedFd, u64)> {
    let below = mount_table::id_of(directory)?;
    let device = open(Path::new("/dev/fuse"), libc::O_RDWR, 0)?;
    let options =
        format!("fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other", device.as_raw_fd());
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    mount("bucket", &fd_path(directory).to_string_lossy(), COVER, flags, &options)?;
    // From here on there is no program, so that every request fails at once.
    drop(device);
    let cover = open(path, libc::O_PATH | libc::O_DIRECTORY, 0)?;
    let id = mount_table::id_of(&cover)?;
    let is_cover = |mount: &Mounted| mount.id == id && mount.parent == below && mount.kind == COVER;
    match mount_table::read().iter().any(is_cover) {
        true => Ok((cover, id)),
        false => Err(Error::other("the directory was moved meanwhile")),
    }
}

fn detach(path: &Path) -> std::io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: a valid C string.
    check(unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW) }).map(drop)
}

/// A path that leads to what is open, without looking up its name again.
fn fd_path(fd: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into()
}
