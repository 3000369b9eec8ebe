//! The root file system of the guest agent: a tmpfs with the machine's own programs and devices, and a private /etc.

use std::fs;
use std::io::{ErrorKind, Result};
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::sys::{c_string, check, check_long, mount};

const PROGRAMS: [&str; 6] = ["usr", "bin", "sbin", "lib", "lib64", "lib32"];
const EMPTY: [&str; 9] = ["etc", "root", "tmp", "run", "var/tmp", "proc", "sys", "dev", "sockets"];
/// What programs look up about users, libraries and names. The rest of /etc is the machine's own business.
const SETTINGS: [&str; 6] = ["passwd", "group", "nsswitch.conf", "ld.so.cache", "profile", "shells"];

/// The tmpfs is mounted over the work folder, whose disk has no use here. Afterwards no path leads to the machine's root.
pub fn enter(work: &str, sockets: &str, agent: &Path) -> Result<()> {
    let inside = |path: &str| format!("{work}/{path}");
    mount("none", "/", None, libc::MS_REC | libc::MS_PRIVATE)?;
    mount("tmpfs", work, Some("tmpfs"), libc::MS_NOSUID)?;
    for folder in EMPTY {
        fs::create_dir_all(inside(folder))?;
    }
    for name in PROGRAMS {
        add_programs(name, &inside(name))?;
    }
    for name in SETTINGS {
        match fs::copy(format!("/etc/{name}"), inside(&format!("etc/{name}"))) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    fs::write(inside("guest-agent"), "")?;
    mount(&agent.to_string_lossy(), &inside("guest-agent"), None, libc::MS_BIND)?;
    mount("/dev", &inside("dev"), None, libc::MS_BIND | libc::MS_REC)?;
    mount("/sys", &inside("sys"), None, libc::MS_BIND | libc::MS_REC)?;
    mount(sockets, &inside("sockets"), None, libc::MS_BIND)?;
    mount("proc", &inside("proc"), Some("proc"), 0)?;
    pivot(work)
}

/// /bin is a link to /usr/bin where the two are merged.
fn add_programs(name: &str, target: &str) -> Result<()> {
    let source = format!("/{name}");
    let Ok(found) = fs::symlink_metadata(&source) else { return Ok(()) };
    if found.is_symlink() {
        return symlink(fs::read_link(&source)?, target);
    }
    fs::create_dir(target)?;
    mount(&source, target, None, libc::MS_BIND)
}

fn pivot(root: &str) -> Result<()> {
    let root = c_string(root)?;
    // SAFETY: valid C strings.
    unsafe {
        check(libc::chdir(root.as_ptr()))?;
        check_long(libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()))?;
        check(libc::umount2(c".".as_ptr(), libc::MNT_DETACH))?;
        check(libc::chdir(c"/".as_ptr()))?;
    }
    Ok(())
}
