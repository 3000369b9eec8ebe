//! The changes of one file on the guest's own disk, until they are in the bucket.
//!
//! A stage consists of two files. NUMBER.data is sparse and has the changed bytes at their own offsets. NUMBER.log says
//! which file it is and has a record for every change, so that a program that is started again after a crash knows what
//! is changed (`journal.rs`). They are not synced: they outlive the program, not the machine.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::rc::Rc;

use super::content::{Base, Content, Source};
use super::folder::StageFolder;
use super::journal::{Record, StageInfo, render_info};
use super::upload::PART_BYTES;
use crate::md5::Md5;
use crate::s3::failure::{Failure, Result};

pub struct Stage {
    folder: Rc<StageFolder>,
    pub number: u64,
    write_id: String,
    data: File,
    log: RefCell<File>,
    content: RefCell<Content>,
    /// Rises with each change of the data.
    version: Cell<u64>,
    /// What `folder` counts for this stage.
    counted: Cell<u64>,
    is_discarded: Cell<bool>,
}

impl Stage {
    pub(super) fn new(
        folder: Rc<StageFolder>,
        (number, write_id): (u64, String),
        (data, log): (File, File),
        content: Content,
    ) -> Rc<Self> {
        let stage = Self {
            folder,
            number,
            write_id,
            data,
            log: RefCell::new(log),
            content: RefCell::new(content),
            version: Cell::new(0),
            counted: Cell::new(0),
            is_discarded: Cell::new(false),
        };
        stage.count();
        Rc::new(stage)
    }

    /// Where each part of a range comes from (`Content::pieces`).
    pub fn pieces(&self, range: Range<u64>) -> Vec<(Range<u64>, Source)> {
        self.content.borrow().pieces(range)
    }

    pub fn missing(&self, range: Range<u64>) -> Vec<Range<u64>> {
        self.content.borrow().missing(range)
    }

    pub fn base(&self) -> Option<Base> {
        self.content.borrow().base.clone()
    }

    pub fn size(&self) -> u64 {
        self.content.borrow().size
    }

    pub fn base_size(&self) -> u64 {
        self.content.borrow().base.as_ref().map_or(0, |base| base.size)
    }

    /// The object in the bucket is an earlier state of this stage.
    pub fn rebase(&self, base: Base) {
        self.content.borrow_mut().base = Some(base);
    }

    /// Random, and different for every stage.
    pub fn write_id(&self) -> &str {
        &self.write_id
    }

    pub fn local_bytes(&self) -> u64 {
        self.counted.get()
    }

    pub fn version(&self) -> u64 {
        self.version.get()
    }

    pub fn data(&self) -> &File {
        &self.data
    }

    pub fn data_path(&self) -> PathBuf {
        self.folder.path(self.number, "data")
    }

    /// Whether this write exceeds what may be staged.
    pub fn needs_room(&self, range: Range<u64>) -> bool {
        let added: u64 = self.content.borrow().local.gaps(range).iter().map(|gap| gap.end - gap.start).sum();
        added > 0 && !self.folder.has_room(added)
    }

    /// Whether it should be saved because the disk is nearly full. If it has little here, that gains little: a program that
    /// makes small changes would wait for a request with each of them.
    pub fn is_tight(&self) -> bool {
        self.counted.get() >= PART_BYTES && self.folder.is_tight()
    }

