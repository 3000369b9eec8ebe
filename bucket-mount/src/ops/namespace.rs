//! Creates and removes names.

use std::rc::Rc;

use super::attributes::replaced;
use super::listing::ensure_marker;
use super::lookup::{is_hidden, lookup};
use crate::file::save::{fetch_all, use_conditions};
use crate::md5::Md5;
use crate::mount::{Conditions, Mount};
use crate::s3::client::Condition;
use crate::s3::connection::Body;
use crate::s3::failure::{Cause, Failure, Result};
use crate::s3::key::{KEY_MAX_BYTES, is_name, is_storable};
use crate::s3::metadata::Kind;
use crate::time::Time;
use crate::tree::directory::{Entry, Marker};
use crate::tree::node::{Attrs, Node};

pub fn check_new_name(mount: &Mount, parent: &Node, name: &str) -> Result<()> {
    let refused = match () {
        () if name.len() > 255 || mount.prefix(parent)?.len() + name.len() > KEY_MAX_BYTES => libc::ENAMETOOLONG,
        () if !is_name(name) || !is_storable(name) => libc::EINVAL,
        () if is_hidden(parent, name) => libc::EPERM,
        () => return Ok(()),
    };
    Err(Failure::errno(refused))
}

pub async fn make_directory(
    mount: &Rc<Mount>,
    parent: &Rc<Node>,
    name: &str,
    (mode, owner): (u32, (u32, u32)),
) -> Result<Rc<Node>> {
    mount.check_writable()?;
    check_new_name(mount, parent, name)?;
    if lookup(mount, parent, name).await?.is_some() {
        return Err(Failure::errno(libc::EEXIST));
    }
    mount.wait_for_renames(parent).await;
    let key = format!("{}{name}/", mount.prefix(parent)?);
    let attrs = Attrs::of_new(Kind::Directory, mode, owner.0, owner.1);
    let condition = condition_for_new(mount).await;
    let put = mount.client.put(&key, (Body::Empty, [0; 16]), &attrs.metadata(Kind::Directory), &condition).await;
    put.map_err(exists_already)?;
    let node = mount.tree.borrow_mut().add(parent.id, name, Kind::Directory, attrs);
    if let Some(directory) = node.directory.as_deref() {
        directory.marker.set(Marker::Ours);
    }
    mount.refreshed(&node);
    record(parent, name, Some(Entry::Directory));
    Ok(node)
}

pub async fn make_link(
    mount: &Rc<Mount>,
    parent: &Rc<Node>,
    name: &str,
    (target, owner): (&str, (u32, u32)),
) -> Result<Rc<Node>> {
    mount.check_writable()?;
    check_new_name(mount, parent, name)?;
    if lookup(mount, parent, name).await?.is_some() {
        return Err(Failure::errno(libc::EEXIST));
    }
    mount.wait_for_renames(parent).await;
    let key = format!("{}{name}", mount.prefix(parent)?);
    let mut digest = Md5::default();
    digest.update(target.as_bytes());
    let body = (Body::Bytes(target.as_bytes()), digest.finish());
    let attrs = Attrs::of_new(Kind::Link, 0o777, owner.0, owner.1);
    let condition = condition_for_new(mount).await;
    // Without the marker, others would take the link for a file.
    ensure_marker(mount, parent).await?;
    let etag = mount.client.put(&key, body, &attrs.metadata(Kind::Link), &condition).await.map_err(exists_already)?;
    let node = mount.tree.borrow_mut().add(parent.id, name, Kind::Link, attrs);
    *node.target.borrow_mut() = Some((etag.clone(), target.to_owned()));
    touch_directory(parent);
    replaced(mount, &node, etag, target.len() as u64);
    Ok(node)
}

