//! A file, directory or symbolic link that the kernel knows, or that has unsaved changes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use tokio::sync::RwLock;

use super::directory::Directory;
use crate::config::Defaults;
use crate::file::stage::Stage;
use crate::fuse::abi::Attributes;
use crate::s3::client::Object;
use crate::s3::failure::{Cause, Failure, Result};
use crate::s3::list::Listed;
use crate::s3::metadata::{Kind, Metadata};
use crate::time::Time;

/// What the bucket says about a file, or what a program has set and is not saved yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Attrs {
    /// Permissions, without the type.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: Time,
    pub size: u64,
    /// Empty: not in the bucket yet.
    pub etag: String,
    /// When the object was made, in seconds: a change of its attributes alone leaves the ETag. None: not known, because
    /// this mount made it.
    pub last_modified: Option<i64>,
    /// Read from the object itself, rather than assumed from a listing.
    pub is_exact: bool,
}

impl Attrs {
    pub fn of_object(object: &Object, kind: Kind, defaults: &Defaults) -> Self {
        let metadata = &object.metadata;
        Self {
            mode: metadata.mode.map_or(defaults.mode(kind), |mode| mode & 0o7777),
            uid: metadata.uid.unwrap_or(defaults.uid),
            gid: metadata.gid.unwrap_or(defaults.gid),
            mtime: metadata.mtime.unwrap_or(object.last_modified),
            size: object.size,
            etag: object.etag.clone(),
            last_modified: Some(object.last_modified.seconds),
            is_exact: true,
        }
    }

    pub fn of_listed(listed: &Listed, defaults: &Defaults) -> Self {
        Self {
            mode: defaults.mode(Kind::File),
            uid: defaults.uid,
            gid: defaults.gid,
            mtime: listed.last_modified,
            size: listed.size,
            etag: listed.etag.clone(),
            last_modified: Some(listed.last_modified.seconds),
            is_exact: false,
        }
    }

    pub fn of_new(kind: Kind, mode: u32, uid: u32, gid: u32) -> Self {
        let is_exact = kind != Kind::Directory;
        let mode = mode & 0o7777;
        Self { mode, uid, gid, mtime: Time::now(), size: 0, etag: String::new(), last_modified: None, is_exact }
    }

    /// Whether these attributes belong to the object of a listing.
    pub fn is_of(&self, listed: &Listed) -> bool {
        self.is_exact
            && self.etag == listed.etag
            && self.last_modified.is_none_or(|seconds| seconds == listed.last_modified.seconds)
    }

    /// What is stored with the object.
    pub fn metadata(&self, kind: Kind) -> Metadata {
        Metadata {
            mode: Some(self.mode | kind.mode()),
            uid: Some(self.uid),
            gid: Some(self.gid),
            mtime: Some(self.mtime),
            is_ours: kind == Kind::Directory,
            write_id: None,
        }
    }
}

pub struct Node {
    pub id: u64,
    pub kind: Kind,
    pub place: RefCell<Place>,
    pub attrs: RefCell<Attrs>,
    /// Until when the attributes may be used without asking the bucket.
    pub fresh_until: Cell<Option<Instant>>,
    /// References of the kernel.
    pub lookups: Cell<u64>,
    /// Open handles.
    pub opens: Cell<u32>,
    /// It has no name any more. Programs that have it open can still use it.
    pub is_unlinked: Cell<bool>,
    /// Its changes conflicted with the bucket while a program had it open for writing. What that program writes next belongs to
    /// its own version, not to the one that the bucket has, so it is refused until it has closed the file.
    pub is_conflicted: Cell<bool>,
    /// Unsaved changes.
    pub stage: RefCell<Option<Rc<Stage>>>,
    /// Shared by writes. Exclusive while the content is saved, renamed or deleted, so that it does not change meanwhile.
    pub writing: RwLock<()>,
    pub directory: Option<Box<Directory>>,
    /// Of a symbolic link, with the ETag it belongs to.
    pub target: RefCell<Option<(String, String)>>,
    /// The ETag of what the kernel has cached of the file.
    pub cached_etag: RefCell<String>,
}

#[derive(Clone, Debug)]
pub struct Place {
    pub parent: u64,
    pub name: String,
}

impl Node {
    pub fn new(id: u64, kind: Kind, place: Place, attrs: Attrs) -> Rc<Self> {
        Rc::new(Self {
            id,
            kind,
            place: RefCell::new(place),
            attrs: RefCell::new(attrs),
            fresh_until: Cell::new(None),
            lookups: Cell::new(0),
            opens: Cell::new(0),
            is_unlinked: Cell::new(false),
            is_conflicted: Cell::new(false),
            stage: RefCell::default(),
            writing: RwLock::default(),
            directory: (kind == Kind::Directory).then(Box::default),
            target: RefCell::default(),
            cached_etag: RefCell::default(),
        })
    }

    pub fn is_fresh(&self) -> bool {
        self.is_dirty() || self.fresh_until.get().is_some_and(|until| until > Instant::now())
    }

    pub fn check_not_conflicted(&self) -> Result<()> {
        match self.is_conflicted.get() {
            true => Err(Failure::new(Cause::Conflict, "the file was changed in the bucket while it was open")),
            false => Ok(()),
        }
    }

    pub fn is_dirty(&self) -> bool {
        self.stage.borrow().is_some()
    }

    pub fn stage(&self) -> Option<Rc<Stage>> {
        self.stage.borrow().clone()
    }

    pub fn size(&self) -> u64 {
        self.stage.borrow().as_ref().map_or_else(|| self.attrs.borrow().size, |stage| stage.size())
    }

    pub fn attributes(&self) -> Attributes {
        let attrs = self.attrs.borrow();
        Attributes {
            node: self.id,
            size: if self.kind == Kind::Directory { 0 } else { self.size() },
            mtime: attrs.mtime,
            mode: attrs.mode | self.kind.mode(),
            links: match (self.is_unlinked.get(), self.kind) {
                (true, _) => 0,
                (false, Kind::Directory) => 2,
                (false, _) => 1,
            },
            uid: attrs.uid,
            gid: attrs.gid,
        }
    }

    pub fn name(&self) -> String {
        self.place.borrow().name.clone()
    }

    pub fn parent(&self) -> u64 {
        self.place.borrow().parent
    }
}
