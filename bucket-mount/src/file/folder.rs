//! The folder with the stages of a mount, and how much they may take of the guest's disk.

use std::cell::Cell;
use std::fs::{self, File, OpenOptions};
use std::io::BufReader;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::content::Content;
use super::journal::{StageInfo, replay};
use super::stage::Stage;
use crate::s3::failure::{Cause, Failure, Result};

pub struct StageFolder {
    path: PathBuf,
    /// Two programs in one folder would take each other's stages for leftovers.
    _lock: File,
    max_bytes: u64,
    used_bytes: Cell<u64>,
    last_number: Cell<u64>,
}

/// A stage that an earlier run left behind.
pub struct Leftover {
    pub info: StageInfo,
    pub stage: Rc<Stage>,
}

impl StageFolder {
    /// Creates the folder if necessary. Only root may read it.
    pub fn open(path: &Path, max_bytes: u64) -> Result<Rc<Self>> {
        use std::os::unix::fs::DirBuilderExt;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path.join(KEPT))?;
        let _lock = lock(&path.join("lock"))?;
        let (used_bytes, last_number) = (Cell::new(0), Cell::new(0));
        let folder = Self { path: path.into(), _lock, max_bytes, used_bytes, last_number };
        folder.last_number.set(folder.numbers().into_iter().max().unwrap_or_default());
        Ok(Rc::new(folder))
    }

    pub fn create(self: &Rc<Self>, info: &StageInfo, content: Content) -> Result<Rc<Stage>> {
        let number = self.last_number.get() + 1;
        self.last_number.set(number);
        let data = self.open_file(number, "data", true)?;
        data.set_len(content.size)?;
        let log = self.open_file(number, "log", true)?;
        let stage = Stage::new(self.clone(), (number, info.write_id.clone()), (data, log), content);
        stage.describe(info)?;
        Ok(stage)
    }

    /// Stages of an earlier run. Files that are not whole are removed: their stage was just being created.
    pub fn recover(self: &Rc<Self>) -> Vec<Leftover> {
        let mut found = Vec::new();
        for number in self.numbers() {
            match self.recover_one(number) {
                Some(leftover) => found.push(leftover),
                None => self.remove(number),
            }
        }
        found
    }

    fn recover_one(self: &Rc<Self>, number: u64) -> Option<Leftover> {
        let data = self.open_file(number, "data", false).ok()?;
        let log = self.open_file(number, "log", false).ok()?;
        let (info, content) = replay(&mut BufReader::new(&log))?;
        data.set_len(content.size).ok()?;
        let stage = Stage::new(self.clone(), (number, info.write_id.clone()), (data, log), content);
        Some(Leftover { info, stage })
    }

    /// Keeps the data of a stage that cannot be written to the bucket, and returns where it is.
    pub fn keep(&self, stage: &Stage, key: &str) -> Result<PathBuf> {
        let name = key.rsplit('/').next().unwrap_or_default();
        let name: String = name.chars().take(100).collect();
        let kept = self.path.join(KEPT).join(format!("{:06}-{name}", stage.number));
        fs::rename(stage.data_path(), &kept)?;
        stage.discard();
        Ok(kept)
    }

    pub(super) fn remove(&self, number: u64) {
        for kind in ["log", "data"] {
            let _ = fs::remove_file(self.path(number, kind));
        }
    }

    pub(super) fn path(&self, number: u64, kind: &str) -> PathBuf {
        self.path.join(format!("{number}.{kind}"))
    }

    pub fn has_room(&self, bytes: u64) -> bool {
        self.used_bytes.get() + bytes <= self.max_bytes
    }

    pub(super) fn count(&self, bytes: u64) {
        self.used_bytes.set(self.used_bytes.get() + bytes);
    }

    pub(super) fn uncount(&self, bytes: u64) {
        self.used_bytes.set(self.used_bytes.get().saturating_sub(bytes));
    }

    fn open_file(&self, number: u64, kind: &str, is_new: bool) -> Result<File> {
        use std::os::unix::fs::OpenOptionsExt;
        let mut options = OpenOptions::new();
        options.read(true).mode(0o600).create(is_new);
        match kind {
            "log" => options.append(true),
            _ => options.write(true),
        };
        let path = self.path(number, kind);
        if is_new {
            let _ = fs::remove_file(&path);
        }
        Ok(options.open(path)?)
    }

    /// In the order in which the stages were created.
    fn numbers(&self) -> Vec<u64> {
        let Ok(entries) = fs::read_dir(&self.path) else { return Vec::new() };
        let names = entries.flatten().map(|entry| entry.file_name());
        let mut numbers: Vec<u64> = names.filter_map(|name| name.to_str()?.split('.').next()?.parse().ok()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }
}

const KEPT: &str = "kept";

/// Held until the program ends.
fn lock(path: &Path) -> Result<File> {
    let file = File::create(path)?;
    // SAFETY: an open descriptor.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } < 0 {
        return Err(Failure::new(Cause::Local(libc::EBUSY), "another mount program uses it"));
    }
    Ok(file)
}
