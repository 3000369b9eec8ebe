//! Finds out what the bucket has under a name.

use std::rc::Rc;
use std::time::Instant;

use tokio::task::JoinSet;

use super::listing::load_listing;
use crate::fuse::abi::ROOT;
use crate::mount::{FRESH_FOR, Mount, ROOT_MARKER};
use crate::s3::client::Object;
use crate::s3::failure::{Failure, Result};
use crate::s3::key::is_name;
use crate::s3::list::Listed;
use crate::s3::metadata::Kind;
use crate::tree::directory::{Directory, Entry};
use crate::tree::node::{Attrs, Node};

/// How many objects are asked for their attributes at once, when a program looks at one name after another.
const READ_AHEAD_MAX: usize = 32;

/// None: there is no such name.
pub async fn lookup(mount: &Rc<Mount>, parent: &Rc<Node>, name: &str) -> Result<Option<Rc<Node>>> {
    let directory = parent.directory.as_deref().ok_or_else(|| Failure::errno(libc::ENOTDIR))?;
    if !is_name(name) || is_hidden(parent, name) {
        return Ok(None);
    }
    let known = mount.tree.borrow().find(parent.id, name);
    if let Some(node) = known.filter(|node| node.is_fresh()) {
        return Ok(Some(node));
    }
    loop {
        let started = Instant::now();
        let found = find(mount, parent, directory, name).await?;
        // What was found may be older than a change that this mount made meanwhile.
        if directory.changed_since(name, started).is_none() {
            return Ok(apply(mount, parent, name, found));
        }
    }
}

/// Objects of this program, in the root only.
pub fn is_hidden(parent: &Node, name: &str) -> bool {
    parent.id == ROOT && name.starts_with(ROOT_MARKER)
}

/// What is under a name.
pub enum Found {
    Nothing,
    Directory,
    Object(Kind, Attrs),
}

async fn find(mount: &Rc<Mount>, parent: &Rc<Node>, directory: &Directory, name: &str) -> Result<Found> {
    let started = Instant::now();
    if directory.with_listing(|_| ()).is_none() && !directory.is_large.get() {
        load_listing(mount, parent, false).await?;
    }
    let Some(entry) = directory.with_listing(|entries| entries.get(name).cloned()) else {
        return find_alone(mount, parent, directory, (name, started)).await;
    };
    match entry {
        None => Ok(Found::Nothing),
        Some(Entry::Directory) => Ok(Found::Directory),
        Some(Entry::Object(listed)) => find_attributes(mount, parent, (name, listed)).await,
    }
}

/// In a directory with more than a page of entries.
async fn find_alone(
    mount: &Rc<Mount>,
    parent: &Rc<Node>,
    directory: &Directory,
    (name, started): (&str, Instant),
) -> Result<Found> {
    let key = format!("{}{name}", mount.prefix(parent)?);
    let below = format!("{key}/");
    let (object, has_keys) = tokio::join!(mount.client.find(&key), mount.client.has_keys_below(&below));
    match directory.changed_since(name, started) {
        Some(None) => return Ok(Found::Nothing),
        Some(Some(Entry::Directory)) => return Ok(Found::Directory),
        Some(Some(Entry::Object(listed))) => return find_attributes(mount, parent, (name, listed)).await,
        None => {}
    }
    if has_keys? {
        return Ok(Found::Directory);
    }
    Ok(object?.map_or(Found::Nothing, |object| found_object(mount, directory, name, &object)))
}

fn found_object(mount: &Mount, directory: &Directory, name: &str, object: &Object) -> Found {
    let kind = object.metadata.kind();
    let attrs = Attrs::of_object(object, kind, &mount.defaults);
    directory.set_exact(name, kind, attrs.clone());
    Found::Object(kind, attrs)
}

