//! Why a request failed, and the error number that programs see.

use std::fmt::{self, Display};
use std::io;

#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    pub cause: Cause,
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    NotFound,
    /// An upload id that the server does not know (any more).
    NoSuchUpload,
    /// The object is not the one that was expected: it was changed by someone else.
    Conflict,
    Denied,
    ReadOnly,
    TooLarge,
    InvalidRange,
    /// The server does not offer this operation or condition.
    Unsupported,
    /// The token is unknown to the proxy.
    UnknownMount,
    /// No connection, no answer in time, or an answer that says to try again.
    Unavailable,
    /// Anything else that the server refuses.
    Refused,
    /// The guest's own disk.
    Local(i32),
}

pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub fn new(cause: Cause, message: impl Into<String>) -> Self {
        Self { cause, message: message.into() }
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(Cause::Unavailable, message)
    }

    pub fn errno(code: i32) -> Self {
        Self::new(Cause::Local(code), io::Error::from_raw_os_error(code).to_string())
    }

    /// `code` is that of the header Warren-Error or of the body (docs/disk-protocol.md#errors).
    pub fn of_response(status: u16, code: &str, request: &str) -> Self {
        let cause = match (status, code) {
            (404, "NoSuchUpload") => Cause::NoSuchUpload,
            (404, "NoSuchBucket") => Cause::Refused,
            (404, _) => Cause::NotFound,
            (412, _) => Cause::Conflict,
            (401, _) => Cause::UnknownMount,
            (403, "ReadOnly") => Cause::ReadOnly,
            (403, _) => Cause::Denied,
            (413, _) => Cause::TooLarge,
            (416, _) => Cause::InvalidRange,
            (501, _) => Cause::Unsupported,
            (502, "WrongEndpoint") => Cause::Refused,
            (408 | 409 | 429 | 500 | 502 | 503 | 504, _) => Cause::Unavailable,
            _ => Cause::Refused,
        };
        Self::new(cause, format!("{request}: {status} {code}"))
    }

    pub fn is_not_found(&self) -> bool {
        self.cause == Cause::NotFound
    }

    pub fn to_errno(&self) -> i32 {
        match self.cause {
            Cause::NotFound => libc::ENOENT,
            Cause::Conflict => libc::ESTALE,
            Cause::Denied | Cause::UnknownMount => libc::EACCES,
            Cause::ReadOnly => libc::EROFS,
            Cause::TooLarge => libc::EFBIG,
            Cause::Unsupported => libc::EOPNOTSUPP,
            Cause::NoSuchUpload | Cause::InvalidRange | Cause::Unavailable | Cause::Refused => libc::EIO,
            Cause::Local(code) => code,
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::new(Cause::Local(error.raw_os_error().unwrap_or(libc::EIO)), error.to_string())
    }
}

impl Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_become_error_numbers() {
        for (status, code, errno) in [
            (404, "NoSuchKey", libc::ENOENT),
            (412, "PreconditionFailed", libc::ESTALE),
            (403, "ReadOnly", libc::EROFS),
            (403, "AccessDenied", libc::EACCES),
            (503, "SlowDown", libc::EIO),
            (504, "UpstreamTimeout", libc::EIO),
            (404, "NoSuchBucket", libc::EIO),
            (413, "EntityTooLarge", libc::EFBIG),
        ] {
            assert_eq!(Failure::of_response(status, code, "GET").to_errno(), errno, "{status} {code}");
        }
    }
}
