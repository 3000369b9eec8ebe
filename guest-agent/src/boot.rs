//! Boots from the initramfs into the root filesystem.
//!
//! The root filesystem belongs to the user and may be anything: Debian, Alpine, a single static binary. It must not
//! contain the agent, because two versions would drift apart. Therefore the process does not exec a second program
//! there: it moves the mounts, makes the disk the root, and continues running. Its code stays in the memory of the
//! initramfs, which is never swapped out and which the user cannot delete, replace or fill up.

use std::fs::{self, File};
use std::io::{Error, Result};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::kmsg::log;
use crate::machine::fill_standard_descriptors;
use crate::sys::{check, check_long, mount};

const NEW_ROOT: &str = "/newroot";
const MODULES: &str = "/modules";
const MOUNT_PROGRAM: &str = "/bucket-mount";
const DISK_TIMEOUT: Duration = Duration::from_secs(10);
const DISK_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Parameters that the host passes on the kernel command line.
#[derive(Debug, PartialEq)]
pub struct CommandLine {
    /// `warren.root=`: the disk to boot from.
    pub root: String,
    /// `warren.rootfstype=`
    pub root_kind: String,
    /// `warren.ro`: mount it read-only.
    pub read_only: bool,
    /// `warren.mtu=`: the MTU of eth0; the kernel's default when absent.
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

/// Whether the agent was started from an initramfs, rather than from the disk by a kernel with `init=`.
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

/// Returns the mount program, which the initramfs contains.
pub fn enter_root(command_line: &CommandLine) -> Result<Option<File>> {
    load_modules();
    // Open, it stays in memory; the user can neither delete nor replace it.
    let mount_program = File::open(MOUNT_PROGRAM).ok();
    wait_for(Path::new(&command_line.root))?;
    fs::create_dir_all(NEW_ROOT)?;
    let flags = libc::MS_NOATIME | if command_line.read_only { libc::MS_RDONLY } else { 0 };
    mount(&command_line.root, NEW_ROOT, &command_line.root_kind, flags, "")
        .map_err(|error| Error::other(format!("mount {}: {error}", command_line.root)))?;
    free_initramfs();
    switch_root()?;
    Ok(mount_program)
}

/// /modules/order lists one module per line, each after its dependencies.
fn load_modules() {
    let order = fs::read_to_string(Path::new(MODULES).join("order")).unwrap_or_default();
    for name in order.lines().map(str::trim).filter(|name| !name.is_empty() && !name.starts_with('#')) {
        // A module that fails to load may be built into the kernel or not needed here. If it was needed, the disk does
        // not appear and `wait_for` fails.
        if let Err(error) = load_module(&Path::new(MODULES).join(name)) {
            log(&format!("failed to load module {name}: {error}"));
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
    let deadline = Instant::now() + DISK_TIMEOUT;
    while !device.exists() {
        if Instant::now() > deadline {
            return Err(Error::other(format!("disk {} did not appear", device.display())));
        }
        sleep(DISK_POLL_INTERVAL);
    }
    Ok(())
}

/// The modules are loaded; deleting the files returns their memory to the guest.
fn free_initramfs() {
    let _ = fs::remove_dir_all(MODULES);
    let _ = fs::remove_file("/init");
    let _ = fs::remove_file(MOUNT_PROGRAM);
}

/// Like switch_root(8): moves the disk's mount to `/`.
fn switch_root() -> Result<()> {
    for early in ["/dev", "/proc", "/sys"] {
        let moved_to = format!("{NEW_ROOT}{early}");
        // Fails on a read-only image without the directory. Moving the mount then fails too and is logged.
        let _ = fs::create_dir(&moved_to);
        if let Err(error) = mount(early, &moved_to, "", libc::MS_MOVE, "") {
            log(&format!("failed to move mount {early}: {error}"));
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
    fn the_command_line_is_parsed_by_whole_words() {
        let seen = CommandLine::parse("quiet root=/dev/vdb warren.root=/dev/vdc warren.ro warren.mtu=1400 panic=-1\n");

        let wanted =
            CommandLine { root: "/dev/vdc".into(), root_kind: "ext4".into(), read_only: true, mtu: Some(1400) };
        assert_eq!(seen, wanted);
        assert_eq!(CommandLine::parse("warren.rox warren.mtu=x").root, "/dev/vda");
        assert!(!CommandLine::parse("warren.rox").read_only);
    }
}
