//! Takes over unsaved changes of an earlier run that was killed.

use std::rc::Rc;

use super::folder::Leftover;
use crate::fuse::abi::ROOT;
use crate::mount::Mount;
use crate::s3::metadata::Kind;
use crate::time::Time;
use crate::tree::node::{Attrs, Node};

/// Makes the files known again. They are saved like any other: if the bucket has changed meanwhile, they are kept and
/// reported. Returns how many there are.
pub fn recover(mount: &Rc<Mount>) -> usize {
    let leftovers = mount.stages.recover();
    let count = leftovers.len();
    for leftover in leftovers {
        if let Some(node) = find_place(mount, &leftover) {
            *node.stage.borrow_mut() = Some(leftover.stage);
        } else {
            // It had lost its name before.
            leftover.stage.discard();
        }
    }
    count
}

fn find_place(mount: &Mount, leftover: &Leftover) -> Option<Rc<Node>> {
    let info = &leftover.info;
    let (folder, name) = info.key.rsplit_once('/').unwrap_or(("", &info.key));
    if name.is_empty() {
        return None;
    }
    let mut parent = ROOT;
    let mut tree = mount.tree.borrow_mut();
    for segment in folder.split('/').filter(|segment| !segment.is_empty()) {
        parent = match tree.find(parent, segment) {
            Some(node) => node.id,
            None => {
                let mode = mount.defaults.mode(Kind::Directory);
                let attrs = Attrs::of_new(Kind::Directory, mode, mount.defaults.uid, mount.defaults.gid);
                tree.add(parent, segment, Kind::Directory, attrs).id
            }
        };
    }
    let mut attrs = Attrs::of_new(Kind::File, info.mode, info.uid, info.gid);
    attrs.mtime = Time::parse_decimal(&info.mtime).unwrap_or(attrs.mtime);
    if let Some(base) = &info.base {
        attrs.etag = base.etag.clone();
        attrs.size = base.size;
    }
    Some(tree.add(parent, name, Kind::File, attrs))
}
