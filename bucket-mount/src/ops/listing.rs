//! Lists the entries of a directory.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::fuse::abi::ROOT;
use crate::mount::{FRESH_FOR, Mount, ROOT_MARKER};
use crate::s3::client::Object;
use crate::s3::failure::{Failure, Result};
use crate::s3::key::is_name;
use crate::s3::list::Page;
use crate::s3::metadata::Kind;
use crate::tree::directory::{Directory, Entry, Marker};
use crate::tree::node::{Attrs, Node};

pub const PAGE_KEYS: usize = 1000;
/// A directory with more entries is not held in memory.
pub const ENTRIES_MAX: usize = 20_000;
/// A listing that took long is used longer, so that a program can look at all entries before it is requested again.
const LISTING_FACTOR: u32 = 20;
const LISTING_FRESH_MAX: Duration = Duration::from_secs(30);

/// Requests the entries, unless another request just did. Without `whole`, a directory with more than one page is only
/// marked as large. The listing is fresh afterwards, or the directory is too large for one.
pub async fn load_listing(mount: &Rc<Mount>, node: &Rc<Node>, whole: bool) -> Result<()> {
    let directory = node.directory.as_deref().ok_or_else(|| Failure::errno(libc::ENOTDIR))?;
    let _alone = directory.loading.lock().await;
    if directory.with_listing(|_| ()).is_some() {
        return Ok(());
    }
    let started = Instant::now();
    let prefix = mount.prefix(node)?;
    let (page, marker) = tokio::join!(mount.client.list(&prefix, true, None, PAGE_KEYS), async {
        if directory.has_our_marker() { Ok(None) } else { find_marker(mount, node).await }
    });
    let mut page = page?;
    apply_marker(mount, node, directory, marker?.as_ref());
    let mut entries = BTreeMap::new();
    loop {
        let next = page.next.take();
        add_page(&mut entries, page, &prefix);
        let Some(next) = next else { break };
        if !whole || entries.len() >= ENTRIES_MAX {
            directory.is_large.set(true);
            return Ok(());
        }
        page = mount.client.list(&prefix, true, Some(&next), PAGE_KEYS).await?;
    }
    if entries.len() < PAGE_KEYS {
        directory.is_large.set(false);
    }
    let lifetime = (started.elapsed() * LISTING_FACTOR).clamp(FRESH_FOR, LISTING_FRESH_MAX);
    let lifetime = if entries.len() < PAGE_KEYS { FRESH_FOR } else { lifetime };
    directory.set_listing(entries, started, lifetime);
    Ok(())
}

/// Adds the entries of a page by their names. Keys that cannot be file names are left out.
pub fn add_page(entries: &mut BTreeMap<String, Entry>, page: Page, prefix: &str) {
    for mut object in page.objects {
        let Some(name) = object.key.strip_prefix(prefix).filter(|name| is_name(name)) else { continue };
        if prefix.is_empty() && name.starts_with(ROOT_MARKER) {
            continue;
        }
        let name = name.to_owned();
        object.key = String::new();
        entries.entry(name).or_insert(Entry::Object(object));
    }
    // If there is an object with the same name, the directory hides it.
    for folder in page.prefixes {
        let name = folder.strip_prefix(prefix).and_then(|name| name.strip_suffix('/'));
        if let Some(name) = name.filter(|name| is_name(name)) {
            entries.insert(name.to_owned(), Entry::Directory);
        }
    }
}

async fn find_marker(mount: &Mount, node: &Node) -> Result<Option<Object>> {
    mount.client.find(&mount.marker_key(node)?).await
}

fn apply_marker(mount: &Mount, node: &Node, directory: &Directory, marker: Option<&Object>) {
    if directory.has_our_marker() {
        return;
    }
    let Some(object) = marker else {
        directory.marker.set(Marker::Absent);
        return;
    };
    directory.marker.set(if object.metadata.is_ours { Marker::Ours } else { Marker::Foreign });
    *node.attrs.borrow_mut() = Attrs::of_object(object, Kind::Directory, &mount.defaults);
    mount.refreshed(node);
}

/// Reads the attributes of a directory from its marker.
pub async fn refresh_directory(mount: &Mount, node: &Node) -> Result<()> {
    let Some(directory) = node.directory.as_deref() else { return Ok(()) };
    match find_marker(mount, node).await? {
        Some(object) => {
            if !directory.has_our_marker() {
                directory.marker.set(if object.metadata.is_ours { Marker::Ours } else { Marker::Foreign });
            }
            *node.attrs.borrow_mut() = Attrs::of_object(&object, Kind::Directory, &mount.defaults);
        }
        None if node.id == ROOT || mount.client.has_keys_below(&mount.prefix(node)?).await? => {
            directory.marker.set(Marker::Absent);
        }
        None => return Err(Failure::errno(libc::ENOENT)),
    }
    mount.refreshed(node);
    Ok(())
}

/// Makes sure that a directory has a marker of ours: before the first file with attributes is written into it, and before
/// an entry is removed that may be the only thing that makes the directory exist.
pub async fn ensure_marker(mount: &Mount, node: &Node) -> Result<()> {
    let Some(directory) = node.directory.as_deref() else { return Ok(()) };
    if directory.marker.get() == Marker::Unknown {
        refresh_directory(mount, node).await?;
    }
    if directory.has_our_marker() {
        return Ok(());
    }
    put_marker(mount, node).await
}

/// Writes the attributes of a directory.
pub async fn put_marker(mount: &Mount, node: &Node) -> Result<()> {
    use crate::s3::client::Condition;
    use crate::s3::connection::Body;
    let metadata = node.attrs.borrow().metadata(Kind::Directory);
    let key = mount.marker_key(node)?;
    mount.client.put(&key, (Body::Empty, [0; 16]), &metadata, &Condition::None).await?;
    if let Some(directory) = node.directory.as_deref() {
        directory.marker.set(Marker::Ours);
    }
    mount.refreshed(node);
    Ok(())
}
