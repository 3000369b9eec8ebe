//! Everything that belongs to the mount. One thread runs all of it, so its parts need no locks, but nothing may be
//! borrowed while a request waits.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::{Notify, RwLockWriteGuard};

use crate::config::{Config, Defaults};
use crate::file::folder::StageFolder;
use crate::fuse::abi::{EntryTimes, ROOT};
use crate::fuse::device::Device;
use crate::handles::Handles;
use crate::s3::client::Client;
use crate::s3::failure::{Failure, Result};
use crate::s3::metadata::Kind;
use crate::s3::transport::Transport;
use crate::tree::Tree;
use crate::tree::node::{Attrs, Node};

/// How long an answer of the bucket is used, here and again in the kernel. Changes that others make in the bucket are
/// seen after at most twice this time.
pub const FRESH_FOR: Duration = Duration::from_secs(1);

/// Mode, owner and time of a directory. Whether it exists is in the listing of the one above.
const DIRECTORY_FRESH_FOR: Duration = Duration::from_secs(10);

pub struct Mount {
    pub config: Config,
    pub defaults: Defaults,
    pub client: Client,
    pub stages: Rc<StageFolder>,
    pub tree: RefCell<Tree>,
    pub handles: RefCell<Handles>,
    /// For notifications; None in tests without a kernel.
    pub device: RefCell<Option<Rc<Device>>>,
    pub conditions: Cell<Conditions>,
    /// What the status says: unknown until a server has answered.
    pub tested_conditions: Cell<Conditions>,
    pub conditions_known: Notify,
    /// Another proxy or token is used.
    pub connected: Notify,
    /// Directories that are being renamed. Nothing below them is saved meanwhile.
    pub renaming: RefCell<Vec<u64>>,
    pub renamed: Notify,
    problems: RefCell<Vec<Problem>>,
    /// Bytes of objects in memory, read ahead of programs.
    pub read_ahead_bytes: Cell<usize>,
}

/// Whether the server refuses a conditional write whose condition does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Conditions {
    Unknown,
    /// The mount is read-only.
    Unused,
    Honoured,
    Ignored,
    /// The server answers such requests with an error, so they are not used.
    Refused,
}

/// A file that could not be saved.
#[derive(Clone, Debug, Serialize)]
pub struct Problem {
    pub path: String,
    pub message: String,
    /// Where its data is, if the file in the bucket was changed by someone else meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<PathBuf>,
    /// The same, relative to the stage folder.
    #[serde(skip)]
    place: Option<PathBuf>,
}

/// A status with so many is a line of at most 200 KiB, which the guest agent accepts.
const PROBLEMS_MAX: usize = 32;
const TEXT_MAX_CHARACTERS: usize = 512;

impl Mount {
    pub fn new(config: Config) -> Result<Rc<Self>> {
        let defaults = config.defaults();
        let transport = Transport::new(config.address, config.token.clone(), config.limits());
        let stages = StageFolder::open(&config.stage_folder, config.stage_max_mib << 20)?;
        let conditions = if config.read_only { Conditions::Unused } else { Conditions::Unknown };
        let root = Attrs::of_new(Kind::Directory, defaults.mode(Kind::Directory), defaults.uid, defaults.gid);
        Ok(Rc::new(Self {
            conditions: Cell::new(conditions),
            tested_conditions: Cell::new(conditions),
            config,
            defaults,
            client: Client { transport },
            stages,
            tree: RefCell::new(Tree::new(root)),
            handles: RefCell::default(),
            device: RefCell::default(),
            conditions_known: Notify::new(),
            connected: Notify::new(),
            renaming: RefCell::default(),
            renamed: Notify::new(),
            problems: RefCell::default(),
            read_ahead_bytes: Cell::new(0),
        }))
    }

    pub fn node(&self, id: u64) -> Result<Rc<Node>> {
        self.tree.borrow().get(id).ok_or_else(|| Failure::errno(libc::ESTALE))
    }

    pub fn parent_of(&self, node: &Node) -> Result<Rc<Node>> {
        self.node(node.parent())
    }

    /// The key of a file or link.
    pub fn key(&self, node: &Node) -> Result<String> {
        self.tree.borrow().key(node).ok_or_else(|| Failure::errno(libc::ENOENT))
    }

