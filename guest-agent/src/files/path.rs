//! The path in the query: percent-encoded UTF-8, absolute, without `..` and NUL.

use std::path::{Component, Path, PathBuf};

use crate::reply::Failure;

use super::invalid_path;

pub fn parse_path(query: Option<&str>) -> Result<PathBuf, Failure> {
    let pairs = query.unwrap_or_default().split('&');
    let value = pairs.filter_map(|pair| pair.strip_prefix("path=")).next();
    let text = decode(value.ok_or_else(|| invalid_path("path is missing"))?)
        .ok_or_else(|| invalid_path("path is not percent-encoded UTF-8"))?;
    let path = PathBuf::from(&text);
    let message = if text.contains('\0') {
        "path contains a NUL byte"
    } else if !path.is_absolute() {
        "path is not absolute"
    } else if path.components().any(|part| part == Component::ParentDir) {
        "path contains .."
    } else if text.ends_with('/') || text.ends_with("/.") {
        "path names a directory"
    } else {
        return Ok(path);
    };
    Err(invalid_path(message))
}

/// A plus sign is literal: only `%` is special here.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        bytes.push(match byte {
            b'%' => u8::try_from(digit(rest.next())? * 16 + digit(rest.next())?).ok()?,
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

/// The same limit as in Linux.
const LINKS_MAX: usize = 40;

/// Resolves where a write to `path` goes, like the shell's `>`: through symbolic links, including a dangling one.
pub fn follow_links(path: &Path) -> std::io::Result<PathBuf> {
    let mut target = path.to_path_buf();
    for _ in 0..LINKS_MAX {
        match std::fs::read_link(&target) {
            // `join` with an absolute link gives the link itself.
            Ok(link) => target = target.parent().unwrap_or(Path::new("/")).join(link),
            Err(_not_a_link) => return Ok(target),
        }
    }
    Err(std::io::Error::from_raw_os_error(libc::ELOOP))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path_of(query: &str) -> Option<PathBuf> {
        parse_path(Some(query)).ok()
    }

    #[test]
    fn an_absolute_path_is_accepted_unchanged() {
        assert_eq!(path_of("path=/a/b%20c+d%C3%A9"), Some("/a/b c+dé".into()));
        assert_eq!(path_of("other=1&path=/x"), Some("/x".into()));
        assert_eq!(path_of("path=/a..b/...c"), Some("/a..b/...c".into()));
    }

    #[test]
    fn a_path_that_cannot_name_a_file_is_rejected() {
        for bad in ["", "path=", "path=rel", "path=/a/../b", "path=/a/%2e%2e/b", "path=/a%00b", "path=/a/", "path=/"] {
            assert_eq!(path_of(bad), None, "{bad}");
        }
        assert_eq!(path_of("path=/%"), None);
        assert_eq!(path_of("path=/%ff"), None);
        assert!(parse_path(None).is_err());
    }
}
