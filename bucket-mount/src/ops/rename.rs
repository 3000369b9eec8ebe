//! Renames files and directories. S3 cannot rename: the server copies the objects, then the old ones are deleted. A file
//! is replaced at once; a directory is not, and others can see it in both places meanwhile.

use std::collections::HashMap;
use std::rc::Rc;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::attributes::replaced;
use super::files::describe;
use super::listing::{PAGE_KEYS, ensure_marker};
use super::lookup::lookup;
use super::namespace::{check_empty, check_new_name, lost_its_name, record, touch_directory};
use crate::file::content::Base;
use crate::file::save::{fetch_all, save, save_exclusively};
use crate::file::upload::divide;
use crate::mount::Mount;
use crate::s3::client::Condition;
use crate::s3::connection::Body;
use crate::s3::failure::{Cause, Failure, Result};
use crate::s3::metadata::{Kind, Metadata};
use crate::s3::multipart::COPY_MAX_BYTES;
use crate::tree::directory::Entry;
use crate::tree::node::Node;

const NO_REPLACE: u32 = libc::RENAME_NOREPLACE;
const COPIES_AT_ONCE: usize = 8;
/// Renaming a directory with more objects is refused.
const OBJECTS_MAX: usize = 200_000;

pub struct Names<'a> {
    pub parent: &'a Rc<Node>,
    pub name: &'a str,
    pub new_parent: &'a Rc<Node>,
    pub new_name: &'a str,
}

pub async fn rename(mount: &Rc<Mount>, names: Names<'_>, flags: u32) -> Result<()> {
    mount.check_writable()?;
    if flags & !NO_REPLACE != 0 {
        return Err(Failure::errno(libc::EINVAL));
    }
    let node = lookup(mount, names.parent, names.name).await?.ok_or_else(|| Failure::errno(libc::ENOENT))?;
    check_new_name(mount, names.new_parent, names.new_name)?;
    let target = lookup(mount, names.new_parent, names.new_name).await?;
    if let Some(target) = &target {
        match (node.kind, target.kind) {
            _ if flags & NO_REPLACE != 0 => return Err(Failure::errno(libc::EEXIST)),
            _ if target.id == node.id => return Ok(()),
            (Kind::Directory, Kind::Directory) => check_empty(mount, target).await?,
            (Kind::Directory, _) => return Err(Failure::errno(libc::ENOTDIR)),
            (_, Kind::Directory) => return Err(Failure::errno(libc::EISDIR)),
            _ => {}
        }
    }
    match node.kind {
        Kind::Directory => rename_directory(mount, &node, &names).await,
        _ => rename_file(mount, &node, target, &names, flags).await,
    }
}

async fn rename_file(
    mount: &Rc<Mount>,
    node: &Rc<Node>,
    target: Option<Rc<Node>>,
    names: &Names<'_>,
    flags: u32,
) -> Result<()> {
    // In the order of their numbers, so that two renames cannot wait for each other.
    let mut locked: Vec<&Rc<Node>> = [Some(node), target.as_ref()].into_iter().flatten().collect();
    locked.sort_by_key(|node| node.id);
    let mut locks = Vec::new();
    loop {
        for node in &locked {
            mount.wait_for_renames(node).await;
        }
        for node in &locked {
            locks.push(node.writing.write().await);
        }
        // A rename of a directory may have begun meanwhile, which waits for these locks.
        if !locked.iter().any(|node| mount.is_moving(node)) {
            break;
        }
        locks.clear();
    }
    let is_target_saved = target.as_ref().is_some_and(|target| !target.attrs.borrow().etag.is_empty());
    let is_new = node.attrs.borrow().etag.is_empty();
    if is_new && !is_target_saved {
        mount.tree.borrow_mut().rename(node, names.new_parent.id, names.new_name);
        target.iter().for_each(|target| lost_its_name(target));
        if let Some(stage) = node.stage() {
            stage.describe(&describe(mount, node)?)?;
        }
        return Ok(());
    }
    save_exclusively(mount, node).await?;
    if let Some(target) = target.as_ref().filter(|target| is_target_saved && target.opens.get() > 0) {
        fetch_all(mount, target).await?;
    }
    let from = mount.key(node)?;
    let to = format!("{}{}", mount.prefix(names.new_parent)?, names.new_name);
    let (etag, size) = {
        let attrs = node.attrs.borrow();
        (attrs.etag.clone(), attrs.size)
    };
    let condition = if flags & NO_REPLACE != 0 { Condition::Absent } else { Condition::None };
    ensure_marker(mount, names.new_parent).await?;
    ensure_marker(mount, names.parent).await?;
    let metadata = node.attrs.borrow().metadata(node.kind);
    let mut copied = copy(mount, (&from, &etag, size), &to, &metadata, &condition).await;
    // Not every server has conditions for copies. The target did not exist a moment ago.
    if matches!(&copied, Err(failure) if failure.cause == Cause::Unsupported) {
        copied = copy(mount, (&from, &etag, size), &to, &metadata, &Condition::None).await;
    }
    let new_etag = copied.map_err(|failure| match failure.cause {
        Cause::Conflict if flags & NO_REPLACE != 0 => Failure::errno(libc::EEXIST),
        _ => failure,
    })?;
    if let Err(failure) = mount.client.delete(&from).await {
        expire(names.new_parent);
        return Err(failure);
    }
    mount.tree.borrow_mut().rename(node, names.new_parent.id, names.new_name);
    target.iter().for_each(|target| lost_its_name(target));
    record(names.parent, names.name, None);
    replaced(mount, node, new_etag.clone(), size);
    *node.cached_etag.borrow_mut() = new_etag;
    touch_directory(names.new_parent);
    Ok(())
}