/// Asks the object itself only if the directory keeps attributes, and only once while the object is the same.
async fn find_attributes(mount: &Rc<Mount>, parent: &Rc<Node>, (name, listed): (&str, Listed)) -> Result<Found> {
    let Some(directory) = parent.directory.as_deref() else { return Ok(Found::Nothing) };
    if let Some((kind, attrs)) = known_attributes(mount, parent, name, &listed) {
        return Ok(Found::Object(kind, attrs));
    }
    let _alone = directory.reading_ahead.lock().await;
    if let Some((kind, attrs)) = directory.exact(name, &listed) {
        return Ok(Found::Object(kind, attrs));
    }
    let mut requests = JoinSet::new();
    for name in choose_names(directory, name) {
        let key = format!("{}{name}", mount.prefix(parent)?);
        let mount = mount.clone();
        requests.spawn_local(async move { (name, mount.client.find(&key).await) });
    }
    let mut found = Ok(Found::Nothing);
    while let Some(finished) = requests.join_next().await {
        let Ok((finished_name, object)) = finished else { continue };
        let object = object.map(|object| object.map(|object| found_object(mount, directory, &finished_name, &object)));
        if finished_name == name {
            found = object.map(|object| object.unwrap_or(Found::Nothing));
        }
    }
    found
}

/// Without a request.
pub fn known_attributes(mount: &Mount, parent: &Node, name: &str, listed: &Listed) -> Option<(Kind, Attrs)> {
    let directory = parent.directory.as_deref()?;
    let node = mount.tree.borrow().find(parent.id, name);
    if let Some(node) = node.filter(|node| node.kind != Kind::Directory) {
        let mut attrs = node.attrs.borrow_mut();
        if attrs.is_of(listed) {
            attrs.last_modified = Some(listed.last_modified.seconds);
            return Some((node.kind, attrs.clone()));
        }
    }
    directory
        .exact(name, listed)
        .or_else(|| (!directory.keeps_attributes()).then(|| (Kind::File, Attrs::of_listed(listed, &mount.defaults))))
}

/// The name, and those after it if the program looks at one name after another.
fn choose_names(directory: &Directory, name: &str) -> Vec<String> {
    let mut names = vec![name.to_owned()];
    let (last, ahead) = directory.last_lookup.borrow().clone();
    let mut window = 0;
    directory.with_listing(|entries| {
        use std::ops::Bound::{Excluded, Unbounded};
        let before = entries.range::<str, _>((Unbounded, Excluded(name))).next_back().map(|(name, _)| name);
        // The names that were read ahead are found without coming here, so the last one may be further back.
        window = if before.is_none_or(|before| *before == last) { (ahead * 2).clamp(4, READ_AHEAD_MAX) } else { 0 };
        let after = entries.range::<str, _>((Excluded(name), Unbounded)).take(window);
        let is_unknown = |name: &str, entry: &Entry| match entry {
            Entry::Object(listed) => directory.exact(name, listed).is_none(),
            Entry::Directory => false,
        };
        names.extend(after.filter(|(name, entry)| is_unknown(name, entry)).map(|(name, _)| name.clone()));
        let last = names.last().cloned().unwrap_or_default();
        *directory.last_lookup.borrow_mut() = (last, window);
    });
    names
}

/// Makes the node agree with what was found, unless it has changes that are not saved.
pub fn apply(mount: &Rc<Mount>, parent: &Rc<Node>, name: &str, found: Found) -> Option<Rc<Node>> {
    let known = mount.tree.borrow().find(parent.id, name);
    if let Some(node) = known.as_ref().filter(|node| node.is_dirty()) {
        return Some(node.clone());
    }
    let (kind, attrs) = match found {
        Found::Nothing => {
            mount.tree.borrow_mut().unlink(parent.id, name);
            return None;
        }
        Found::Directory => {
            let mode = mount.defaults.mode(Kind::Directory);
            (Kind::Directory, Attrs::of_new(Kind::Directory, mode, mount.defaults.uid, mount.defaults.gid))
        }
        Found::Object(kind, attrs) => (kind, attrs),
    };
    let node = match known.filter(|node| node.kind == kind) {
        // The attributes of a directory are read when they are asked for.
        Some(node) if kind == Kind::Directory => return Some(node),
        Some(node) => {
            let is_changed = node.attrs.borrow().etag != attrs.etag;
            *node.attrs.borrow_mut() = attrs;
            if is_changed {
                node.cached_etag.borrow_mut().clear();
            }
            node
        }
        None => mount.tree.borrow_mut().add(parent.id, name, kind, attrs),
    };
    if kind != Kind::Directory {
        node.fresh_until.set(Some(Instant::now() + FRESH_FOR));
    }
    Some(node)
}
