//! The nodes that the kernel knows, by number and by name.

pub mod directory;
pub mod node;

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use crate::fuse::abi::ROOT;
use crate::s3::metadata::Kind;
use node::{Attrs, Node, Place};

pub struct Tree {
    nodes: HashMap<u64, Rc<Node>>,
    /// By parent and name.
    names: BTreeMap<(u64, String), u64>,
    last_id: u64,
}

impl Tree {
    pub fn new(root: Attrs) -> Self {
        let place = Place { parent: ROOT, name: String::new() };
        let root = Node::new(ROOT, Kind::Directory, place, root);
        root.lookups.set(1);
        Self { nodes: HashMap::from([(ROOT, root)]), names: BTreeMap::new(), last_id: ROOT }
    }

    pub fn get(&self, id: u64) -> Option<Rc<Node>> {
        self.nodes.get(&id).cloned()
    }

    pub fn find(&self, parent: u64, name: &str) -> Option<Rc<Node>> {
        self.get(*self.names.get(&(parent, name.to_owned()))?)
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn is_empty(&self) -> bool {
        false
    }

    pub fn all(&self) -> Vec<Rc<Node>> {
        self.nodes.values().cloned().collect()
    }

    pub fn children(&self, parent: u64) -> Vec<Rc<Node>> {
        let ids = self.names.range((parent, String::new())..(parent + 1, String::new())).map(|(_, id)| *id);
        ids.filter_map(|id| self.get(id)).collect()
    }

    /// Creates a node with this name. A node that had the name before loses it.
    pub fn add(&mut self, parent: u64, name: &str, kind: Kind, attrs: Attrs) -> Rc<Node> {
        self.unlink(parent, name);
        self.last_id += 1;
        let node = Node::new(self.last_id, kind, Place { parent, name: name.to_owned() }, attrs);
        self.nodes.insert(node.id, node.clone());
        self.names.insert((parent, name.to_owned()), node.id);
        node
    }

    /// Takes the name from a node, which stays for programs that have it open.
    pub fn unlink(&mut self, parent: u64, name: &str) {
        let id = self.names.remove(&(parent, name.to_owned()));
        if let Some(node) = id.and_then(|id| self.get(id)) {
            node.is_unlinked.set(true);
            self.remove_unused(node.id);
        }
    }

    pub fn rename(&mut self, node: &Rc<Node>, parent: u64, name: &str) {
        let place = node.place.borrow().clone();
        self.unlink(parent, name);
        self.names.remove(&(place.parent, place.name));
        self.names.insert((parent, name.to_owned()), node.id);
        *node.place.borrow_mut() = Place { parent, name: name.to_owned() };
        self.remove_unused(place.parent);
    }

    /// The kernel no longer needs so many lookups of the node.
    pub fn forget(&mut self, id: u64, count: u64) {
        if let Some(node) = self.nodes.get(&id) {
            node.lookups.set(node.lookups.get().saturating_sub(count));
            self.remove_unused(id);
        }
    }

    /// Removes a node that nothing refers to, and then its parent in the same way.
    pub fn remove_unused(&mut self, id: u64) {
        let mut id = id;
        while let Some(node) = self.nodes.get(&id).cloned() {
            let is_used =
                node.lookups.get() > 0 || node.opens.get() > 0 || (node.is_dirty() && !node.is_unlinked.get());
            let has_children = || self.names.range((id, String::new())..(id + 1, String::new())).next().is_some();
            if id == ROOT || is_used || has_children() {
                return;
            }
            if let Some(stage) = node.stage() {
                stage.discard();
            }
            let place = node.place.borrow().clone();
            if self.names.get(&(place.parent, place.name.clone())) == Some(&id) {
                self.names.remove(&(place.parent, place.name));
            }
            self.nodes.remove(&id);
            id = place.parent;
        }
    }

    /// The key of the node's object, without a slash at the end. None: the node, or a directory above it, was removed.
    pub fn key(&self, node: &Node) -> Option<String> {
        let mut names = Vec::new();
        let mut place = node.place.borrow().clone();
        let mut is_unlinked = node.is_unlinked.get();
        let mut id = node.id;
        while id != ROOT {
            if is_unlinked {
                return None;
            }
            names.push(place.name);
            id = place.parent;
            let parent = self.nodes.get(&id)?;
            place = parent.place.borrow().clone();
            is_unlinked = parent.is_unlinked.get();
        }
        names.reverse();
        Some(names.join("/"))
    }

    /// Whether `node` is `above` or below it.
    pub fn is_within(&self, node: &Node, above: u64) -> bool {
        let (mut id, mut parent) = (node.id, node.parent());
        while id != above && id != ROOT {
            id = parent;
            parent = self.nodes.get(&id).map_or(ROOT, |node| node.parent());
        }
        id == above
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attrs() -> Attrs {
        Attrs::of_new(Kind::File, 0o644, 0, 0)
    }

    #[test]
    fn keys_follow_renames_of_directories() {
        let mut tree = Tree::new(attrs());
        let a = tree.add(ROOT, "a", Kind::Directory, attrs());
        let b = tree.add(a.id, "b", Kind::Directory, attrs());
        let file = tree.add(b.id, "f", Kind::File, attrs());

        tree.rename(&b, ROOT, "c");

        assert_eq!(tree.key(&file).as_deref(), Some("c/f"));
        assert!(tree.is_within(&file, b.id));
        assert!(!tree.is_within(&file, a.id));
        assert!(tree.get(a.id).is_none(), "nothing refers to it any more");
    }

    #[test]
    fn a_node_without_a_name_stays_while_the_kernel_knows_it() {
        let mut tree = Tree::new(attrs());
        let file = tree.add(ROOT, "f", Kind::File, attrs());
        file.lookups.set(2);

        tree.unlink(ROOT, "f");
        tree.forget(file.id, 1);

        assert_eq!(tree.key(&file), None);
        assert!(tree.get(file.id).is_some());
        tree.forget(file.id, 1);
        assert!(tree.get(file.id).is_none());
    }

    #[test]
    fn children_are_those_of_one_directory() {
        let mut tree = Tree::new(attrs());
        let a = tree.add(ROOT, "a", Kind::Directory, attrs());
        tree.add(a.id, "x", Kind::File, attrs());
        tree.add(a.id, "y", Kind::File, attrs());

        let names: Vec<String> = tree.children(a.id).iter().map(|node| node.name()).collect();

        assert_eq!(names, ["x", "y"]);
        assert_eq!(tree.children(ROOT).len(), 1);
    }
}
