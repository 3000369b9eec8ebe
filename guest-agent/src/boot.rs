//! The first second: from the initramfs into the root filesystem.
//!
//! The root filesystem is the user's and may be anything: Debian, Alpine, a single static binary. It need not hold
//! the agent, and it must not: two versions would drift apart. So the process does not exec a second program there.
//! It moves the mounts, makes the disk the root, and goes on running; its own code stays in the memory of the
//! initramfs, which is never swapped and cannot be deleted, replaced or filled up by the user.

use std::fs::{self, File};
use std::io::{Error, Result};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::kmsg::say;
use crate::machine::fill_standard_descriptors;
use crate::sys::{check, check_long, mount};

const NEW_ROOT: &str = "/newroot";
const MODULES: &str = "/modules";
const DISK_PATIENCE: Duration = Duration::from_secs(10);
const DISK_STEP: Duration = Duration::from_millis(2);

/// What the host may say on the kernel command line.
#[derive(Debug, PartialEq)]
pub struct CommandLine {
    /// `warren.root=`: the disk to boot from.
    pub root: String,
    /// `warren.rootfstype=`
    pub root_kind: String,
    /// `warren.ro`: mount it read-only.
    pub read_only: bool,
    /// `warren.mtu=`: of eth0; the kernel's own when absent.
    pub mtu: Option<u32>,
}

impl CommandLine {
    pub fn parse(text: &str) -> Self {
        let value = |name: &str| text.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        Self {
            root: value("warren.root").unwrap_or("/dev/vda").to_owned(),
            root_kind: value("warren.rootfstype").unwrap_or("ext4").to_owned(),
            read_only: text.split_whitespace().any(|word| word == "warren.ro"),
            mtu: value("warren.mtu").and_then(|mtu| mtu.parse().ok()),
        }
    }
}

/// PID 1 in the initramfs, or already on the disk (`init=` of a kernel that needs no initramfs)?
pub fn is_initramfs() -> bool {
    // SAFETY: all zeros is valid, and the kernel fills it.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    let known = unsafe { libc::statfs(c"/".as_ptr(), &mut stat) } == 0;
    const RAMFS_MAGIC: libc::__fsword_t = 0x8584_58f6;
    known && (stat.f_type == RAMFS_MAGIC || stat.f_type == libc::TMPFS_MAGIC)
}

pub fn mount_early() -> Result<()> {
    for (kind, target) in [("devtmpfs", "/dev"), ("proc", "/proc"), ("sysfs", "/sys")] {
        fs::create_dir_all(target)?;
        match mount(kind, target, kind, libc::MS_NOSUID, "") {
            Err(error) if error.raw_os_error() != Some(libc::EBUSY) => return Err(error),
            _ => {}
        }
    }
    fill_standard_descriptors()
}

pub fn read_command_line() -> CommandLine {
    CommandLine::parse(&fs::read_to_string("/proc/cmdline").unwrap_or_default())
}

pub fn enter_root(command_line: &CommandLine) -> Result<()> {
    load_modules();
    wait_for(Path::new(&command_line.root))?;
    fs::create_dir_all(NEW_ROOT)?;
    let flags = libc::MS_NOATIME | if command_line.read_only { libc::MS_RDONLY } else { 0 };
    mount(&command_line.root, NEW_ROOT, &command_line.root_kind, flags, "")
        .map_err(|error| Error::other(format!("mount {}: {error}", command_line.root)))?;
    free_initramfs();
    switch_root()
}

/// /modules/order names them one a line, each after those it needs.
fn load_modules() {
    let order = fs::read_to_string(Path::new(MODULES).join("order")).unwrap_or_default();
    for name in order.lines().map(str::trim).filter(|name| !name.is_empty() && !name.starts_with('#')) {
        // One that fails may be built in or not needed by this machine; the disk's absence would tell.
        if let Err(error) = load_module(&Path::new(MODULES).join(name)) {
            say(&format!("module {name}: {error}"));
        }
    }
}

fn load_module(path: &Path) -> Result<()> {
    const COMPRESSED_FILE: libc::c_int = 4;
    let file = File::open(path)?;
    let flags = if path.extension().is_some_and(|end| end == "ko") { 0 } else { COMPRESSED_FILE };
    // SAFETY: an open file, an empty argument string and flags.
    let loaded = unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), c"".as_ptr(), flags) };
    match check_long(loaded) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        result => result.map(drop),
    }
}

fn wait_for(device: &Path) -> Result<()> {
    let deadline = Instant::now() + DISK_PATIENCE;
    while !device.exists() {
        if Instant::now() > deadline {
            return Err(Error::other(format!("no disk {}", device.display())));
        }
        sleep(DISK_STEP);
    }
    Ok(())
}

/// The modules are in the kernel now; what is left of the initramfs is memory the guest can use.
fn free_initramfs() {
    let _ = fs::remove_dir_all(MODULES);
    let _ = fs::remove_file("/init");
}

/// As switch_root(8): the disk's mount takes the place of `/`.
fn switch_root() -> Result<()> {
    for early in ["/dev", "/proc", "/sys"] {
        let moved_to = format!("{NEW_ROOT}{early}");
        // A read-only image without the directory goes without; the later mounts will say so.
        let _ = fs::create_dir(&moved_to);
        if let Err(error) = mount(early, &moved_to, "", libc::MS_MOVE, "") {
            say(&format!("{early}: {error}"));
        }
    }
    std::env::set_current_dir(NEW_ROOT)?;
    mount(".", "/", "", libc::MS_MOVE, "")?;
    // SAFETY: plain chroot.
    check(unsafe { libc::chroot(c".".as_ptr()) })?;
    std::env::set_current_dir("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_read_word_by_word() {
        let seen = CommandLine::parse("quiet root=/dev/vdb warren.root=/dev/vdc warren.ro warren.mtu=1400 panic=-1\n");

        let wanted =
            CommandLine { root: "/dev/vdc".into(), root_kind: "ext4".into(), read_only: true, mtu: Some(1400) };
        assert_eq!(seen, wanted);
        assert_eq!(CommandLine::parse("warren.rox warren.mtu=x").root, "/dev/vda");
        assert!(!CommandLine::parse("warren.rox").read_only);
    }
}
