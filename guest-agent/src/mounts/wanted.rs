//! What the host wants to be mounted.

use std::net::SocketAddr;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::reply::Failure;

/// Also of those that an answer lists as removed.
pub const MOUNTS_MAX: usize = 16;

#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Wanted {
    pub id: String,
    pub mount_path: String,
    /// Of the S3 proxy.
    pub address: SocketAddr,
    pub token: String,
    #[serde(default)]
    pub read_only: bool,
    /// Rises when the mount is to be tried again.
    pub revision: u64,
    pub stage_max_mib: Option<u64>,
}

impl Wanted {
    /// Whether the mount program can keep running: it can change its connection, not where it is mounted.
    pub fn is_same_place(&self, other: &Self) -> bool {
        self.id == other.id
            && self.mount_path == other.mount_path
            && self.read_only == other.read_only
            && self.stage_max_mib == other.stage_max_mib
    }

    /// For the mount program: its new connection.
    pub fn connect_command(&self) -> Value {
        json!({"do": "connect", "address": self.address, "token": self.token})
    }
}

pub fn check(wanted: &[Wanted]) -> Result<(), Failure> {
    if wanted.len() > MOUNTS_MAX {
        return Err(Failure::invalid(format!("mounts: at most {MOUNTS_MAX}")));
    }
    for (index, mount) in wanted.iter().enumerate() {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if mount.id.is_empty() || mount.id.len() > 64 || !mount.id.bytes().all(allowed) {
            return Err(Failure::invalid("id: 1 to 64 letters, digits, dashes and underscores"));
        }
        let has_dots = mount.mount_path.split('/').any(|segment| segment == "." || segment == "..");
        if !mount.mount_path.starts_with('/') || mount.mount_path.len() < 2 || has_dots {
            return Err(Failure::invalid("mount_path: must be an absolute path other than /"));
        }
        if mount.mount_path.contains('\0') || mount.token.contains(|c: char| c.is_control() || c == ' ') {
            return Err(Failure::invalid("mount_path, token: invalid characters"));
        }
        let others = wanted.iter().skip(index + 1);
        for other in others {
            if other.id == mount.id || other.mount_path == mount.mount_path {
                return Err(Failure::invalid("mounts: ids and paths must differ"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(id: &str, mount_path: &str) -> Wanted {
        Wanted {
            id: id.to_owned(),
            mount_path: mount_path.to_owned(),
            address: ([10, 0, 0, 1], 9000).into(),
            token: "t".to_owned(),
            read_only: false,
            revision: 1,
            stage_max_mib: None,
        }
    }

    #[test]
    fn ids_and_paths_are_checked() {
        assert!(check(&[wanted("a", "/data"), wanted("b", "/data/inner")]).is_ok());
        for (id, path) in [("", "/data"), ("../a", "/data"), ("a", "/"), ("a", "data"), ("a", "/x/../etc")] {
            assert!(check(&[wanted(id, path)]).is_err(), "{id} {path}");
        }
        assert!(check(&[wanted("a", "/x"), wanted("a", "/y")]).is_err());
        assert!(check(&[wanted("a", "/x"), wanted("b", "/x")]).is_err());
    }
}
