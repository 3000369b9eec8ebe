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
use super::upload::PART_BYTES;
use crate::s3::failure::{Cause, Failure, Result};

pub struct StageFolder {
    path: PathBuf,
    /// Two programs in one folder would take each other's stages for leftovers.
    lock: File,
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
        let lock = lock(&path.join("lock"))?;
        let (used_bytes, last_number) = (Cell::new(0), Cell::new(0));
        let folder = Self { path: path.into(), lock, max_bytes, used_bytes, last_number };
        // Also those of kept files, which a later one with the same number would replace.
        let numbers = numbers_in(path).chain(numbers_in(&path.join(KEPT)));
        folder.last_number.set(numbers.max().unwrap_or_default());
        Ok(Rc::new(folder))
    }

    pub fn create(self: &Rc<Self>, info: &StageInfo, content: Content) -> Result<Rc<Stage>> {
        let number = self.last_number.get() + 1;
        self.last_number.set(number);
        let created = self.create_files(number, info, content);
        // A disk that is full must not fill up with empty files as well.
        created.inspect_err(|_| self.remove(number))
    }

    fn create_files(self: &Rc<Self>, number: u64, info: &StageInfo, content: Content) -> Result<Rc<Stage>> {
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

    /// Keeps the data of a stage that cannot be written to the bucket, and returns where it is in this folder.
    pub fn keep(&self, stage: &Stage, key: &str) -> Result<PathBuf> {
        let name = key.rsplit('/').next().unwrap_or_default();
        let end = (0..=name.len().min(KEPT_NAME_MAX_BYTES)).rev().find(|end| name.is_char_boundary(*end));
        let name = format!("{:06}-{}", stage.number, &name[..end.unwrap_or_default()]);
        fs::rename(stage.data_path(), self.path.join(KEPT).join(&name))?;
        stage.discard();
        Ok(Path::new(KEPT).join(name))
    }

    pub fn has_kept(&self, kept: &Path) -> bool {
        self.path.join(kept).exists()
    }

    /// How many files are kept, also of earlier runs.
    pub fn count_kept(&self) -> usize {
        numbers_in(&self.path.join(KEPT)).count()
    }

    pub(super) fn remove(&self, number: u64) {
        for kind in ["log", "data"] {
            let _ = fs::remove_file(self.path(number, kind));
        }
    }

    pub(super) fn remove_log(&self, number: u64) {
        let _ = fs::remove_file(self.path(number, "log"));
    }

    pub(super) fn path(&self, number: u64, kind: &str) -> PathBuf {
        self.path.join(format!("{number}.{kind}"))
    }

    pub fn has_room(&self, bytes: u64) -> bool {
        self.used_bytes.get() + bytes <= self.max_bytes
    }

    /// Whether the disk of the guest is nearly full. Saving a file may need room for one of its parts.
    pub fn is_tight(&self) -> bool {
        // SAFETY: an open descriptor, and all zeros is a valid value that the kernel fills.
        let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
        let is_known = unsafe { libc::fstatvfs(self.lock.as_raw_fd(), &mut found) } == 0;
        is_known && found.f_bavail.saturating_mul(found.f_frsize) < RESERVE_BYTES
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
        let mut numbers: Vec<u64> = numbers_in(&self.path).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }
}

const KEPT: &str = "kept";
/// A stage grows to one part before it is saved. Then there is still room for two.
const RESERVE_BYTES: u64 = 3 * PART_BYTES;
/// With its number, below the 255 bytes of a file name.
const KEPT_NAME_MAX_BYTES: usize = 200;

/// Of files whose names begin with a number: NUMBER.data, NUMBER.log and NUMBER-name.
fn numbers_in(folder: &Path) -> impl Iterator<Item = u64> + use<> {
    let names = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.filter_map(|name| name.to_str()?.split(['.', '-']).next()?.parse().ok())
}

/// Held until the program ends.
fn lock(path: &Path) -> Result<File> {
    let file = File::create(path)?;
    // SAFETY: an open descriptor.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } < 0 {
        return Err(Failure::new(Cause::Local(libc::EBUSY), "another mount program uses it"));
    }
    Ok(file)
}