    /// What the keys of a directory's entries start with.
    pub fn prefix(&self, directory: &Node) -> Result<String> {
        if directory.id == ROOT {
            return Ok(String::new());
        }
        Ok(format!("{}/", self.key(directory)?))
    }

    /// The key of the object that has the attributes of a directory. For the root it is a hidden one.
    pub fn marker_key(&self, directory: &Node) -> Result<String> {
        if directory.id == ROOT { Ok(ROOT_MARKER.to_owned()) } else { self.prefix(directory) }
    }

    pub fn check_writable(&self) -> Result<()> {
        if self.config.read_only { Err(Failure::errno(libc::EROFS)) } else { Ok(()) }
    }

    /// How users know a path of the stage folder.
    pub fn shown(&self, path: &Path) -> PathBuf {
        self.config.shown_stage_folder.as_ref().unwrap_or(&self.config.stage_folder).join(path)
    }

    /// `kept` is relative to the stage folder.
    pub fn report(&self, path: &str, failure: &Failure, kept: Option<PathBuf>) {
        eprintln!("failed to save {path}: {failure}");
        self.clear_problem(path);
        let mut problems = self.problems.borrow_mut();
        if problems.len() >= PROBLEMS_MAX {
            problems.remove(0);
        }
        let (path, message) = (cut(path), cut(&failure.to_string()));
        let shown = kept.as_ref().map(|kept| self.shown(kept));
        problems.push(Problem { path, message, kept: shown, place: kept });
    }

    /// The file is saved now.
    pub fn clear_problem(&self, path: &str) {
        let path = cut(path);
        self.problems.borrow_mut().retain(|problem| problem.kept.is_some() || problem.path != path);
    }

    pub fn has_problem(&self, path: &str) -> bool {
        let path = cut(path);
        self.problems.borrow().iter().any(|problem| problem.kept.is_none() && problem.path == path)
    }

    /// Without conflicts whose data the user has removed.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = self.problems.borrow_mut();
        problems.retain(|problem| problem.place.as_ref().is_none_or(|kept| self.stages.has_kept(kept)));
        problems.clone()
    }

    /// What the kernel has cached of a node is no longer right.
    pub fn invalidate(&self, node: &Node) {
        node.fresh_until.set(None);
        node.cached_etag.borrow_mut().clear();
        if let Some(device) = self.device.borrow().as_ref() {
            device.invalidate_node(node.id);
        }
    }

    pub fn dirty_nodes(&self) -> Vec<Rc<Node>> {
        let mut nodes = self.tree.borrow().all();
        nodes.retain(|node| node.is_dirty() && !node.is_unlinked.get());
        nodes.sort_by_key(|node| node.id);
        nodes
    }

    /// What the bucket says about a node is known as of now.
    pub fn refreshed(&self, node: &Node) {
        let lifetime = if node.kind == Kind::Directory { DIRECTORY_FRESH_FOR } else { FRESH_FOR };
        node.fresh_until.set(Some(Instant::now() + lifetime));
    }

    /// Waits until no directory above the node is being renamed.
    pub async fn wait_for_renames(&self, node: &Node) {
        loop {
            let renamed = self.renamed.notified();
            if !self.is_moving(node) {
                return;
            }
            renamed.await;
        }
    }

    /// The exclusive lock of a node whose key does not change while it is held. A rename of a directory locks the nodes
    /// below it, so nothing may wait for the rename with such a lock in hand.
    pub async fn lock<'a>(&self, node: &'a Node) -> RwLockWriteGuard<'a, ()> {
        loop {
            self.wait_for_renames(node).await;
            let lock = node.writing.write().await;
            if !self.is_moving(node) {
                return lock;
            }
        }
    }

    pub fn is_moving(&self, node: &Node) -> bool {
        let tree = self.tree.borrow();
        self.renaming.borrow().iter().any(|above| tree.is_within(node, *above))
    }
}

/// Longer texts end with an ellipsis.
pub fn cut(text: &str) -> String {
    match text.char_indices().nth(TEXT_MAX_CHARACTERS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// A hidden object with the attributes of the root. Other names that start like this are hidden, too.
pub const ROOT_MARKER: &str = ".bucket-mount";

pub const TIMES: EntryTimes = EntryTimes { entry: FRESH_FOR, attributes: FRESH_FOR };
