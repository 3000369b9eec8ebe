//! A process tree: everything that a managed process has started, however it forked.
//!
//! Each managed process is created in a separate cgroup (v2); its descendants stay in that cgroup even if they fork
//! twice, create a session or lose their parent. No controllers are enabled, so the cgroups limit nothing. Without
//! cgroup v2 the agent falls back to Unix sessions, which lose track of descendants that create another session; GET
//! /ready reports which of the two is in use.

use std::fs;
use std::io::{Error, Result};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::Duration;

use crate::kmsg::log;
use crate::sys;
use crate::unix_session::{kill_session, session_members};

/// Processes that fork during a round are found in the next one.
const KILL_ROUNDS_MAX: usize = 10;

const REMOVE_ROUNDS_MAX: usize = 200;
const REMOVE_PAUSE: Duration = Duration::from_millis(5);

/// The parent cgroup of all process trees of this agent.
pub struct ProcessTrees {
    is_init: bool,
    root: OnceLock<Option<PathBuf>>,
}

impl ProcessTrees {
    pub fn new(is_init: bool) -> Self {
        Self { is_init, root: OnceLock::new() }
    }

    /// None if cgroup v2 is not available or not writable.
    pub fn root(&self) -> Option<&Path> {
        let found = self.root.get_or_init(|| match make_root(self.is_init) {
            Ok(root) => Some(root),
            Err(error) => {
                log(&format!("cgroups are not available, tracking processes by session: {error}"));
                None
            }
        });
        found.as_deref()
    }

    /// Creates an empty cgroup. The descriptor is used to create a program in it.
    pub fn create(&self, name: &str) -> Result<Option<(ProcessTree, OwnedFd)>> {
        let Some(root) = self.root() else { return Ok(None) };
        let path = root.join(name);
        fs::create_dir(&path)?;
        let directory = sys::open(&path, libc::O_DIRECTORY | libc::O_RDONLY, 0)?;
        Ok(Some((ProcessTree::Cgroup(path), directory)))
    }

    /// Called when an agent in tests or development exits; the agent of a machine never exits.
    pub fn remove(&self) {
        let Some(Some(root)) = self.root.get() else { return };
        // Processes that were just killed may not have exited yet.
        for _ in 0..REMOVE_ROUNDS_MAX {
            remove_groups(root);
            if !root.exists() {
                return;
            }
            sleep(REMOVE_PAUSE);
        }
    }
}

impl Drop for ProcessTrees {
    fn drop(&mut self) {
        self.remove();
    }
}

fn make_root(is_init: bool) -> Result<PathBuf> {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mount = mounts
        .filter(|fields| fields.get(2) == Some(&"cgroup2"))
        .find_map(|fields| fields.get(1).copied().map(PathBuf::from));
    let mount = mount.ok_or_else(|| Error::other("cgroup2 is not mounted"))?;
    let own = fs::read_to_string("/proc/self/cgroup")?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let name = match is_init {
        true => "warren".to_owned(),
        false => format!("warren-{}-{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed)),
    };
    let parent = mount.join(own);
    if !is_init {
        remove_stale_cgroups(&parent);
    }
    let root = parent.join(name);
    match fs::create_dir(&root) {
        Err(error) if error.raw_os_error() != Some(libc::EEXIST) => Err(error),
        _ => Ok(root),
    }
}

/// Removes cgroups of agents that were killed in tests or development.
fn remove_stale_cgroups(parent: &Path) {
    for group in groups_in(parent) {
        let name = group.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let pid = name.strip_prefix("warren-").and_then(|rest| rest.split('-').next());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            remove_groups(&group);
        }
    }
}

#[derive(Clone, Debug)]
pub enum ProcessTree {
    Cgroup(PathBuf),
    /// Session id, which is the pid of its leader.
    Session(i32),
}

impl ProcessTree {
    /// Zombies do not count: they only wait to be reaped.
    pub fn is_empty(&self) -> bool {
        match self {
            // A cgroup that no longer exists was empty when it was removed.
            Self::Cgroup(path) => fs::read_to_string(path.join("cgroup.events"))
                .map_or(true, |events| events.lines().any(|line| line == "populated 0")),
            Self::Session(session) => session_members(*session).is_empty(),
        }
    }

    pub fn signal(&self, signal: i32) {
        for pid in self.members() {
            // SAFETY: plain kill.
            unsafe { libc::kill(pid, signal) };
        }
    }

    pub fn kill(&self) {
        match self {
            Self::Session(session) => kill_session(*session),
            Self::Cgroup(path) => {
                if fs::write(path.join("cgroup.kill"), "1").is_ok() {
                    return;
                }
                // Linux before 5.14 has no cgroup.kill.
                for _ in 0..KILL_ROUNDS_MAX {
                    if self.is_empty() {
                        return;
                    }
                    self.signal(libc::SIGKILL);
                }
            }
        }
    }

    fn members(&self) -> Vec<i32> {
        match self {
            Self::Cgroup(path) => cgroup_members(path),
            Self::Session(session) => session_members(*session),
        }
    }

    /// Removes the cgroup if it is empty; otherwise the kernel rejects the removal.
    pub fn remove(&self) {
        if let Self::Cgroup(path) = self {
            remove_groups(path);
        }
    }
}

/// Programs may create child cgroups.
fn cgroup_members(path: &Path) -> Vec<i32> {
    let own = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    let mut pids: Vec<i32> = own.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0).collect();
    for group in groups_in(path) {
        pids.extend(cgroup_members(&group));
    }
    pids
}

fn remove_groups(path: &Path) {
    for group in groups_in(path) {
        remove_groups(&group);
    }
    let _ = fs::remove_dir(path);
}

fn groups_in(path: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
    let directories = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.map(|entry| entry.path()).collect()
}
