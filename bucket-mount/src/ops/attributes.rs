//! Reads and changes attributes.

use std::rc::Rc;

use super::files::{begin_change, describe};
use super::listing::{put_marker, refresh_directory};
use super::lookup::lookup;
use crate::file::save::{save, save_exclusively};
use crate::fuse::abi::ROOT;
use crate::fuse::request::{SetAttributes, SetTime};
use crate::mount::Mount;
use crate::s3::client::Condition;
use crate::s3::failure::{Failure, Result};
use crate::s3::metadata::Kind;
use crate::s3::multipart::COPY_MAX_BYTES;
use crate::time::Time;
use crate::tree::directory::{Entry, Marker};
use crate::tree::node::{Attrs, Node};

/// Makes sure that the attributes of a node are fresh.
pub async fn refresh(mount: &Rc<Mount>, node: &Rc<Node>) -> Result<()> {
    if node.is_unlinked.get() || node.is_fresh() {
        return Ok(());
    }
    if node.kind == Kind::Directory {
        let is_known = node.directory.as_deref().is_some_and(|directory| directory.marker.get() != Marker::Unknown);
        return match node.id == ROOT && is_known {
            true => refresh_root(mount, node),
            false => refresh_directory(mount, node).await,
        };
    }
    let parent = mount.parent_of(node)?;
    match lookup(mount, &parent, &node.name()).await? {
        Some(found) if found.id == node.id => Ok(()),
        // Open files keep their attributes. Reading them fails.
        _ if node.opens.get() > 0 => Ok(()),
        Some(_) => Err(Failure::errno(libc::ESTALE)),
        None => Err(Failure::errno(libc::ENOENT)),
    }
}

/// The root always exists. What is known of it is used meanwhile, so that a program can enter it while the server is away: it may be
/// the home directory.
fn refresh_root(mount: &Rc<Mount>, node: &Rc<Node>) -> Result<()> {
    mount.refreshed(node);
    let (mount, node) = (mount.clone(), node.clone());
    tokio::task::spawn_local(async move { refresh_directory(&mount, &node).await });
    Ok(())
}

pub async fn set_attributes(mount: &Rc<Mount>, node: &Rc<Node>, set: SetAttributes) -> Result<()> {
    mount.check_writable()?;
    refresh(mount, node).await?;
    if let Some(size) = set.size {
        truncate(mount, node, size).await?;
    }
    let old = node.attrs.borrow().clone();
    let new = change(&old, &set);
    if new != old {
        *node.attrs.borrow_mut() = new;
        let result = persist(mount, node).await;
        if result.is_err() && !node.is_dirty() {
            *node.attrs.borrow_mut() = old;
            node.fresh_until.set(None);
        }
        result?;
    }
    // What changes through an open file is saved when that is closed.
    if set.size.is_some() && !set.is_open {
        save(mount, node).await?;
    }
    Ok(())
}

fn change(attrs: &Attrs, set: &SetAttributes) -> Attrs {
    let mut attrs = attrs.clone();
    if let Some(mode) = set.mode {
        attrs.mode = mode & 0o7777;
    }
    attrs.uid = set.uid.unwrap_or(attrs.uid);
    attrs.gid = set.gid.unwrap_or(attrs.gid);
    match set.mtime {
        Some(SetTime::Now) => attrs.mtime = Time::now(),
        Some(SetTime::To(time)) => attrs.mtime = time,
        None => {}
    }
    attrs
}

pub async fn truncate(mount: &Rc<Mount>, node: &Rc<Node>, size: u64) -> Result<()> {
    if node.kind != Kind::File {
        return Err(Failure::errno(libc::EISDIR));
    }
    let _shared = node.writing.read().await;
    node.check_not_conflicted()?;
    if node.size() == size && !node.is_dirty() {
        return Ok(());
    }
    let stage = begin_change(mount, node)?;
    stage.truncate(size)?;
    node.attrs.borrow_mut().mtime = Time::now();
    Ok(())
}

/// Writes the attributes of a node to the bucket. Those of a file with unsaved changes are saved with these.
async fn persist(mount: &Rc<Mount>, node: &Rc<Node>) -> Result<()> {
    if node.is_unlinked.get() {
        return Ok(());
    }
    if node.kind == Kind::Directory {
        return put_marker(mount, node).await;
    }
    let _exclusive = mount.lock(node).await;
    if let Some(stage) = node.stage() {
        return stage.describe(&describe(mount, node)?);
    }
    let key = mount.key(node)?;
    let attrs = node.attrs.borrow().clone();
    if attrs.size > COPY_MAX_BYTES {
        begin_change(mount, node)?;
        return save_exclusively(mount, node).await;
    }
    let metadata = attrs.metadata(node.kind);
    // The condition of the source is that of the target: they are the same object.
    let etag = mount.client.copy((&key, &attrs.etag), &key, Some(&metadata), &Condition::None).await?;
    replaced(mount, node, etag, attrs.size);
    Ok(())
}

/// This mount wrote the object of a node.
pub fn replaced(mount: &Mount, node: &Rc<Node>, etag: String, size: u64) {
    let listed = {
        let mut attrs = node.attrs.borrow_mut();
        attrs.etag = etag;
        attrs.size = size;
        attrs.is_exact = true;
        attrs.last_modified = None;
        crate::s3::list::Listed {
            key: String::new(),
            etag: attrs.etag.clone(),
            size,
            last_modified: Time { seconds: attrs.mtime.seconds, nanoseconds: 0 },
        }
    };
    mount.refreshed(node);
    let Ok(parent) = mount.parent_of(node) else { return };
    if let Some(directory) = parent.directory.as_deref() {
        let name = node.name();
        directory.set_exact(&name, node.kind, node.attrs.borrow().clone());
        directory.record(&name, Some(Entry::Object(listed)));
    }
}
