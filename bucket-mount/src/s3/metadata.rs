//! Attributes of files as metadata of objects, with the names and forms of s3fs: `mode` (decimal, with the type), `uid`,
//! `gid`, `mtime` (decimal seconds). A symbolic link is an object with the mode of a link and the target as its content.

use super::connection::Response;
use crate::time::Time;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
    Link,
}

impl Kind {
    pub fn mode(self) -> u32 {
        match self {
            Self::File => libc::S_IFREG,
            Self::Directory => libc::S_IFDIR,
            Self::Link => libc::S_IFLNK,
        }
    }

    /// Type of a directory entry (DT_*).
    pub fn dirent(self) -> u32 {
        self.mode() >> 12
    }
}

/// What an object says about its file. Absent fields have defaults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub mtime: Option<Time>,
    /// Marks the object of a directory as one of this program.
    pub is_ours: bool,
    /// Random, different for every write: tells whether a write of which no answer arrived was made.
    pub write_id: Option<String>,
}

const PREFIX: &str = "x-amz-meta-";
const MODE: &str = "x-amz-meta-mode";
const UID: &str = "x-amz-meta-uid";
const GID: &str = "x-amz-meta-gid";
const MTIME: &str = "x-amz-meta-mtime";
const DIRECTORY: &str = "x-amz-meta-warren-directory";
const WRITE_ID: &str = "x-amz-meta-warren-write";

impl Metadata {
    pub fn of_response(response: &Response) -> Self {
        let number = |name| response.header(name).and_then(|value| value.trim().parse().ok());
        Self {
            mode: number(MODE),
            uid: number(UID),
            gid: number(GID),
            mtime: response.header(MTIME).and_then(Time::parse_decimal),
            is_ours: response.header(DIRECTORY).is_some(),
            write_id: response.header(WRITE_ID).map(str::to_owned),
        }
    }

    pub fn to_headers(&self) -> Vec<(&'static str, String)> {
        debug_assert!([MODE, UID, GID, MTIME, DIRECTORY, WRITE_ID].iter().all(|name| name.starts_with(PREFIX)));
        let mut headers = Vec::new();
        let mut add = |name, value: Option<String>| headers.extend(value.map(|value| (name, value)));
        add(MODE, self.mode.map(|mode| mode.to_string()));
        add(UID, self.uid.map(|uid| uid.to_string()));
        add(GID, self.gid.map(|gid| gid.to_string()));
        add(MTIME, self.mtime.map(Time::render_decimal));
        add(DIRECTORY, self.is_ours.then(|| "1".to_owned()));
        add(WRITE_ID, self.write_id.clone());
        headers
    }

    /// What an object that is not a directory is. Types that S3 cannot hold count as files.
    pub fn kind(&self) -> Kind {
        match self.mode.unwrap_or_default() & libc::S_IFMT {
            libc::S_IFLNK => Kind::Link,
            _ => Kind::File,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_survives_a_round_trip() {
        let metadata = Metadata {
            mode: Some(0o120777),
            uid: Some(1000),
            gid: None,
            mtime: Some(Time { seconds: 5, nanoseconds: 7 }),
            is_ours: true,
            write_id: Some("a1".to_owned()),
        };
        let headers = metadata.to_headers().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();

        let read = Metadata::of_response(&Response { status: 200, headers, body: Vec::new() });

        assert_eq!(read, metadata);
        assert_eq!(read.kind(), Kind::Link);
    }

    #[test]
    fn foreign_values_are_ignored() {
        let headers = vec![(MODE.to_owned(), "rw-r--r--".to_owned()), (MTIME.to_owned(), "soon".to_owned())];

        let read = Metadata::of_response(&Response { status: 200, headers, body: Vec::new() });

        assert_eq!(read, Metadata::default());
        assert_eq!(read.kind(), Kind::File);
    }
}
