//! Reads directories for programs. Offsets are 0 for `.`, 1 for `..`, then the number of the entry plus 2.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

use super::listing::{PAGE_KEYS, add_page, load_listing};
use super::lookup::{Found, apply, known_attributes};
use crate::fuse::wire::{DIRENT_BYTES, ENTRY_OUT_BYTES, Entries};
use crate::handles::DirectoryHandle;
use crate::mount::{Mount, TIMES};
use crate::s3::failure::Result;
use crate::s3::metadata::Kind;
use crate::tree::directory::Entry;
use crate::tree::node::Node;

/// The entries that a program reads, as of its first read. Of a directory that is too large, only one page.
#[derive(Default)]
pub struct Cursor {
    is_loaded: bool,
    entries: Vec<(String, Entry)>,
    /// The number of the first of them.
    first: u64,
    /// Where the next page starts.
    next: Option<String>,
}

/// Above this, entries are returned without attributes, which would each need memory until the kernel forgets them.
const NODES_MAX: usize = 20_000;
/// A longer object is not a symbolic link.
const TARGET_MAX_BYTES: u64 = 4096;
const TYPE_UNKNOWN: u32 = 0;
/// What programs see as the number of a file that is not looked up yet.
const UNKNOWN_NODE: u64 = u64::MAX;

pub async fn read_directory(
    mount: &Rc<Mount>,
    handle: &DirectoryHandle,
    offset: u64,
    (size, plus): (u32, bool),
) -> Result<Vec<u8>> {
    let mut cursor = handle.cursor.lock().await;
    if offset == 0 || !cursor.is_loaded {
        load_first(mount, &handle.node, &mut cursor).await?;
    }
    let mut output = Entries::new(size as usize);
    let mut offset = offset;
    loop {
        if offset < 2 {
            let (id, name) = if offset == 0 { (handle.node.id, ".") } else { (handle.node.parent(), "..") };
            if !add_plain(&mut output, plus, (id, offset + 1, Kind::Directory.dirent()), name) {
                break;
            }
            offset += 1;
            continue;
        }
        let number = offset - 2;
        if number < cursor.first {
            load_first(mount, &handle.node, &mut cursor).await?;
            continue;
        }
        let Some((name, entry)) = cursor.entries.get((number - cursor.first) as usize) else {
            if cursor.next.is_none() {
                break;
            }
            load_next(mount, &handle.node, &mut cursor).await?;
            continue;
        };
        if !add_entry(mount, &handle.node, &mut output, plus, (name, entry, offset + 1)) {
            break;
        }
        offset += 1;
    }
    Ok(output.into_bytes())
}

async fn load_first(mount: &Rc<Mount>, node: &Rc<Node>, cursor: &mut Cursor) -> Result<()> {
    load_listing(mount, node, true).await?;
    *cursor = Cursor { is_loaded: true, ..Cursor::default() };
    let listed = node.directory.as_deref().and_then(|directory| directory.with_listing(BTreeMap::clone));
    match listed {
        Some(entries) => {
            cursor.entries = entries.into_iter().collect();
            add_unsaved(mount, node, cursor);
            Ok(())
        }
        None => load_page(mount, node, cursor, None).await,
    }
}

async fn load_next(mount: &Rc<Mount>, node: &Rc<Node>, cursor: &mut Cursor) -> Result<()> {
    cursor.first += cursor.entries.len() as u64;
    cursor.entries = Vec::new();
    let next = cursor.next.take();
    load_page(mount, node, cursor, next).await
}

async fn load_page(mount: &Rc<Mount>, node: &Rc<Node>, cursor: &mut Cursor, from: Option<String>) -> Result<()> {
    let started = Instant::now();
    let prefix = mount.prefix(node)?;
    let mut page = mount.client.list(&prefix, true, from.as_deref(), PAGE_KEYS).await?;
    cursor.next = page.next.take();
    let mut entries = BTreeMap::new();
    add_page(&mut entries, page, &prefix);
    if let Some(directory) = node.directory.as_deref() {
        for (name, entry) in directory.changes_since(started) {
            if entry.is_none() {
                entries.remove(&name);
            }
        }
    }
    cursor.entries = entries.into_iter().collect();
    if cursor.next.is_none() {
        add_unsaved(mount, node, cursor);
    }
    Ok(())
}

/// New files that are not in the bucket yet.
fn add_unsaved(mount: &Mount, node: &Node, cursor: &mut Cursor) {
    for child in mount.tree.borrow().children(node.id) {
        if child.is_dirty() && child.attrs.borrow().etag.is_empty() {
            let name = child.name();
            if !cursor.entries.iter().any(|(found, _)| *found == name) {
                cursor.entries.push((name, Entry::Object(Default::default())));
            }
        }
    }
}

fn add_entry(
    mount: &Rc<Mount>,
    parent: &Rc<Node>,
    output: &mut Entries,
    plus: bool,
    (name, entry, next): (&str, &Entry, u64),
) -> bool {
    let known = mount.tree.borrow().find(parent.id, name);
    let unknown_kind = match entry {
        Entry::Directory => Kind::Directory.dirent(),
        Entry::Object(listed) if parent_keeps(parent) && listed.size <= TARGET_MAX_BYTES => TYPE_UNKNOWN,
        Entry::Object(_) => Kind::File.dirent(),
    };
    let kind = known.as_ref().map_or(unknown_kind, |node| node.kind.dirent());
    if !plus {
        let id = known.map_or(UNKNOWN_NODE, |node| node.id);
        return add_plain(output, false, (id, next, kind), name);
    }
    if !output.has_room(ENTRY_OUT_BYTES + DIRENT_BYTES + name.len()) {
        return false;
    }
    match find_node(mount, parent, known, (name, entry)) {
        Some(node) => {
            let attributes = node.attributes();
            node.lookups.set(node.lookups.get() + 1);
            output.add_plus(Some((&attributes, TIMES)), (node.id, next, node.kind.dirent()), name.as_bytes())
        }
        None => output.add_plus(None, (UNKNOWN_NODE, next, kind), name.as_bytes()),
    }
}

/// The node with its attributes, if they are known without another request.
fn find_node(
    mount: &Rc<Mount>,
    parent: &Rc<Node>,
    known: Option<Rc<Node>>,
    (name, entry): (&str, &Entry),
) -> Option<Rc<Node>> {
    if let Some(node) = known.as_ref().filter(|node| node.is_dirty()) {
        return Some(node.clone());
    }
    if known.is_none() && mount.tree.borrow().len() > NODES_MAX {
        return None;
    }
    match entry {
        // The attributes of a directory are in its marker.
        Entry::Directory => known.filter(|node| node.kind == Kind::Directory && node.is_fresh()),
        Entry::Object(listed) => {
            let (kind, attrs) = known_attributes(mount, parent, name, listed)?;
            apply(mount, parent, name, Found::Object(kind, attrs))
        }
    }
}

fn add_plain(output: &mut Entries, plus: bool, (id, next, kind): (u64, u64, u32), name: &str) -> bool {
    match plus {
        true => output.add_plus(None, (id, next, kind), name.as_bytes()),
        false => output.add(id, next, kind, name.as_bytes()),
    }
}

fn parent_keeps(parent: &Node) -> bool {
    parent.directory.as_deref().is_some_and(|directory| directory.keeps_attributes())
}
