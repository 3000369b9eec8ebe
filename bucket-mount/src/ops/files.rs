//! Opens, reads and writes files.

use std::rc::Rc;

use super::attributes::{refresh, replaced, truncate};
use super::lookup::lookup;
use super::namespace::{check_new_name, touch_directory};
use crate::file::content::{Base, Content, Source};
use crate::file::journal::{BaseInfo, StageInfo, VERSION};
use crate::file::save::{save, save_all, use_conditions};
use crate::file::stage::Stage;
use crate::fuse::abi::KEEP_CACHE;
use crate::handles::FileHandle;
use crate::mount::{Conditions, Mount};
use crate::random::random_id;
use crate::s3::client::Condition;
use crate::s3::connection::Body;
use crate::s3::failure::{Cause, Failure, Result};
use crate::s3::metadata::Kind;
use crate::time::Time;
use crate::tree::node::{Attrs, Node};

/// The largest object of S3.
const FILE_MAX_BYTES: u64 = 5 << 40;

/// A handle, and the flags for the kernel.
pub struct Opened {
    pub handle: u64,
    pub flags: u32,
}

pub async fn open(mount: &Rc<Mount>, node: &Rc<Node>, flags: u32) -> Result<Opened> {
    let flags = flags as i32;
    let is_writable = flags & libc::O_ACCMODE != libc::O_RDONLY;
    if is_writable || flags & libc::O_TRUNC != 0 {
        mount.check_writable()?;
    }
    if node.kind == Kind::Directory {
        return Err(Failure::errno(libc::EISDIR));
    }
    refresh(mount, node).await?;
    let handle = mount.handles.borrow_mut().open_file(node, is_writable);
    if flags & libc::O_TRUNC != 0 && node.size() > 0 {
        if let Err(failure) = truncate(mount, node, 0).await {
            close(mount, handle);
            return Err(failure);
        }
    }
    let etag = node.attrs.borrow().etag.clone();
    let is_cached = !node.is_dirty() && !etag.is_empty() && *node.cached_etag.borrow() == etag;
    if !node.is_dirty() {
        *node.cached_etag.borrow_mut() = etag;
    }
    Ok(Opened { handle, flags: if is_cached { KEEP_CACHE } else { 0 } })
}

pub struct NewFile<'a> {
    pub name: &'a str,
    pub flags: u32,
    pub mode: u32,
    pub owner: (u32, u32),
}

pub async fn create(mount: &Rc<Mount>, parent: &Rc<Node>, new: NewFile<'_>) -> Result<(Rc<Node>, Opened)> {
    mount.check_writable()?;
    let is_exclusive = new.flags as i32 & libc::O_EXCL != 0;
    if let Some(node) = lookup(mount, parent, new.name).await? {
        if is_exclusive {
            return Err(Failure::errno(libc::EEXIST));
        }
        let opened = open(mount, &node, new.flags).await?;
        return Ok((node, opened));
    }
    check_new_name(mount, parent, new.name)?;
    let attrs = Attrs::of_new(Kind::File, new.mode, new.owner.0, new.owner.1);
    let node = mount.tree.borrow_mut().add(parent.id, new.name, Kind::File, attrs);
    let handle = mount.handles.borrow_mut().open_file(&node, true);
    let created = match is_exclusive && use_conditions(mount).await == Conditions::Honoured {
        true => create_at_once(mount, &node).await,
        false => begin_change(mount, &node).map(drop),
    };
    if let Err(failure) = created {
        mount.tree.borrow_mut().unlink(parent.id, new.name);
        close(mount, handle);
        return Err(failure);
    }
    touch_directory(parent);
    Ok((node, Opened { handle, flags: 0 }))
}

/// An empty object decides which of several sandboxes has created the file.
async fn create_at_once(mount: &Rc<Mount>, node: &Rc<Node>) -> Result<()> {
    let _exclusive = mount.lock(node).await;
    let key = mount.key(node)?;
    let metadata = node.attrs.borrow().metadata(Kind::File);
    let put = mount.client.put(&key, (Body::Empty, [0; 16]), &metadata, &Condition::Absent).await;
    let etag = put.map_err(|failure| match failure.cause {
        Cause::Conflict => Failure::errno(libc::EEXIST),
        _ => failure,
    })?;
    replaced(mount, node, etag, 0);
    Ok(())
}

/// The stage of a file, created with its first change.
pub fn begin_change(mount: &Mount, node: &Rc<Node>) -> Result<Rc<Stage>> {
    if let Some(stage) = node.stage() {
        return Ok(stage);
    }
    mount.check_writable()?;
    let (etag, size) = {
        let attrs = node.attrs.borrow();
        (attrs.etag.clone(), attrs.size)
    };
    let content = match etag.is_empty() {
        true => Content::default(),
        false => Content::of_object(Base { etag, size }),
    };
    let stage = mount.stages.create(&describe(mount, node)?, content)?;
    if node.is_unlinked.get() {
        stage.give_up_log();
    }
    *node.stage.borrow_mut() = Some(stage.clone());
    Ok(stage)
}

/// For the log of the stage.
pub fn describe(mount: &Mount, node: &Node) -> Result<StageInfo> {
    let attrs = node.attrs.borrow();
    let base = BaseInfo { etag: attrs.etag.clone(), size: attrs.size };
    Ok(StageInfo {
        version: VERSION,
        // A file without a name is not saved.
        key: mount.key(node).unwrap_or_default(),
        base: (!attrs.etag.is_empty()).then_some(base),
        mode: attrs.mode,
        uid: attrs.uid,
        gid: attrs.gid,
        mtime: attrs.mtime.render_decimal(),
        write_id: node.stage.borrow().as_ref().map_or_else(random_id, |stage| stage.write_id().to_owned()),
    })
}