/// Copies an object of any size, and returns the new ETag.
async fn copy(
    mount: &Rc<Mount>,
    (from, etag, size): (&str, &str, u64),
    to: &str,
    metadata: &Metadata,
    condition: &Condition,
) -> Result<String> {
    if size <= COPY_MAX_BYTES {
        return mount.client.copy((from, etag), to, Some(metadata), condition).await;
    }
    let upload = mount.client.start_upload(to, metadata).await?;
    let copied = async {
        let mut etags = Vec::new();
        for (index, part) in divide(size).into_iter().enumerate() {
            let range = (part.start, part.end);
            etags.push(mount.client.copy_part(to, (&upload, index + 1), (from, etag), range).await?);
        }
        mount.client.complete_upload(to, &upload, &etags, condition).await
    };
    let result = copied.await;
    if result.is_err() {
        let _ = mount.client.abort_upload(to, &upload).await;
    }
    result
}

async fn rename_directory(mount: &Rc<Mount>, node: &Rc<Node>, names: &Names<'_>) -> Result<()> {
    for dirty in unsaved_within(mount, node) {
        save(mount, &dirty).await?;
    }
    wait_for_overlapping_renames(mount, node).await;
    mount.renaming.borrow_mut().push(node.id);
    let _renaming = Renaming { mount, id: node.id };
    // Nothing below is saved from here on; what is just being saved holds the lock of its file.
    let unsaved = unsaved_within(mount, node);
    let mut _locks = Vec::new();
    for dirty in &unsaved {
        _locks.push(dirty.writing.write().await);
    }
    let from = mount.prefix(node)?;
    let to = format!("{}{}/", mount.prefix(names.new_parent)?, names.new_name);
    ensure_marker(mount, names.parent).await?;
    let etags = match copy_all(mount, &from, &to).await {
        Ok(etags) => etags,
        Err(failure) => {
            expire(names.new_parent);
            return Err(failure);
        }
    };
    let deleted = delete_all(mount, etags.keys().map(|key| format!("{from}{key}")).collect()).await;
    mount.tree.borrow_mut().rename(node, names.new_parent.id, names.new_name);
    record(names.parent, names.name, None);
    record(names.new_parent, names.new_name, Some(Entry::Directory));
    adopt(mount, node, &to, &etags);
    deleted
}

/// Of a directory above, or of one below.
async fn wait_for_overlapping_renames(mount: &Mount, node: &Node) {
    loop {
        let renamed = mount.renamed.notified();
        let has_moving_below = {
            let tree = mount.tree.borrow();
            let moving: Vec<u64> = mount.renaming.borrow().clone();
            moving.iter().filter_map(|id| tree.get(*id)).any(|below| tree.is_within(&below, node.id))
        };
        if !has_moving_below && !mount.is_moving(node) {
            return;
        }
        renamed.await;
    }
}

fn unsaved_within(mount: &Mount, above: &Node) -> Vec<Rc<Node>> {
    let mut nodes = mount.dirty_nodes();
    nodes.retain(|node| mount.tree.borrow().is_within(node, above.id));
    nodes
}

struct Renaming<'a> {
    mount: &'a Mount,
    id: u64,
}

impl Drop for Renaming<'_> {
    fn drop(&mut self) {
        self.mount.renaming.borrow_mut().retain(|id| *id != self.id);
        self.mount.renamed.notify_waiters();
    }
}

