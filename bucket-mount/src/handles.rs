//! Open files and directories.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use crate::file::reader::Reader;
use crate::ops::read_directory::Cursor;
use crate::s3::failure::{Failure, Result};
use crate::tree::node::Node;

#[derive(Default)]
pub struct Handles {
    files: HashMap<u64, Rc<FileHandle>>,
    directories: HashMap<u64, Rc<DirectoryHandle>>,
    last: u64,
}

pub struct FileHandle {
    pub node: Rc<Node>,
    pub is_writable: bool,
    pub reader: RefCell<Reader>,
}

pub struct DirectoryHandle {
    pub node: Rc<Node>,
    pub cursor: tokio::sync::Mutex<Cursor>,
}

impl Handles {
    pub fn open_file(&mut self, node: &Rc<Node>, is_writable: bool) -> u64 {
        node.opens.set(node.opens.get() + 1);
        self.last += 1;
        let handle = FileHandle { node: node.clone(), is_writable, reader: RefCell::default() };
        self.files.insert(self.last, Rc::new(handle));
        self.last
    }

    pub fn file(&self, handle: u64) -> Result<Rc<FileHandle>> {
        self.files.get(&handle).cloned().ok_or_else(|| Failure::errno(libc::EBADF))
    }

    /// The caller must then let the tree remove the node if it is unused.
    pub fn close_file(&mut self, handle: u64) -> Option<Rc<Node>> {
        let node = self.files.remove(&handle)?.node.clone();
        node.opens.set(node.opens.get().saturating_sub(1));
        Some(node)
    }

    pub fn is_open_for_writing(&self, node: &Node) -> bool {
        self.files.values().any(|handle| handle.is_writable && handle.node.id == node.id)
    }

    pub fn open_directory(&mut self, node: &Rc<Node>) -> u64 {
        node.opens.set(node.opens.get() + 1);
        self.last += 1;
        let handle = DirectoryHandle { node: node.clone(), cursor: tokio::sync::Mutex::default() };
        self.directories.insert(self.last, Rc::new(handle));
        self.last
    }

    pub fn directory(&self, handle: u64) -> Result<Rc<DirectoryHandle>> {
        self.directories.get(&handle).cloned().ok_or_else(|| Failure::errno(libc::EBADF))
    }

    pub fn close_directory(&mut self, handle: u64) -> Option<Rc<Node>> {
        let node = self.directories.remove(&handle)?.node.clone();
        node.opens.set(node.opens.get().saturating_sub(1));
        Some(node)
    }
}