pub async fn read_link(mount: &Rc<Mount>, node: &Rc<Node>) -> Result<String> {
    if node.kind != Kind::Link {
        return Err(Failure::errno(libc::EINVAL));
    }
    let (etag, size) = {
        let attrs = node.attrs.borrow();
        (attrs.etag.clone(), attrs.size)
    };
    if let Some((_, target)) = node.target.borrow().as_ref().filter(|(of, _)| *of == etag) {
        return Ok(target.clone());
    }
    // Anyone who can write to the bucket can make any object a link.
    if size > libc::PATH_MAX as u64 {
        return Err(Failure::errno(libc::ENAMETOOLONG));
    }
    let bytes = mount.client.get_range(&mount.key(node)?, &etag, 0, size as usize).await?;
    let target = String::from_utf8(bytes).map_err(|_| Failure::errno(libc::EIO))?;
    *node.target.borrow_mut() = Some((etag, target.clone()));
    Ok(target)
}

pub async fn unlink(mount: &Rc<Mount>, parent: &Rc<Node>, name: &str) -> Result<()> {
    mount.check_writable()?;
    let node = lookup(mount, parent, name).await?.ok_or_else(|| Failure::errno(libc::ENOENT))?;
    if node.kind == Kind::Directory {
        return Err(Failure::errno(libc::EISDIR));
    }
    let _exclusive = mount.lock(&node).await;
    remove_object(mount, parent, &node).await?;
    mount.tree.borrow_mut().unlink(parent.id, name);
    lost_its_name(&node);
    record(parent, name, None);
    Ok(())
}

/// What a program may still write to a file that was deleted is never saved.
pub fn lost_its_name(node: &Node) {
    if let Some(stage) = node.stage() {
        stage.give_up_log();
    }
}

/// Deletes the object of a file. Programs that have it open can read it until they close it. Its lock must be held.
pub async fn remove_object(mount: &Rc<Mount>, parent: &Rc<Node>, node: &Rc<Node>) -> Result<()> {
    let key = mount.key(node)?;
    if !node.attrs.borrow().etag.is_empty() {
        if node.opens.get() > 0 {
            fetch_all(mount, node).await?;
        }
        ensure_marker(mount, parent).await?;
        mount.client.delete(&key).await?;
    }
    mount.clear_problem(&key);
    Ok(())
}

pub async fn remove_directory(mount: &Rc<Mount>, parent: &Rc<Node>, name: &str) -> Result<()> {
    mount.check_writable()?;
    let node = lookup(mount, parent, name).await?.ok_or_else(|| Failure::errno(libc::ENOENT))?;
    if node.kind != Kind::Directory {
        return Err(Failure::errno(libc::ENOTDIR));
    }
    mount.wait_for_renames(&node).await;
    check_empty(mount, &node).await?;
    ensure_marker(mount, parent).await?;
    mount.client.delete(&mount.prefix(&node)?).await?;
    mount.tree.borrow_mut().unlink(parent.id, name);
    record(parent, name, None);
    Ok(())
}

pub async fn check_empty(mount: &Mount, node: &Node) -> Result<()> {
    let prefix = mount.prefix(node)?;
    let page = mount.client.list(&prefix, false, None, 2).await?;
    let has_unsaved = mount.tree.borrow().children(node.id).iter().any(|child| child.is_dirty());
    if has_unsaved || page.next.is_some() || page.objects.iter().any(|object| object.key != prefix) {
        return Err(Failure::errno(libc::ENOTEMPTY));
    }
    Ok(())
}

/// An entry of a directory was created or removed.
pub fn record(parent: &Node, name: &str, entry: Option<Entry>) {
    if let Some(directory) = parent.directory.as_deref() {
        directory.record(name, entry);
    }
    touch_directory(parent);
}

/// The time is not stored: that would need another request for every new file.
pub fn touch_directory(parent: &Node) {
    parent.attrs.borrow_mut().mtime = Time::now();
}

async fn condition_for_new(mount: &Rc<Mount>) -> Condition {
    match use_conditions(mount).await {
        Conditions::Refused => Condition::None,
        _ => Condition::Absent,
    }
}

fn exists_already(failure: Failure) -> Failure {
    match failure.cause {
        Cause::Conflict => Failure::errno(libc::EEXIST),
        _ => failure,
    }
}
