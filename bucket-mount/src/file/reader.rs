//! Reads objects in pieces, ahead of the program if it reads one piece after another.
//!
//! A piece is requested once and kept until the program has read it. The more a program has read in order, the more is
//! requested ahead, up to a limit for all open files together: the kernel keeps what was read in its own cache.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use tokio::sync::Notify;

use crate::handles::FileHandle;
use crate::mount::Mount;
use crate::ops::attributes::refresh;
use crate::s3::failure::{Cause, Failure, Result};

/// A smaller object is read at once.
const PIECE_BYTES: u64 = 1 << 20;
/// What a program that jumps around gets, so that neighbouring reads need no further request.
const JUMP_BYTES: u64 = 128 * 1024;
const AHEAD_MAX_BYTES: u64 = 6 << 20;
/// For all open files together.
const MEMORY_MAX_BYTES: usize = 9 << 20;
/// The kernel sends reads that belong together out of order.
const DISORDER_BYTES: u64 = 2 << 20;

#[derive(Default)]
pub struct Reader {
    etag: String,
    pieces: VecDeque<Rc<Piece>>,
    /// Where the next read starts if the program reads in order.
    position: u64,
    ahead: u64,
}

struct Piece {
    mount: Rc<Mount>,
    range: Range<u64>,
    data: RefCell<Option<Result<Vec<u8>>>>,
    arrived: Notify,
}

impl Drop for Piece {
    fn drop(&mut self) {
        let held = &self.mount.read_ahead_bytes;
        held.set(held.get().saturating_sub((self.range.end - self.range.start) as usize));
    }
}

/// Reads a file without unsaved changes. If someone else replaces the object, a file that was just opened is read in its
/// new version; later it is an error, since the program would get parts of both.
pub async fn read_object(mount: &Rc<Mount>, handle: &FileHandle, range: Range<u64>) -> Result<Vec<u8>> {
    let node = &handle.node;
    let is_first = handle.reader.borrow().position == 0;
    let version = {
        let attrs = node.attrs.borrow();
        (attrs.etag.clone(), attrs.size)
    };
    match read_version(mount, handle, (&version.0, version.1), range.clone()).await {
        Err(failure) if matches!(failure.cause, Cause::Conflict | Cause::NotFound) => {
            mount.invalidate(node);
            if let Some(directory) = mount.parent_of(node)?.directory.as_deref() {
                directory.expire();
            }
            if !is_first {
                return Err(Failure::new(Cause::Conflict, failure.message));
            }
            refresh(mount, node).await?;
            let (etag, size) = {
                let attrs = node.attrs.borrow();
                (attrs.etag.clone(), attrs.size)
            };
            let end = range.end.min(size);
            if range.start >= end {
                return Ok(Vec::new());
            }
            read_version(mount, handle, (&etag, size), range.start..end).await
        }
        result => result,
    }
}

/// Reads from the object with this ETag and size.
pub async fn read_version(
    mount: &Rc<Mount>,
    handle: &FileHandle,
    (etag, size): (&str, u64),
    range: Range<u64>,
) -> Result<Vec<u8>> {
    let key = mount.key(&handle.node)?;
    handle.reader.borrow_mut().begin(etag, &range);
    let mut data = Vec::with_capacity((range.end - range.start) as usize);
    while range.start + (data.len() as u64) < range.end {
        let position = range.start + data.len() as u64;
        let piece = {
            let mut reader = handle.reader.borrow_mut();
            reader.find(position).unwrap_or_else(|| {
                let length = reader.choose_length(position, range.end, size);
                reader.request(mount, &key, position..position + length)
            })
        };
        request_ahead(mount, handle, &key, (range.end, size));
        let taken = piece.wait(|bytes| {
            let start = (position - piece.range.start) as usize;
            let end = ((range.end - piece.range.start) as usize).min(bytes.len());
            data.extend_from_slice(&bytes[start..end]);
        });
        if let Err(failure) = taken.await {
            handle.reader.borrow_mut().forget();
            return Err(failure);
        }
    }
    handle.reader.borrow_mut().end(range.end);
    Ok(data)
}

fn request_ahead(mount: &Rc<Mount>, handle: &FileHandle, key: &str, (from, size): (u64, u64)) {
    let mut reader = handle.reader.borrow_mut();
    let until = (from + reader.ahead).min(size);
    let mut position = reader.covered_until(from);
    while position < until && mount.read_ahead_bytes.get() < MEMORY_MAX_BYTES {
        let length = PIECE_BYTES.min(size - position);
        reader.request(mount, key, position..position + length);
        position += length;
    }
}

impl Reader {
    fn begin(&mut self, etag: &str, range: &Range<u64>) {
        if self.etag != etag {
            self.forget();
            self.etag = etag.to_owned();
        }
        let is_in_order = range.start <= self.position + DISORDER_BYTES && range.end + DISORDER_BYTES >= self.position;
        match is_in_order && range.start > 0 {
            true if self.ahead == 0 => self.ahead = PIECE_BYTES,
            true if range.end > self.position => self.ahead = (self.ahead * 2).min(AHEAD_MAX_BYTES),
            true => {}
            false => self.ahead = 0,
        }
    }

    fn end(&mut self, position: u64) {
        self.position = position.max(self.position.min(position + DISORDER_BYTES));
        let keep_from = self.position.saturating_sub(DISORDER_BYTES);
        let keep_until = self.position + self.ahead + DISORDER_BYTES;
        // Whatever the program has read is in the cache of the kernel.
        self.pieces.retain(|piece| piece.range.end > keep_from && piece.range.start <= keep_until);
        while self.pieces.len() > 1 && self.pieces.iter().filter(|piece| piece.range.end <= position).count() > 1 {
            self.pieces.pop_front();
        }
    }

    fn forget(&mut self) {
        self.pieces.clear();
        self.ahead = 0;
    }

    fn find(&self, position: u64) -> Option<Rc<Piece>> {
        self.pieces.iter().find(|piece| piece.range.contains(&position)).cloned()
    }

    /// Up to where pieces follow one another from a position.
    fn covered_until(&self, mut position: u64) -> u64 {
        while let Some(piece) = self.find(position) {
            position = piece.range.end;
        }
        position
    }

    fn choose_length(&self, position: u64, end: u64, size: u64) -> u64 {
        let wanted = match size <= PIECE_BYTES || self.ahead > 0 {
            true => PIECE_BYTES,
            false => JUMP_BYTES,
        };
        wanted.max(end - position).min(size - position)
    }

    fn request(&mut self, mount: &Rc<Mount>, key: &str, range: Range<u64>) -> Rc<Piece> {
        let length = (range.end - range.start) as usize;
        mount.read_ahead_bytes.set(mount.read_ahead_bytes.get() + length);
        let piece = Rc::new(Piece { mount: mount.clone(), range, data: RefCell::default(), arrived: Notify::new() });
        self.pieces.push_back(piece.clone());
        let (key, etag) = (key.to_owned(), self.etag.clone());
        let requested = piece.clone();
        tokio::task::spawn_local(async move {
            let mount = &requested.mount;
            let data = mount.client.get_range(&key, &etag, requested.range.start, length).await;
            *requested.data.borrow_mut() = Some(data);
            requested.arrived.notify_waiters();
        });
        piece
    }
}

impl Piece {
    async fn wait(&self, use_bytes: impl FnOnce(&[u8])) -> Result<()> {
        loop {
            let arrived = self.arrived.notified();
            if let Some(data) = self.data.borrow().as_ref() {
                return data.as_ref().map(|bytes| use_bytes(bytes)).map_err(Clone::clone);
            }
            arrived.await;
        }
    }
}
