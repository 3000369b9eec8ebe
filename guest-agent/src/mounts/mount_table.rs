//! /proc/self/mountinfo of this thread.

use std::ffi::OsString;
use std::fs;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

#[derive(Debug, PartialEq)]
pub struct Mounted {
    pub id: u64,
    /// The mount that it is mounted on.
    pub parent: u64,
    pub point: PathBuf,
    pub kind: String,
}

/// Empty if it cannot be read.
pub fn read() -> Vec<Mounted> {
    let text = fs::read("/proc/thread-self/mountinfo").unwrap_or_default();
    text.split(|byte| *byte == b'\n').filter_map(parse).collect()
}

/// Of the mount that a file is in.
pub fn id_of(fd: &OwnedFd) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", fd.as_raw_fd()))?;
    let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    id.ok_or_else(|| Error::other("the kernel does not report the mount of a file"))
}

fn parse(line: &[u8]) -> Option<Mounted> {
    let mut words = line.split(|byte| *byte == b' ');
    let mut number = || std::str::from_utf8(words.next()?).ok()?.parse().ok();
    let (id, parent) = (number()?, number()?);
    let point = PathBuf::from(OsString::from_vec(unescape(words.nth(2)?)));
    words.find(|word| *word == b"-")?;
    let kind = std::str::from_utf8(words.next()?).ok()?.to_owned();
    Some(Mounted { id, parent, point, kind })
}

/// Spaces, tabs, line feeds and backslashes are a backslash and three octal digits.
fn unescape(word: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed_with_optional_fields_and_escaped_paths() {
        let line = br"120 119 0:48 / /mnt/a\040b\134c rw,relatime shared:1 master:2 - fuse.bucket-mount bucket rw";

        let found = parse(line);

        let point = PathBuf::from("/mnt/a b\\c");
        assert_eq!(found, Some(Mounted { id: 120, parent: 119, point, kind: "fuse.bucket-mount".to_owned() }));
        assert_eq!(parse(b""), None);
        assert_eq!(unescape(br"\0"), br"\0");
    }
}
