//! Everything a managed process has started, however it forked.
//!
//! Each has a cgroup (v2) of its own and is born in it; children stay in the cgroup of their parent whether they fork
//! twice, make a session or lose their parent. Controllers are not enabled: the groups limit nothing. A machine
//! without cgroup v2 falls back to sessions, which lose sight of children that make one of their own; GET /ready says
//! which of the two it is.

use std::fs;
use std::io::{Error, Result};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::Duration;

use crate::kmsg::say;
use crate::session::{kill_session, members_of};
use crate::sys;

/// Those that fork while we look are found in the next round.
const KILL_ROUNDS_MAX: usize = 10;

const REMOVE_ROUNDS_MAX: usize = 200;
const REMOVE_PAUSE: Duration = Duration::from_millis(5);

/// Where the cgroups of this agent are.
pub struct Trees {
    is_init: bool,
    root: OnceLock<Option<PathBuf>>,
}

impl Trees {
    pub fn new(is_init: bool) -> Self {
        Self { is_init, root: OnceLock::new() }
    }

    /// None: no cgroup v2 here, or none that may be written.
    pub fn root(&self) -> Option<&Path> {
        let found = self.root.get_or_init(|| match make_root(self.is_init) {
            Ok(root) => Some(root),
            Err(error) => {
                say(&format!("no cgroups, processes are tracked by session: {error}"));
                None
            }
        });
        found.as_deref()
    }

    /// A new, empty group, and the descriptor by which a program is born in it.
    pub fn make(&self, name: &str) -> Result<Option<(Tree, OwnedFd)>> {
        let Some(root) = self.root() else { return Ok(None) };
        let path = root.join(name);
        fs::create_dir(&path)?;
        let directory = sys::open(&path, libc::O_DIRECTORY | libc::O_RDONLY, 0)?;
        Ok(Some((Tree::Cgroup(path), directory)))
    }

    /// At the end of agents of tests and development; the machine's own never ends.
    pub fn remove(&self) {
        let Some(Some(root)) = self.root.get() else { return };
        // Who was killed a moment ago may still be dying.
        for _ in 0..REMOVE_ROUNDS_MAX {
            remove_groups(root);
            if !root.exists() {
                return;
            }
            sleep(REMOVE_PAUSE);
        }
    }
}

impl Drop for Trees {
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
        remove_strays(&parent);
    }
    let root = parent.join(name);
    match fs::create_dir(&root) {
        Err(error) if error.raw_os_error() != Some(libc::EEXIST) => Err(error),
        _ => Ok(root),
    }
}

/// Groups of agents that were killed in tests or development.
fn remove_strays(parent: &Path) {
    for group in groups_in(parent) {
        let name = group.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let pid = name.strip_prefix("warren-").and_then(|rest| rest.split('-').next());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            remove_groups(&group);
        }
    }
}

#[derive(Clone, Debug)]
pub enum Tree {
    Cgroup(PathBuf),
    /// The number of the session is that of its leader.
    Session(i32),
}

impl Tree {
    /// Zombies do not count: they only wait for their parent to look.
    pub fn is_empty(&self) -> bool {
        match self {
            // A group that is gone was empty when it went.
            Self::Cgroup(path) => fs::read_to_string(path.join("cgroup.events"))
                .map_or(true, |events| events.lines().any(|line| line == "populated 0")),
            Self::Session(session) => members_of(*session).is_empty(),
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
                // Before Linux 5.14.
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
            Self::Cgroup(path) => members_of_group(path),
            Self::Session(session) => members_of(*session),
        }
    }

    /// When it is empty. A group that is not stays: the kernel refuses.
    pub fn remove(&self) {
        if let Self::Cgroup(path) = self {
            remove_groups(path);
        }
    }
}

/// Programs may divide their group further.
fn members_of_group(path: &Path) -> Vec<i32> {
    let own = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    let mut pids: Vec<i32> = own.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0).collect();
    for group in groups_in(path) {
        pids.extend(members_of_group(&group));
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