/// Copies every object below a prefix. Returns the new ETags by the rest of their keys.
async fn copy_all(mount: &Rc<Mount>, from: &str, to: &str) -> Result<HashMap<String, String>> {
    let mut etags = HashMap::new();
    let result = copy_pages(mount, from, to, &mut etags).await;
    if let Err(failure) = result {
        let _ = delete_all(mount, etags.keys().map(|key| format!("{to}{key}")).collect()).await;
        return Err(failure);
    }
    Ok(etags)
}

async fn copy_pages(mount: &Rc<Mount>, from: &str, to: &str, etags: &mut HashMap<String, String>) -> Result<()> {
    let mut next: Option<String> = None;
    loop {
        let page = mount.client.list(from, false, next.as_deref(), PAGE_KEYS).await?;
        let slots = Rc::new(Semaphore::new(COPIES_AT_ONCE));
        let mut tasks = JoinSet::new();
        for object in page.objects {
            let Some(rest) = object.key.strip_prefix(from).map(str::to_owned) else { continue };
            let (mount, slots, new_key) = (mount.clone(), slots.clone(), format!("{to}{rest}"));
            tasks.spawn_local(async move {
                let _slot = slots.acquire().await;
                (rest, copy_one(&mount, &object.key, &new_key).await)
            });
        }
        let mut failed = None;
        while let Some(finished) = tasks.join_next().await {
            let (rest, result) = finished.map_err(|error| Failure::unavailable(error.to_string()))?;
            match result {
                Ok(etag) => drop(etags.insert(rest, etag)),
                Err(failure) => failed = Some(failure),
            }
        }
        if let Some(failure) = failed {
            return Err(failure);
        }
        if etags.len() > OBJECTS_MAX {
            return Err(Failure::errno(libc::EXDEV));
        }
        next = page.next;
        if next.is_none() {
            return Ok(());
        }
    }
}

async fn copy_one(mount: &Rc<Mount>, from: &str, to: &str) -> Result<String> {
    // Some servers cannot copy an object whose key ends with a slash.
    if to.ends_with('/') {
        let metadata = mount.client.head(from).await?.metadata;
        return mount.client.put(to, (Body::Empty, [0; 16]), &metadata, &Condition::None).await;
    }
    let object = mount.client.head(from).await?;
    copy(mount, (from, &object.etag, object.size), to, &object.metadata, &Condition::None).await
}

/// Some servers refuse to delete the object of a directory that is not empty, so these are last, the deepest first.
async fn delete_all(mount: &Rc<Mount>, keys: Vec<String>) -> Result<()> {
    let (mut markers, files): (Vec<String>, Vec<String>) = keys.into_iter().partition(|key| key.ends_with('/'));
    delete_in_parallel(mount, files).await?;
    markers.sort_by_key(|key| std::cmp::Reverse(key.matches('/').count()));
    for marker in markers {
        mount.client.delete(&marker).await?;
    }
    Ok(())
}

async fn delete_in_parallel(mount: &Rc<Mount>, keys: Vec<String>) -> Result<()> {
    let slots = Rc::new(Semaphore::new(COPIES_AT_ONCE));
    let mut tasks = JoinSet::new();
    for key in keys {
        let (mount, slots) = (mount.clone(), slots.clone());
        tasks.spawn_local(async move {
            let _slot = slots.acquire().await;
            mount.client.delete(&key).await
        });
    }
    let mut result = Ok(());
    while let Some(finished) = tasks.join_next().await {
        result = result.and(finished.map_err(|error| Failure::unavailable(error.to_string()))?);
    }
    result
}

/// The nodes below a renamed directory belong to the copies of their objects.
fn adopt(mount: &Mount, above: &Node, prefix: &str, etags: &HashMap<String, String>) {
    for node in mount.tree.borrow().all() {
        if !mount.tree.borrow().is_within(&node, above.id) {
            continue;
        }
        if let Some(directory) = node.directory.as_deref() {
            directory.expire();
        }
        let Ok(key) = mount.key(&node) else { continue };
        if let Some(etag) = key.strip_prefix(prefix).and_then(|rest| etags.get(rest)) {
            let mut attrs = node.attrs.borrow_mut();
            attrs.etag = etag.clone();
            attrs.last_modified = None;
            if let Some(stage) = node.stage() {
                stage.rebase(Base { etag: etag.clone(), size: attrs.size });
            }
        }
        node.cached_etag.borrow_mut().clear();
        if let Some(stage) = node.stage() {
            let _ = describe(mount, &node).and_then(|info| stage.describe(&info));
        }
    }
}

fn expire(directory: &Node) {
    if let Some(directory) = directory.directory.as_deref() {
        directory.expire();
    }
}
