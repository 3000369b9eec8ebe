//! Sets up the machine like any init: mounts, links, limits, network, names. Failures are logged and not fatal, so that
//! a machine with a missing part still responds.

use std::fs;
use std::io::{Error, Result};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use crate::boot::CommandLine;
use crate::identity;
use crate::kmsg::log;
use crate::net;
use crate::sys::{check, mount};

struct Mount {
    source: &'static str,
    target: &'static str,
    kind: &'static str,
    flags: libc::c_ulong,
    data: &'static str,
}

const RESTRICTED: libc::c_ulong = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;

/// Mounted in this order. /tmp stays on the image's disk, where there is room.
const MOUNTS: [Mount; 7] = [
    Mount { source: "proc", target: "/proc", kind: "proc", flags: RESTRICTED, data: "" },
    Mount { source: "sysfs", target: "/sys", kind: "sysfs", flags: RESTRICTED, data: "" },
    Mount { source: "devtmpfs", target: "/dev", kind: "devtmpfs", flags: libc::MS_NOSUID, data: "mode=755" },
    Mount {
        source: "devpts",
        target: "/dev/pts",
        kind: "devpts",
        flags: libc::MS_NOSUID | libc::MS_NOEXEC,
        data: "gid=5,mode=620,ptmxmode=666",
    },
    Mount {
        source: "shm",
        target: "/dev/shm",
        kind: "tmpfs",
        flags: libc::MS_NOSUID | libc::MS_NODEV,
        data: "mode=1777",
    },
    Mount { source: "run", target: "/run", kind: "tmpfs", flags: libc::MS_NOSUID | libc::MS_NODEV, data: "mode=755" },
    Mount { source: "cgroup2", target: "/sys/fs/cgroup", kind: "cgroup2", flags: RESTRICTED, data: "nsdelegate" },
];

/// devtmpfs does not create these, but shells and scripts expect them.
const LINKS: [(&str, &str); 4] = [
    ("/proc/self/fd", "/dev/fd"),
    ("/proc/self/fd/0", "/dev/stdin"),
    ("/proc/self/fd/1", "/dev/stdout"),
    ("/proc/self/fd/2", "/dev/stderr"),
];

/// The out-of-memory score needs no adjustment: the kernel never kills PID 1.
pub fn set_up(command_line: &CommandLine) {
    for wanted in &MOUNTS {
        warn(wanted.target, mount_once(wanted));
    }
    for (to, link) in LINKS {
        warn(link, make_link(to, link));
    }
    warn("/run/lock", make_directory("/run/lock", 0o1777));
    warn("file limit", raise_file_limit());
    warn("network", net::bring_up(command_line.mtu));
    warn("names", identity::set_defaults(Path::new("/"), net::NAMESERVER));
}

fn warn(what: &str, result: Result<()>) {
    if let Err(error) = result {
        log(&format!("failed to set up {what}: {error}"));
    }
}

fn mount_once(wanted: &Mount) -> Result<()> {
    // An error here is ignored: the directory may exist on a read-only root, and if it does not, the mount below fails.
    let _ = fs::create_dir_all(wanted.target);
    if is_mount_point(Path::new(wanted.target)) {
        return Ok(());
    }
    mount(wanted.source, wanted.target, wanted.kind, wanted.flags, wanted.data)
}

/// True if moved from the initramfs or mounted by the kernel: a second mount would only hide the first.
fn is_mount_point(path: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
    path.parent().is_some_and(|parent| device(parent) != device(path))
}

fn make_link(to: &str, link: &str) -> Result<()> {
    match symlink(to, link) {
        Err(error) if error.raw_os_error() != Some(libc::EEXIST) => Err(error),
        _ => Ok(()),
    }
}

fn make_directory(path: &str, mode: u32) -> Result<()> {
    fs::create_dir_all(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// The kernel starts PID 1 with limits of 1024 and 4096; servers and databases need more, and all processes inherit it.
fn raise_file_limit() -> Result<()> {
    let limit = libc::rlimit { rlim_cur: 65_536, rlim_max: 1_048_576 };
    // SAFETY: reads a local.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) })?;
    Ok(())
}

/// PID 1 may be started without descriptors 0, 1 and 2; a pipe must never get one of these numbers.
pub fn fill_standard_descriptors() -> Result<()> {
    loop {
        // SAFETY: plain open. Descriptors up to 2 stay open; the first one above is closed again.
        let fd = check(unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) });
        match fd {
            Ok(fd) if fd > 2 => {
                unsafe { libc::close(fd) };
                return Ok(());
            }
            Ok(_) => {}
            Err(error) => return Err(Error::other(format!("/dev/null: {error}"))),
        }
    }
}
