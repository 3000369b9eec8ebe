//! Writes the content of a stage to the bucket: in one request, or in parts. A part that is not changed is copied by the
//! server, so a small change of a large object needs little more than the parts that contain it.

use std::ops::Range;
use std::rc::Rc;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::content::Source;
use super::stage::Stage;
use crate::mount::Mount;
use crate::s3::client::Condition;
use crate::s3::connection::Body;
use crate::s3::failure::{Cause, Failure, Result};
use crate::s3::metadata::Metadata;
use crate::s3::multipart::{PART_MIN_BYTES, PARTS_MAX};

/// The size of parts. All but the last have the same, which some servers require. Smaller files are one request.
pub const PART_BYTES: u64 = 8 << 20;
const PARTS_AT_ONCE: usize = 4;
/// How much is fetched with one request.
const FETCH_BYTES: u64 = 1 << 20;
/// A smaller body is sent in one packet with its head.
const SMALL_BYTES: u64 = 16 * 1024;

/// Returns the new ETag.
pub async fn upload(
    mount: &Rc<Mount>,
    key: &str,
    stage: &Rc<Stage>,
    metadata: &Metadata,
    condition: &Condition,
) -> Result<String> {
    let size = stage.size();
    if size <= PART_BYTES {
        fetch(mount, key, stage, 0..size).await?;
        return put_whole(mount, key, stage, metadata, condition).await;
    }
    let upload = mount.client.start_upload(key, metadata).await?;
    let result = upload_parts(mount, key, stage, &upload).await;
    let result = match result {
        Ok(etags) => mount.client.complete_upload(key, &upload, &etags, condition).await,
        Err(failure) => Err(failure),
    };
    if result.is_err() {
        let (mount, key) = (mount.clone(), key.to_owned());
        tokio::task::spawn_local(async move { mount.client.abort_upload(&key, &upload).await });
    }
    result
}

async fn put_whole(
    mount: &Mount,
    key: &str,
    stage: &Stage,
    metadata: &Metadata,
    condition: &Condition,
) -> Result<String> {
    let length = stage.size();
    let digest = stage.digest(0..length).await?;
    if length > SMALL_BYTES {
        let body = Body::File { file: stage.data(), offset: 0, length };
        return mount.client.put(key, (body, digest), metadata, condition).await;
    }
    let mut bytes = vec![0; length as usize];
    stage.read(0, &mut bytes)?;
    mount.client.put(key, (Body::Bytes(&bytes), digest), metadata, condition).await
}

async fn upload_parts(mount: &Rc<Mount>, key: &str, stage: &Rc<Stage>, upload: &str) -> Result<Vec<String>> {
    let parts = divide(stage.size());
    let slots = Rc::new(Semaphore::new(PARTS_AT_ONCE));
    let mut tasks = JoinSet::new();
    for (index, range) in parts.iter().cloned().enumerate() {
        let (mount, stage, slots) = (mount.clone(), stage.clone(), slots.clone());
        let (key, upload) = (key.to_owned(), upload.to_owned());
        tasks.spawn_local(async move {
            let _slot = slots.acquire().await;
            (index, upload_part(&mount, &key, &stage, (&upload, index + 1), range).await)
        });
    }
    let mut etags = vec![String::new(); parts.len()];
    // Returning early drops the set, which ends the other parts.
    while let Some(finished) = tasks.join_next().await {
        let (index, etag) = finished.map_err(|error| Failure::unavailable(error.to_string()))?;
        etags[index] = etag?;
    }
    Ok(etags)
}

async fn upload_part(
    mount: &Mount,
    key: &str,
    stage: &Stage,
    part: (&str, usize),
    range: Range<u64>,
) -> Result<String> {
    let is_unchanged = matches!(stage.pieces(range.clone()).as_slice(), [(_, Source::Base)]);
    if let Some(base) = stage.base().filter(|_| is_unchanged) {
        let copied = mount.client.copy_part(key, part, (key, &base.etag), (range.start, range.end)).await;
        match copied {
            // The server cannot copy ranges.
            Err(failure) if matches!(failure.cause, Cause::Unsupported | Cause::Refused) => {}
            result => return result,
        }
    }
    fetch(mount, key, stage, range.clone()).await?;
    let digest = stage.digest(range.clone()).await?;
    let body = Body::File { file: stage.data(), offset: range.start, length: range.end - range.start };
    mount.client.put_part(key, part, (body, digest)).await
}

/// Copies what only the base has of a range to the stage.
pub async fn fetch(mount: &Mount, key: &str, stage: &Stage, range: Range<u64>) -> Result<()> {
    let Some(base) = stage.base() else { return Ok(()) };
    for missing in stage.missing(range) {
        let mut position = missing.start;
        while position < missing.end {
            let length = (missing.end - position).min(FETCH_BYTES);
            let bytes = mount.client.get_range(key, &base.etag, position, length as usize).await?;
            stage.fill(position, &bytes)?;
            position += length;
        }
    }
    Ok(())
}

/// The parts of a file of this size.
pub fn divide(size: u64) -> Vec<Range<u64>> {
    let least = size.div_ceil(PARTS_MAX).next_multiple_of(1 << 20);
    let step = least.max(PART_BYTES).max(PART_MIN_BYTES);
    (0..size.div_ceil(step)).map(|index| index * step..((index + 1) * step).min(size)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_one_size_and_cover_the_file() {
        for size in [1, PART_BYTES, PART_BYTES + 1, 1 << 30, (5 << 40) - 1, 5 << 40] {
            let parts = divide(size);

            assert!(parts.len() as u64 <= PARTS_MAX, "{size}: {}", parts.len());
            assert_eq!(parts.first().map(|part| part.start), Some(0));
            assert_eq!(parts.last().map(|part| part.end), Some(size));
            assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
            let first = parts[0].end;
            assert!(parts.iter().rev().skip(1).all(|part| part.end - part.start == first && first >= PART_MIN_BYTES));
        }
    }
}
