//! Saves changed files in the bucket.
//!
//! A write is conditional: a new file must not exist in the bucket, and a changed file must still be the object that the
//! change started from. If it is not, the changes are kept in a folder of the guest and reported, and the bucket stays as
//! it is. The object has a write id in its metadata: if the answer to a write is lost, the next attempt finds its own id
//! in the object, and continues from there instead of taking it for a change of someone else.

use std::rc::Rc;

use super::content::Base;
use super::stage::Stage;
use super::upload::{fetch, upload};
use crate::mount::{Conditions, Mount};
use crate::ops::attributes::replaced;
use crate::ops::files::begin_change;
use crate::ops::listing::ensure_marker;
use crate::s3::client::Condition;
use crate::s3::failure::{Cause, Failure, Result};
use crate::tree::node::Node;

/// Returns when the file has no unsaved changes.
pub async fn save(mount: &Rc<Mount>, node: &Rc<Node>) -> Result<()> {
    if !node.is_dirty() {
        return Ok(());
    }
    let _exclusive = mount.lock(node).await;
    save_exclusively(mount, node).await
}

/// The lock of the node must be held (`Mount::lock`).
pub async fn save_exclusively(mount: &Rc<Mount>, node: &Rc<Node>) -> Result<()> {
    let Some(stage) = node.stage().filter(|_| !node.is_unlinked.get()) else { return Ok(()) };
    let key = mount.key(node)?;
    use_conditions(mount).await;
    let parent = mount.parent_of(node)?;
    let size = stage.size();
    let (written, marker) = tokio::join!(write(mount, node, &stage, &key), ensure_marker(mount, &parent));
    let result = match (written, marker) {
        (Ok(etag), Ok(())) => Ok(etag),
        (Err(failure), _) | (Ok(_), Err(failure)) => Err(failure),
    };
    match result {
        Ok(etag) => {
            *node.stage.borrow_mut() = None;
            stage.discard();
            *node.cached_etag.borrow_mut() = etag.clone();
            replaced(mount, node, etag, size);
            mount.clear_problem(&key);
            Ok(())
        }
        Err(failure) if failure.cause == Cause::Conflict => Err(keep(mount, node, &stage, &key, failure).await),
        Err(failure) => {
            mount.report(&key, &failure, None);
            Err(failure)
        }
    }
}

/// Writes the object, and returns its ETag.
async fn write(mount: &Rc<Mount>, node: &Rc<Node>, stage: &Rc<Stage>, key: &str) -> Result<String> {
    let mut metadata = node.attrs.borrow().metadata(node.kind);
    metadata.write_id = Some(stage.write_id().to_owned());
    let etag = stage.base().map(|base| base.etag).unwrap_or_default();
    let failure = match upload(mount, key, stage, &metadata, &condition_for(mount, &etag)).await {
        Err(failure) if matches!(failure.cause, Cause::Conflict | Cause::NoSuchUpload) => failure,
        // Some servers say this of a condition on an object that is gone, and all when its data is read.
        Err(failure) if failure.cause == Cause::NotFound && !etag.is_empty() => failure,
        result => return result,
    };
    let Some(found) = mount.client.find(key).await? else {
        // A server that does not know the bucket at the moment says the same of its objects.
        mount.client.check_bucket().await?;
        return Err(conflict(failure));
    };
    if found.metadata.write_id.as_deref() != Some(stage.write_id()) {
        return Err(conflict(failure));
    }
    // An earlier attempt of this stage wrote it, perhaps with less than the stage has now.
    stage.rebase(Base { etag: found.etag.clone(), size: found.size });
    upload(mount, key, stage, &metadata, &condition_for(mount, &found.etag)).await
}

fn conflict(failure: Failure) -> Failure {
    match failure.cause {
        Cause::NoSuchUpload => failure,
        _ => Failure::new(Cause::Conflict, "the file was changed in the bucket meanwhile"),
    }
}

/// Moves changes that conflict with the bucket out of the way. The file has the content of the bucket from then on, and programs
/// that have it open for writing cannot change that.
async fn keep(mount: &Rc<Mount>, node: &Rc<Node>, stage: &Rc<Stage>, key: &str, failure: Failure) -> Failure {
    match mount.stages.keep(stage, key) {
        Ok(kept) => {
            let message = format!("{failure}; the changes of this sandbox are in {}", mount.shown(&kept).display());
            mount.report(key, &Failure::new(Cause::Conflict, message), Some(kept));
        }
        // It stays unsaved, and is tried again.
        Err(error) => {
            mount.report(key, &error, None);
            return error;
        }
    }
    *node.stage.borrow_mut() = None;
    node.is_conflicted.set(mount.handles.borrow().is_open_for_writing(node));
    let parent = mount.parent_of(node);
    if let Some(directory) = parent.as_ref().ok().and_then(|parent| parent.directory.as_deref()) {
        directory.expire();
    }
    mount.invalidate(node);
    if let Ok(Some(object)) = mount.client.find(key).await {
        *node.attrs.borrow_mut() = crate::tree::node::Attrs::of_object(&object, node.kind, &mount.defaults);
    }
    failure
}

/// Saves everything, and returns how many files could not be saved.
pub async fn save_all(mount: &Rc<Mount>) -> usize {
    let mut tasks = tokio::task::JoinSet::new();
    let slots = Rc::new(tokio::sync::Semaphore::new(FILES_AT_ONCE));
    for node in mount.dirty_nodes() {
        let (mount, slots) = (mount.clone(), slots.clone());
        tasks.spawn_local(async move {
            let _slot = slots.acquire().await;
            save(&mount, &node).await.is_ok()
        });
    }
    let mut failed = 0;
    while let Some(saved) = tasks.join_next().await {
        failed += usize::from(!saved.unwrap_or(false));
    }
    failed
}

const FILES_AT_ONCE: usize = 8;

/// Copies what only the bucket has of a file to its stage, because the object is about to be deleted.
pub async fn fetch_all(mount: &Rc<Mount>, node: &Rc<Node>) -> Result<()> {
    let size = node.size();
    let missing = match node.stage() {
        Some(stage) => stage.missing(0..size).iter().map(|range| range.end - range.start).sum(),
        None => size,
    };
    if !mount.stages.has_room(missing) {
        return Err(Failure::errno(libc::EBUSY));
    }
    let stage = begin_change(mount, node)?;
    let key = mount.key(node)?;
    fetch(mount, &key, &stage, 0..size).await
}

/// Waits until it is known whether the server honours conditions.
pub async fn use_conditions(mount: &Mount) -> Conditions {
    loop {
        let known = mount.conditions_known.notified();
        if mount.conditions.get() != Conditions::Unknown {
            return mount.conditions.get();
        }
        known.await;
    }
}

/// For a write that replaces the object with this ETag; empty means that there is none.
pub fn condition_for(mount: &Mount, etag: &str) -> Condition {
    match (mount.conditions.get(), etag) {
        (Conditions::Refused, _) => Condition::None,
        (_, "") => Condition::Absent,
        (_, etag) => Condition::Matches(etag.to_owned()),
    }
}
