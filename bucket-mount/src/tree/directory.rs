//! What is known about the entries of a directory.
//!
//! A listing is used for a short time. Changes that this mount made are added to it, and again to any listing that was
//! requested before they were made: its answer may be older than they are.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use super::node::Attrs;
use crate::s3::list::Listed;
use crate::s3::metadata::Kind;

#[derive(Clone, Debug, PartialEq)]
pub enum Entry {
    Directory,
    /// Without its key.
    Object(Listed),
}

/// Whether the bucket has an object for the directory itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Marker {
    #[default]
    Unknown,
    Absent,
    /// Made by another program, or the server does not return the metadata of such objects.
    Foreign,
    Ours,
}

#[derive(Debug)]
pub struct Listing {
    pub entries: BTreeMap<String, Entry>,
    pub expires: Instant,
}

#[derive(Default)]
pub struct Directory {
    listing: RefCell<Option<Listing>>,
    /// When this mount changed a name, and what it is since then.
    changes: RefCell<HashMap<String, (Instant, Option<Entry>)>>,
    /// Attributes that were read from objects, valid while the objects are the same.
    exact: RefCell<HashMap<String, (Kind, Attrs)>>,
    /// It has more than a page of entries: a single name is looked up without listing all.
    pub is_large: Cell<bool>,
    pub marker: Cell<Marker>,
    /// Held while the entries are listed, and while attributes are read ahead.
    pub loading: Mutex<()>,
    pub reading_ahead: Mutex<()>,
    /// The last name that was looked up, and how many names are read ahead.
    pub last_lookup: RefCell<(String, usize)>,
}

impl Directory {
    /// Uses the listing if it is fresh.
    pub fn with_listing<T>(&self, work: impl FnOnce(&BTreeMap<String, Entry>) -> T) -> Option<T> {
        let listing = self.listing.borrow();
        listing.as_ref().filter(|listing| listing.expires > Instant::now()).map(|listing| work(&listing.entries))
    }

    /// `started` is when the first request for the entries was sent.
    pub fn set_listing(&self, mut entries: BTreeMap<String, Entry>, started: Instant, lifetime: Duration) {
        self.changes.borrow_mut().retain(|_, (at, _)| *at >= started);
        for (name, (_, entry)) in self.changes.borrow().iter() {
            match entry {
                Some(entry) => drop(entries.insert(name.clone(), entry.clone())),
                None => drop(entries.remove(name)),
            }
        }
        self.exact.borrow_mut().retain(|name, _| entries.contains_key(name));
        *self.listing.borrow_mut() = Some(Listing { entries, expires: Instant::now() + lifetime });
    }

    /// This mount created, replaced or removed an entry.
    pub fn record(&self, name: &str, entry: Option<Entry>) {
        if let Some(listing) = self.listing.borrow_mut().as_mut() {
            match &entry {
                Some(entry) => drop(listing.entries.insert(name.to_owned(), entry.clone())),
                None => drop(listing.entries.remove(name)),
            }
        }
        let mut changes = self.changes.borrow_mut();
        // Without a listing nothing else removes them.
        if changes.len() >= CHANGES_MAX {
            changes.retain(|_, (at, _)| at.elapsed() < LISTING_TIME_MAX);
        }
        changes.insert(name.to_owned(), (Instant::now(), entry));
    }

    /// What this mount did to a name since `started`.
    pub fn changed_since(&self, name: &str, started: Instant) -> Option<Option<Entry>> {
        let changes = self.changes.borrow();
        changes.get(name).filter(|(at, _)| *at >= started).map(|(_, entry)| entry.clone())
    }

    pub fn changes_since(&self, started: Instant) -> HashMap<String, Option<Entry>> {
        let changes = self.changes.borrow();
        let recent = changes.iter().filter(|(_, (at, _))| *at >= started);
        recent.map(|(name, (_, entry))| (name.clone(), entry.clone())).collect()
    }

    pub fn exact(&self, name: &str, listed: &Listed) -> Option<(Kind, Attrs)> {
        self.exact.borrow().get(name).filter(|(_, attrs)| attrs.is_of(listed)).cloned()
    }

    pub fn set_exact(&self, name: &str, kind: Kind, attrs: Attrs) {
        let mut exact = self.exact.borrow_mut();
        if exact.len() < EXACT_MAX || exact.contains_key(name) {
            exact.insert(name.to_owned(), (kind, attrs));
        }
    }

    /// The next listing is requested again. What was read from objects stays valid for their ETags.
    pub fn expire(&self) {
        *self.listing.borrow_mut() = None;
        self.is_large.set(false);
    }

    /// Whether entries can have attributes that a listing does not show. Programs that keep attributes (this one, s3fs)
    /// make markers; those that upload data sets do not.
    pub fn keeps_attributes(&self) -> bool {
        matches!(self.marker.get(), Marker::Foreign | Marker::Ours)
    }

    pub fn has_our_marker(&self) -> bool {
        self.marker.get() == Marker::Ours
    }
}

const CHANGES_MAX: usize = 1024;
/// No listing takes longer.
const LISTING_TIME_MAX: Duration = Duration::from_secs(300);
const EXACT_MAX: usize = 20_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Time;

    fn object(etag: &str) -> Entry {
        Entry::Object(Listed { etag: etag.to_owned(), ..Listed::default() })
    }

    fn entries(names: &[&str]) -> BTreeMap<String, Entry> {
        names.iter().map(|name| (name.to_string(), object("old"))).collect()
    }

    #[test]
    fn a_listing_does_not_undo_changes_that_were_made_while_it_was_requested() {
        let directory = Directory::default();
        directory.record("before", Some(object("new")));
        let started = Instant::now();
        directory.record("created", Some(object("new")));
        directory.record("removed", None);

        directory.set_listing(entries(&["removed", "other"]), started, Duration::from_secs(9));

        let names = directory.with_listing(|entries| entries.keys().cloned().collect::<Vec<_>>());
        assert_eq!(names, Some(vec!["created".to_owned(), "other".to_owned()]));
    }

    #[test]
    fn a_listing_expires() {
        let directory = Directory::default();

        directory.set_listing(entries(&["a"]), Instant::now(), Duration::ZERO);

        assert_eq!(directory.with_listing(BTreeMap::len), None);
    }

    #[test]
    fn attributes_belong_to_one_object() {
        let directory = Directory::default();
        let attrs = Attrs { etag: "e1".to_owned(), last_modified: Some(7), ..Attrs::of_new(Kind::File, 0o600, 1, 2) };
        let listed = |etag: &str, seconds| Listed {
            etag: etag.to_owned(),
            last_modified: Time { seconds, nanoseconds: 5 },
            ..Listed::default()
        };

        directory.set_exact("a", Kind::File, attrs.clone());

        assert_eq!(directory.exact("a", &listed("e1", 7)), Some((Kind::File, attrs)));
        assert_eq!(directory.exact("a", &listed("e2", 7)), None);
        assert_eq!(directory.exact("a", &listed("e1", 8)), None);
    }
}
