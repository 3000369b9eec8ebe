//! What all requests share. Built once in `main.rs` and once per test.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use crate::processes::Processes;
use crate::self_signal::Signals;
use crate::ssh::Ssh;
use crate::tree::Trees;
use crate::work::Work;

pub struct Agent {
    pub work: Work,
    /// Whether this machine is ours to set up and to turn off: false in tests and development.
    pub is_init: bool,
    /// Raised by POST /poweroff; `main.rs` waits for it.
    pub power_off: Notify,
    pub processes: Processes,
    pub trees: Trees,
    pub signals: Signals,
    pub ssh: Ssh,
    /// The sandbox's variables, in memory only, given to every program.
    envs: Mutex<Arc<BTreeMap<String, String>>>,
}

impl Agent {
    pub fn new(is_init: bool) -> Arc<Self> {
        Self::with_root(is_init, "/".into())
    }

    /// `root`: where it looks for an SSH server and its keys; a directory in tests.
    pub fn with_root(is_init: bool, root: PathBuf) -> Arc<Self> {
        let envs = Mutex::new(Arc::default());
        Arc::new(Self {
            work: Work::start(),
            is_init,
            power_off: Notify::new(),
            processes: Processes::default(),
            trees: Trees::new(is_init),
            signals: Signals::default(),
            ssh: Ssh::new(root),
            envs,
        })
    }

    pub fn envs(&self) -> Arc<BTreeMap<String, String>> {
        self.envs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set_envs(&self, envs: BTreeMap<String, String>) {
        *self.envs.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(envs);
    }
}
