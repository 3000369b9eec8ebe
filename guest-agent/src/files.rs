//! PUT and GET /files?path=: whole files, streamed. The path is the user's own root filesystem seen by its own root
//! user, so there is nothing to escape from; the checks below keep surprises away, not attackers.

mod download;
mod path;
mod upload;

use std::io::Error;

use http::StatusCode;

use crate::reply::Failure;

pub use download::get_file;
pub use upload::put_file;

/// What the caller can mend is 400 or 404, a full disk 507, the rest is ours.
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