/// Writes without waiting, if that is possible.
pub fn write_now(handle: &FileHandle, offset: u64, data: &[u8]) -> Option<Result<()>> {
    let node = &handle.node;
    let _shared = node.writing.try_read().ok()?;
    let stage = node.stage()?;
    if let Err(failure) = node.check_not_conflicted() {
        return Some(Err(failure));
    }
    let end = offset.checked_add(data.len() as u64).filter(|end| *end <= FILE_MAX_BYTES)?;
    if stage.needs_room(offset..end) || stage.is_tight() {
        return None;
    }
    match store(node, &stage, offset, data) {
        // What is saved needs no room, but that takes a while.
        Err(failure) if failure.cause == Cause::Local(libc::ENOSPC) => None,
        result => Some(result),
    }
}

pub async fn write(mount: &Rc<Mount>, handle: &FileHandle, offset: u64, data: &[u8]) -> Result<()> {
    let node = &handle.node;
    let end = offset.checked_add(data.len() as u64).filter(|end| *end <= FILE_MAX_BYTES);
    let end = end.ok_or_else(|| Failure::errno(libc::EFBIG))?;
    for attempt in 0..3 {
        let shared = node.writing.read().await;
        // Also if that was noticed when it was saved to make room.
        node.check_not_conflicted()?;
        let is_full = |failure: &Failure| failure.cause == Cause::Local(libc::ENOSPC);
        match begin_change(mount, node) {
            Ok(stage) if stage.needs_room(offset..end) => {}
            // If it cannot be saved now, there is room for some more.
            Ok(stage) if attempt == 0 && stage.is_tight() && !has_failed(mount, node) => {
                drop(shared);
                let _ = save(mount, node).await;
                continue;
            }
            Ok(stage) => match store(node, &stage, offset, data) {
                Err(failure) if is_full(&failure) => {}
                result => return result,
            },
            Err(failure) if is_full(&failure) => {}
            Err(failure) => return Err(failure),
        }
        drop(shared);
        // What is in the bucket needs no room here.
        match attempt {
            // It may need some room itself, which others have.
            0 => save(mount, node).await.or_else(|failure| if is_full(&failure) { Ok(()) } else { Err(failure) })?,
            _ => drop(save_all(mount).await),
        }
    }
    Err(Failure::errno(libc::ENOSPC))
}

/// Whether the last attempt to save the file failed.
fn has_failed(mount: &Mount, node: &Node) -> bool {
    mount.key(node).is_ok_and(|key| mount.has_problem(&key))
}

fn store(node: &Node, stage: &Stage, offset: u64, data: &[u8]) -> Result<()> {
    stage.write(offset, data)?;
    node.attrs.borrow_mut().mtime = Time::now();
    Ok(())
}

pub async fn read(mount: &Rc<Mount>, handle: &FileHandle, offset: u64, size: u32) -> Result<Vec<u8>> {
    let node = &handle.node;
    let end = (offset + u64::from(size)).min(node.size());
    if offset >= end {
        return Ok(Vec::new());
    }
    let Some(stage) = node.stage() else {
        return crate::file::reader::read_object(mount, handle, offset..end).await;
    };
    let base_etag = stage.base().map(|base| base.etag).unwrap_or_default();
    let mut data = vec![0; (end - offset) as usize];
    for (piece, source) in stage.pieces(offset..end) {
        let target = &mut data[(piece.start - offset) as usize..(piece.end - offset) as usize];
        match source {
            Source::Local => stage.read(piece.start, target)?,
            Source::Zeros => {}
            Source::Base => {
                let base = (base_etag.as_str(), stage.base_size());
                let bytes = crate::file::reader::read_version(mount, handle, base, piece.clone()).await?;
                target.copy_from_slice(&bytes);
            }
        }
    }
    Ok(data)
}

/// Called for each close: returns when the data is in the bucket.
pub async fn flush(mount: &Rc<Mount>, handle: &FileHandle) -> Result<()> {
    if handle.is_writable { sync(mount, &handle.node).await } else { Ok(()) }
}

/// Returns when the data is in the bucket. Fails also if it was saved before, for example by a pause, and conflicted then.
pub async fn sync(mount: &Rc<Mount>, node: &Rc<Node>) -> Result<()> {
    save(mount, node).await?;
    node.check_not_conflicted()
}

/// The last descriptor is closed. Writes through memory mappings can arrive after the last flush.
pub fn close(mount: &Rc<Mount>, handle: u64) {
    let Some(node) = mount.handles.borrow_mut().close_file(handle) else { return };
    if node.is_conflicted.get() {
        node.is_conflicted.set(mount.handles.borrow().is_open_for_writing(&node));
    }
    if node.is_dirty() && !node.is_unlinked.get() {
        let mount = mount.clone();
        tokio::task::spawn_local(async move {
            let _ = save(&mount, &node).await;
            mount.tree.borrow_mut().remove_unused(node.id);
        });
        return;
    }
    mount.tree.borrow_mut().remove_unused(node.id);
}

/// Only extends the file; there is no room in a bucket to reserve.
pub async fn allocate(mount: &Rc<Mount>, node: &Rc<Node>, offset: u64, length: u64, mode: u32) -> Result<()> {
    let end = offset.checked_add(length).filter(|end| *end <= FILE_MAX_BYTES);
    let end = end.ok_or_else(|| Failure::errno(libc::EFBIG))?;
    match mode as i32 {
        0 if end > node.size() => truncate(mount, node, end).await,
        0 | libc::FALLOC_FL_KEEP_SIZE => Ok(()),
        _ => Err(Failure::errno(libc::EOPNOTSUPP)),
    }
}
