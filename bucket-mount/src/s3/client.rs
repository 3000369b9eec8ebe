//! The operations on single objects.

use super::connection::{Body, Response};
use super::failure::{Cause, Failure, Result};
use super::key::{encode_path, encode_value};
use super::metadata::Metadata;
use super::transport::{Request, Transport};
use super::xml::find_text;
use crate::md5::base64;
use crate::time::Time;

/// An object as its HEAD describes it.
#[derive(Clone, Debug)]
pub struct Object {
    pub etag: String,
    pub size: u64,
    pub last_modified: Time,
    pub metadata: Metadata,
}

/// What must be true of the object that a write replaces.
#[derive(Clone, Debug, PartialEq)]
pub enum Condition {
    None,
    /// There is no object yet.
    Absent,
    /// The object has this ETag.
    Matches(String),
}

impl Condition {
    pub fn to_headers(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::None => Vec::new(),
            Self::Absent => vec![("If-None-Match", "*".to_owned())],
            Self::Matches(etag) => vec![("If-Match", quote(etag))],
        }
    }
}

pub struct Client {
    pub transport: Transport,
}

impl Client {
    pub async fn head(&self, key: &str) -> Result<Object> {
        let response = self.transport.send(&Request::new("HEAD", target(key))).await?;
        let length = response.header("content-length").and_then(|length| length.parse().ok());
        let size = length.ok_or_else(|| Failure::unavailable(format!("HEAD {key}: no Content-Length")))?;
        Ok(Object {
            etag: etag_of(&response).unwrap_or_default(),
            size,
            last_modified: response.header("last-modified").and_then(Time::parse_http).unwrap_or_default(),
            metadata: Metadata::of_response(&response),
        })
    }

    /// Whether the bucket can be reached.
    pub async fn check_bucket(&self) -> Result<()> {
        let answer = self.transport.send(&Request::new("HEAD", "/".to_owned())).await;
        answer.map(drop).map_err(|failure| match failure.cause {
            Cause::NotFound => Failure::new(Cause::Refused, failure.message),
            _ => failure,
        })
    }

    pub async fn find(&self, key: &str) -> Result<Option<Object>> {
        match self.head(key).await {
            Ok(object) => Ok(Some(object)),
            Err(failure) if failure.is_not_found() => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Exactly `length` bytes from `offset` of the object with this ETag.
    pub async fn get_range(&self, key: &str, etag: &str, offset: u64, length: usize) -> Result<Vec<u8>> {
        if length == 0 {
            return Ok(Vec::new());
        }
        let mut request =
            Request::new("GET", target(key)).header("Range", format!("bytes={offset}-{}", offset + length as u64 - 1));
        if !etag.is_empty() {
            request = request.header("If-Match", quote(etag));
        }
        let mut response = self.transport.send(&request).await.map_err(|failure| match failure.cause {
            // The object was replaced by a shorter one, on a server without conditions.
            Cause::InvalidRange => Failure::new(Cause::Conflict, failure.message),
            _ => failure,
        })?;
        let changed = || Failure::new(Cause::Conflict, format!("GET {key}: the object was replaced"));
        if etag_of(&response).is_some_and(|found| !etag.is_empty() && found != etag) {
            return Err(changed());
        }
        // A server that ignores ranges sends everything.
        if response.status == 200 && (offset > 0 || response.body.len() > length) {
            let start = usize::try_from(offset).unwrap_or(usize::MAX);
            let end = start.saturating_add(length);
            response.body = response.body.get(start..end).ok_or_else(changed)?.to_vec();
        }
        if response.body.len() != length {
            return Err(changed());
        }
        Ok(response.body)
    }

    /// Returns the new ETag. `digest` is the MD5 of the body.
    pub async fn put(
        &self,
        key: &str,
        (body, digest): (Body<'_>, [u8; 16]),
        metadata: &Metadata,
        condition: &Condition,
    ) -> Result<String> {
        let mut request =
            Request::new("PUT", target(key)).headers(condition.to_headers()).headers(metadata.to_headers()).body(body);
        if !body.is_empty() {
            request = request.header("Content-MD5", base64(&digest));
        }
        let response = self.transport.send(&request).await?;
        self.etag_or_head(key, etag_of(&response)).await
    }

    pub async fn delete(&self, key: &str) -> Result<()> {
        match self.transport.send(&Request::new("DELETE", target(key))).await {
            Err(failure) if failure.is_not_found() => Ok(()),
            result => result.map(drop),
        }
    }

    /// Copies an object of at most 5 GiB. With `metadata` the copy has that, otherwise that of its source.
    pub async fn copy(
        &self,
        (from, from_etag): (&str, &str),
        to: &str,
        metadata: Option<&Metadata>,
        condition: &Condition,
    ) -> Result<String> {
        let mut request = Request::new("PUT", target(to))
            .header("x-amz-copy-source", target(from))
            .headers(condition.to_headers())
            .slow();
        if !from_etag.is_empty() {
            request = request.header("x-amz-copy-source-if-match", quote(from_etag));
        }
        if let Some(metadata) = metadata {
            request = request.header("x-amz-metadata-directive", "REPLACE").headers(metadata.to_headers());
        }
        let response = self.transport.send(&request).await?;
        self.etag_or_head(to, find_text(text_of(&response), "ETag").map(|etag| unquote(&etag))).await
    }

    /// Some servers leave the ETag out of an answer.
    pub(super) async fn etag_or_head(&self, key: &str, etag: Option<String>) -> Result<String> {
        match etag {
            Some(etag) if !etag.is_empty() => Ok(etag),
            _ => Ok(self.head(key).await?.etag),
        }
    }
}

pub(super) fn target(key: &str) -> String {
    format!("/{}", encode_path(key))
}

pub(super) fn target_with(key: &str, parameters: &[(&str, &str)]) -> String {
    let query: Vec<String> = parameters.iter().map(|(name, value)| format!("{name}={}", encode_value(value))).collect();
    format!("{}?{}", target(key), query.join("&"))
}

pub(super) fn text_of(response: &Response) -> &str {
    std::str::from_utf8(&response.body).unwrap_or_default()
}

pub(super) fn etag_of(response: &Response) -> Option<String> {
    response.header("etag").map(unquote)
}

/// ETags are kept without quotes.
pub(super) fn unquote(etag: &str) -> String {
    etag.trim().trim_start_matches("W/").trim_matches('"').to_owned()
}

pub(super) fn quote(etag: &str) -> String {
    format!("\"{etag}\"")
}
