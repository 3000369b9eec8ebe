//! PUT and GET /files?path=: streams whole files. The path is in the user's own root filesystem and is accessed as the
//! user's own root, so there is nothing to escape from; the checks guard against mistakes, not against attackers.

mod download;
mod path;
mod upload;

use std::io::{Error, ErrorKind};
use std::path::Path;

use http::StatusCode;

use crate::reply::Failure;

pub use download::get_file;
pub use upload::put_file;

/// Every error of a file that cannot be read is one that the caller can fix by naming another file, except where the
/// agent itself lacks something.
fn read_failure(path: &Path, error: &Error) -> Failure {
    let (status, code) = match error.raw_os_error() {
        // The second is a file of /proc whose process has ended.
        Some(libc::ENOENT | libc::ESRCH) => (StatusCode::NOT_FOUND, "file_not_found"),
        Some(libc::ENOMEM | libc::EMFILE | libc::ENFILE) => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
        _ => (StatusCode::BAD_REQUEST, "invalid_path"),
    };
    let why = if error.kind() == ErrorKind::WouldBlock { "nothing to read now".to_owned() } else { error.to_string() };
    Failure::new(status, code, format!("{} cannot be read: {why}", path.display()))
}

/// An upload creates what is missing, so nothing that it needs can be "not found": where /proc has no such entry, no
/// file can be created.
fn write_failure(path: &Path, error: &Error) -> Failure {
    let (status, code) = match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => (StatusCode::INSUFFICIENT_STORAGE, "no_space"),
        Some(libc::EISDIR | libc::ENOTDIR | libc::ELOOP | libc::ENAMETOOLONG | libc::EINVAL | libc::EFBIG) => {
            (StatusCode::BAD_REQUEST, "invalid_path")
        }
        None | Some(libc::EIO | libc::ENOMEM | libc::EMFILE | libc::ENFILE) => {
            (StatusCode::INTERNAL_SERVER_ERROR, "internal")
        }
        _ => (StatusCode::BAD_REQUEST, "not_writable"),
    };
    Failure::new(status, code, format!("{} cannot be written: {error}", path.display()))
}

fn invalid_path(message: &str) -> Failure {
    Failure::new(StatusCode::BAD_REQUEST, "invalid_path", message)
}
