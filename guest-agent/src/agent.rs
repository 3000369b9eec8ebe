//! State shared by all requests. Built once in `main.rs` and once per test.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use crate::image_envs;
use crate::mounts::Mounts;
use crate::own_root::OwnRoot;
use crate::process_tree::ProcessTrees;
use crate::processes::Processes;
use crate::self_signal::Signals;
use crate::ssh::Ssh;
use crate::workers::WorkerPool;

pub struct Agent {
    pub workers: WorkerPool,
    /// Whether the agent is PID 1, so that it may set up the machine and turn it off. False in tests and development.
    pub is_init: bool,
    /// Notified by POST /poweroff; `main.rs` waits for it.
    pub power_off: Notify,
    pub mounts: Mounts,
    /// Where the agent's own files are, whatever is mounted over them.
    pub own_root: OwnRoot,
    pub processes: Processes,
    pub trees: ProcessTrees,
    pub signals: Signals,
    pub ssh: Ssh,
    /// The sandbox's environment variables, passed to every program. Held only in memory.
    envs: Mutex<Arc<BTreeMap<String, String>>>,
    /// The operator's variables, which those of the sandbox override.
    default_envs: Mutex<Arc<BTreeMap<String, String>>>,
    /// The variables of the image, which override the operator's.
    image_envs: BTreeMap<String, String>,
    /// The sandbox's address, once the host has given it one.
    address: Mutex<Option<Ipv4Addr>>,
}

impl Agent {
    pub fn new(is_init: bool) -> Arc<Self> {
        Self::with_root(is_init, "/".into())
    }

    /// `root` is where the agent's own files, the SSH server, its keys and the variables of the image are: `/`, or a temporary
    /// directory in tests.
    pub fn with_root(is_init: bool, root: PathBuf) -> Arc<Self> {
        Arc::new(Self {
            workers: WorkerPool::start(),
            is_init,
            power_off: Notify::new(),
            mounts: Mounts::default(),
            processes: Processes::default(),
            trees: ProcessTrees::new(is_init),
            signals: Signals::default(),
            own_root: OwnRoot::open(&root),
            image_envs: image_envs::read(&root),
            ssh: Ssh::new(root),
            envs: Mutex::default(),
            default_envs: Mutex::default(),
            address: Mutex::default(),
        })
    }

    pub fn envs(&self) -> Arc<BTreeMap<String, String>> {
        self.envs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn image_envs(&self) -> &BTreeMap<String, String> {
        &self.image_envs
    }

    pub fn address(&self) -> Option<Ipv4Addr> {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_address(&self, address: Ipv4Addr) {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner) = Some(address);
    }

    pub fn set_envs(&self, envs: BTreeMap<String, String>) {
        *self.envs.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(envs);
    }

    pub fn default_envs(&self) -> Arc<BTreeMap<String, String>> {
        self.default_envs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set_default_envs(&self, envs: BTreeMap<String, String>) {
        *self.default_envs.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(envs);
    }
}
