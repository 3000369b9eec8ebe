//! Reads and writes the structs of the FUSE protocol (include/uapi/linux/fuse.h). All integers have the byte order of
//! the machine.

use super::abi::{Attributes, EntryTimes};

/// What is left to read of a request.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_ne_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_ne_bytes)
    }

    /// A name with a NUL at its end.
    pub fn name(&mut self) -> Option<&'a [u8]> {
        let length = self.0.iter().position(|byte| *byte == 0)?;
        let name = self.take(length)?;
        self.take(1)?;
        Some(name)
    }
}

#[derive(Default)]
pub struct Output(pub Vec<u8>);

impl Output {
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// struct fuse_attr
    pub fn attributes(&mut self, attributes: &Attributes) -> &mut Self {
        let (seconds, nanoseconds) = (attributes.mtime.seconds as u64, attributes.mtime.nanoseconds);
        self.u64(attributes.node).u64(attributes.size).u64(attributes.size.div_ceil(512));
        self.u64(seconds).u64(seconds).u64(seconds);
        self.u32(nanoseconds).u32(nanoseconds).u32(nanoseconds);
        self.u32(attributes.mode).u32(attributes.links).u32(attributes.uid).u32(attributes.gid);
        self.u32(0).u32(BLOCK_BYTES).u32(0)
    }

    /// struct fuse_entry_out
    pub fn entry(&mut self, attributes: &Attributes, times: EntryTimes) -> &mut Self {
        self.u64(attributes.node).u64(0);
        self.u64(times.entry.as_secs()).u64(times.attributes.as_secs());
        self.u32(times.entry.subsec_nanos()).u32(times.attributes.subsec_nanos());
        self.attributes(attributes)
    }

    /// struct fuse_attr_out
    pub fn attributes_reply(&mut self, attributes: &Attributes, times: EntryTimes) -> &mut Self {
        self.u64(times.attributes.as_secs()).u32(times.attributes.subsec_nanos()).u32(0).attributes(attributes)
    }

    /// struct fuse_open_out
    pub fn opened(&mut self, handle: u64, flags: u32) -> &mut Self {
        self.u64(handle).u32(flags).u32(0)
    }
}

/// The preferred size of reads and writes, as stat(2) reports it.
const BLOCK_BYTES: u32 = 128 * 1024;

/// Entries of a directory, up to the size that the kernel asked for.
pub struct Entries {
    output: Output,
    max_bytes: usize,
}

impl Entries {
    pub fn new(max_bytes: usize) -> Self {
        Self { output: Output::default(), max_bytes }
    }

    /// Returns false if there is no room. `next` is the offset at which the listing continues after this entry.
    pub fn add(&mut self, node: u64, next: u64, kind: u32, name: &[u8]) -> bool {
        if !self.has_room(DIRENT_BYTES + name.len()) {
            return false;
        }
        self.dirent(node, next, kind, name);
        true
    }

    /// Like `add`, with attributes. Without attributes the kernel looks the name up when it is used.
    pub fn add_plus(
        &mut self,
        found: Option<(&Attributes, EntryTimes)>,
        (node, next, kind): (u64, u64, u32),
        name: &[u8],
    ) -> bool {
        if !self.has_room(ENTRY_OUT_BYTES + DIRENT_BYTES + name.len()) {
            return false;
        }
        match found {
            Some((attributes, times)) => drop(self.output.entry(attributes, times)),
            None => self.output.0.resize(self.output.0.len() + ENTRY_OUT_BYTES, 0),
        }
        self.dirent(node, next, kind, name);
        true
    }

    /// Whether an entry of this size still fits.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.output.0.len() + bytes.next_multiple_of(8) <= self.max_bytes
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.output.0
    }

    fn dirent(&mut self, node: u64, next: u64, kind: u32, name: &[u8]) {
        let length = u32::try_from(name.len()).unwrap_or(u32::MAX);
        self.output.u64(node).u64(next).u32(length).u32(kind).bytes(name);
        let padded = self.output.0.len().next_multiple_of(8);
        self.output.0.resize(padded, 0);
    }
}

pub const DIRENT_BYTES: usize = 24;
pub const ENTRY_OUT_BYTES: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Time;
    use std::time::Duration;

    const ATTRIBUTES: Attributes = Attributes {
        node: 7,
        size: 1025,
        mtime: Time { seconds: 5, nanoseconds: 6 },
        mode: 0o100644,
        links: 1,
        uid: 8,
        gid: 9,
    };

    #[test]
    fn replies_have_the_sizes_that_the_kernel_expects() {
        let times = EntryTimes { entry: Duration::from_millis(1500), attributes: Duration::ZERO };

        assert_eq!(Output::default().attributes(&ATTRIBUTES).0.len(), 88);
        assert_eq!(Output::default().entry(&ATTRIBUTES, times).0.len(), ENTRY_OUT_BYTES);
        assert_eq!(Output::default().attributes_reply(&ATTRIBUTES, times).0.len(), 104);
    }

    #[test]
    fn entries_are_aligned_and_stop_at_the_limit() {
        let mut entries = Entries::new(80);

        assert!(entries.add(1, 1, 8, b"a"));
        assert!(entries.add(2, 2, 8, b"twelve bytes"));
        assert!(!entries.add(3, 3, 8, b"b"));
        assert_eq!(entries.into_bytes().len(), 32 + 40);
    }

    #[test]
    fn input_that_is_too_short_is_none() {
        assert_eq!(Input(&[1, 2, 3]).u32(), None);
        assert_eq!(Input(b"no end").name(), None);
        assert_eq!(Input(b"name\0rest").name(), Some(b"name".as_slice()));
    }
}
