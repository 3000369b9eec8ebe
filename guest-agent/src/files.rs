//! PUT and GET /files?path=: streams whole files. The path is in the user's own root filesystem and is accessed as the
//! user's own root, so there is nothing to escape from; the checks guard against mistakes, not against attackers.

mod download;
mod path;
mod upload;

use std::io::Error;

use http::StatusCode;

use crate::reply::Failure;

pub use download::get_file;
pub use upload::put_file;

/// 400 and 404 are errors the caller can fix, 507 is a full disk, anything else is an internal error.
fn failure(path: &std::path::Path, error: &Error) -> Failure {
    let message = format!("{}: {error}", path.display());
    let (status, code) = match error.raw_os_error() {
        Some(libc::ENOENT) => (StatusCode::NOT_FOUND, "file_not_found"),
        Some(libc::ENOSPC | libc::EDQUOT) => (StatusCode::INSUFFICIENT_STORAGE, "no_space"),
        Some(libc::EISDIR | libc::ENOTDIR | libc::ELOOP | libc::ENAMETOOLONG | libc::EINVAL | libc::EFBIG) => {
            (StatusCode::BAD_REQUEST, "invalid_path")
        }
        Some(libc::EACCES | libc::EPERM | libc::EROFS | libc::ETXTBSY) => (StatusCode::BAD_REQUEST, "not_writable"),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
    };
    Failure::new(status, code, message)
}

fn invalid_path(message: &str) -> Failure {
    Failure::new(StatusCode::BAD_REQUEST, "invalid_path", message)
}
