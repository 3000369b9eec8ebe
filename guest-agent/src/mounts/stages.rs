//! Where mount programs keep changes until they are saved: on the disk of the machine, a folder for each mount.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::own_root::OwnRoot;

pub struct Stages {
    /// Also leads there if a disk is mounted above: a mount program must not stage changes on its own mount.
    path: PathBuf,
    /// How users know it.
    shown: PathBuf,
    _root: Option<OwnRoot>,
}

impl Stages {
    /// An absolute path in the machine. It is created when it is needed.
    pub fn in_root(root: &OwnRoot, shown: &Path) -> Self {
        let path = root.path().join(shown.strip_prefix("/").unwrap_or(shown));
        Self { path, shown: shown.into(), _root: None }
    }

    /// A folder of a machine that the agent has not booted.
    pub fn at(folder: PathBuf) -> Self {
        // If it cannot be created, mounts fail and say so.
        let _ = fs::create_dir_all(&folder);
        let root = OwnRoot::open(&folder);
        Self { path: root.path().into(), shown: folder, _root: Some(root) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn shown(&self) -> &Path {
        &self.shown
    }

    /// The files with changes that a mount program which is gone has not saved, and their bytes.
    pub fn count_unsaved(&self, id: &str) -> (u64, u64) {
        let Ok(entries) = fs::read_dir(self.path.join(id)) else { return (0, 0) };
        let logs =
            entries.flatten().map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "log"));
        let sizes = logs.map(|log| fs::metadata(log.with_extension("data")).map_or(0, |data| data.blocks() * 512));
        sizes.fold((0, 0), |(files, bytes), size| (files + 1, bytes + size))
    }

    /// Removes the changes of all mounts.
    pub fn clear(&self) {
        let Ok(entries) = fs::read_dir(&self.path) else { return };
        for entry in entries.flatten() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