    pub fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let end = offset + data.len() as u64;
        let record = Record::Write { offset, length: data.len() as u64 };
        if let Err(failure) = self.store(offset, data).and_then(|()| self.append(&record.render())) {
            self.punch(offset..end);
            return Err(failure);
        }
        self.content.borrow_mut().write(offset..end);
        self.changed();
        Ok(())
    }

    /// Adds bytes of the base, which is not a change.
    pub fn fill(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.store(offset, data)?;
        let length = data.len() as u64;
        self.append(&Record::Write { offset, length }.render())?;
        self.content.borrow_mut().local.add(offset..offset + length);
        self.count();
        Ok(())
    }

    pub fn truncate(&self, size: u64) -> Result<()> {
        // The record first: without it, what is cut off would still be part of the file, and be zeros.
        let mark = self.append(&Record::Truncate { size }.render())?;
        if let Err(error) = self.data.set_len(size) {
            self.forget_after(mark);
            return Err(error.into());
        }
        self.content.borrow_mut().truncate(size);
        self.changed();
        Ok(())
    }

    /// Fills `buffer` with local bytes and zeros.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        read_data(&self.data, offset, buffer)
    }

    /// A long range takes a while, so another thread reads it.
    pub async fn digest(&self, range: Range<u64>) -> Result<[u8; 16]> {
        if range.end - range.start <= DIGEST_STEP_BYTES {
            return digest(&self.data, range);
        }
        let data = self.data.try_clone()?;
        let digested = tokio::task::spawn_blocking(move || digest(&data, range)).await;
        digested.map_err(|_| Failure::errno(libc::EIO))?
    }

    /// Records which file this is. Must be called again when its name or attributes change.
    pub fn describe(&self, info: &StageInfo) -> Result<()> {
        self.append(&render_info(info)).map(drop)
    }

    /// For a file that was deleted while it is open. Without its log, a run after a crash does not restore it, and the guest agent
    /// does not count it as unsaved.
    pub fn give_up_log(&self) {
        self.folder.remove_log(self.number);
    }

    /// The data is in the bucket, or no longer needed.
    pub fn discard(&self) {
        if !self.is_discarded.replace(true) {
            self.folder.uncount(self.counted.replace(0));
            self.folder.remove(self.number);
        }
    }

    fn store(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.data.write_all_at(data, offset).map_err(Failure::from)
    }

    /// After a failed write, for example on a full disk: what is not recorded must stay a hole, since that is read as zeros.
    fn punch(&self, range: Range<u64>) {
        for gap in self.content.borrow().local.gaps(range) {
            let (start, length) = (gap.start as libc::off_t, (gap.end - gap.start) as libc::off_t);
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: an open descriptor and numbers.
            unsafe { libc::fallocate(self.data.as_raw_fd(), mode, start, length) };
        }
    }

    /// Returns how long the log was before. On a full disk, part of a record may be written: what follows it could not be read.
    fn append(&self, bytes: &[u8]) -> Result<u64> {
        let mark = self.log.borrow().metadata()?.len();
        let written = self.log.borrow_mut().write_all(bytes);
        if let Err(error) = written {
            self.forget_after(mark);
            return Err(error.into());
        }
        Ok(mark)
    }

    fn forget_after(&self, mark: u64) {
        // Making a file shorter needs no room.
        let _ = self.log.borrow().set_len(mark);
    }

    fn changed(&self) {
        self.version.set(self.version.get() + 1);
        self.count();
    }

    fn count(&self) {
        let total = self.content.borrow().local.total();
        self.folder.uncount(self.counted.replace(total));
        self.folder.count(total);
    }
}

const DIGEST_STEP_BYTES: u64 = 256 * 1024;

fn digest(data: &File, range: Range<u64>) -> Result<[u8; 16]> {
    let mut md5 = Md5::default();
    let mut buffer = vec![0; DIGEST_STEP_BYTES.min(range.end - range.start) as usize];
    let mut position = range.start;
    while position < range.end {
        let count = (range.end - position).min(DIGEST_STEP_BYTES) as usize;
        read_data(data, position, &mut buffer[..count])?;
        md5.update(&buffer[..count]);
        position += count as u64;
    }
    Ok(md5.finish())
}

fn read_data(data: &File, offset: u64, buffer: &mut [u8]) -> Result<()> {
    let mut read = 0;
    while read < buffer.len() {
        match data.read_at(&mut buffer[read..], offset + read as u64)? {
            // The data ends with a hole.
            0 => break,
            count => read += count,
        }
    }
    buffer[read..].fill(0);
    Ok(())
}
