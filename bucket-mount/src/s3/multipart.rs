//! Uploads in parts, from data and by copying ranges of objects.

use super::client::{Client, Condition, etag_of, quote, target, target_with, text_of, unquote};
use super::connection::Body;
use super::failure::{Failure, Result};
use super::metadata::Metadata;
use super::transport::Request;
use super::xml::{encode, find_text};
use crate::md5::base64;

/// Of every part but the last.
pub const PART_MIN_BYTES: u64 = 5 << 20;
pub const PARTS_MAX: u64 = 10_000;
/// The largest object that one copy can make.
pub const COPY_MAX_BYTES: u64 = 5 << 30;

impl Client {
    /// Returns the upload id.
    pub async fn start_upload(&self, key: &str, metadata: &Metadata) -> Result<String> {
        let request = Request::new("POST", format!("{}?uploads", target(key))).headers(metadata.to_headers());
        let response = self.transport.send(&request).await?;
        find_text(text_of(&response), "UploadId")
            .filter(|id| !id.is_empty())
            .ok_or_else(|| Failure::unavailable(format!("POST {key}?uploads: no upload id in the answer")))
    }

    /// Parts are counted from 1. Returns the ETag of the part.
    pub async fn put_part(
        &self,
        key: &str,
        (upload, number): (&str, usize),
        (body, digest): (Body<'_>, [u8; 16]),
    ) -> Result<String> {
        let mut request = Request::new("PUT", part_target(key, upload, number)).body(body);
        if !body.is_empty() {
            request = request.header("Content-MD5", base64(&digest));
        }
        let response = self.transport.send(&request).await?;
        etag_of(&response).ok_or_else(|| Failure::unavailable(format!("PUT part of {key}: no ETag in the answer")))
    }

    /// The part is the range `start..end` of another object.
    pub async fn copy_part(
        &self,
        key: &str,
        (upload, number): (&str, usize),
        (from, from_etag): (&str, &str),
        (start, end): (u64, u64),
    ) -> Result<String> {
        let mut request = Request::new("PUT", part_target(key, upload, number))
            .header("x-amz-copy-source", target(from))
            .header("x-amz-copy-source-range", format!("bytes={start}-{}", end.saturating_sub(1)))
            .slow();
        if !from_etag.is_empty() {
            request = request.header("x-amz-copy-source-if-match", quote(from_etag));
        }
        let response = self.transport.send(&request).await?;
        find_text(text_of(&response), "ETag")
            .map(|etag| unquote(&etag))
            .ok_or_else(|| Failure::unavailable(format!("PUT part of {key}: no ETag in the answer")))
    }

    /// Returns the ETag of the object.
    pub async fn complete_upload(
        &self,
        key: &str,
        upload: &str,
        etags: &[String],
        condition: &Condition,
    ) -> Result<String> {
        let parts: String = etags
            .iter()
            .enumerate()
            .map(|(index, etag)| {
                let etag = encode(&quote(etag));
                format!("<Part><PartNumber>{}</PartNumber><ETag>{etag}</ETag></Part>", index + 1)
            })
            .collect();
        let body = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
        let request = Request::new("POST", target_with(key, &[("uploadId", upload)]))
            .headers(condition.to_headers())
            .body(Body::Bytes(body.as_bytes()))
            .slow();
        let response = self.transport.send(&request).await?;
        self.etag_or_head(key, find_text(text_of(&response), "ETag").map(|etag| unquote(&etag))).await
    }

    pub async fn abort_upload(&self, key: &str, upload: &str) -> Result<()> {
        let request = Request::new("DELETE", target_with(key, &[("uploadId", upload)]));
        self.transport.send(&request).await.map(drop)
    }
}

fn part_target(key: &str, upload: &str, number: usize) -> String {
    target_with(key, &[("partNumber", &number.to_string()), ("uploadId", upload)])
}
