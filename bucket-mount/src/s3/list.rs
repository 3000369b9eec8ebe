//! Listings of keys.

use super::client::{Client, text_of, unquote};
use super::failure::{Failure, Result};
use super::key;
use super::key::encode_value;
use super::transport::Request;
use super::xml::{Token, decode, tokens};
use crate::time::Time;

#[derive(Debug, Default, PartialEq)]
pub struct Page {
    pub objects: Vec<Listed>,
    /// With the delimiter at the end.
    pub prefixes: Vec<String>,
    /// Where the next page starts; None for the last one.
    pub next: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Listed {
    pub key: String,
    pub etag: String,
    pub size: u64,
    pub last_modified: Time,
}

impl Client {
    /// One page of the keys with a prefix. With `by_folder`, keys with a slash after it are listed as prefixes.
    pub async fn list(&self, prefix: &str, by_folder: bool, from: Option<&str>, max: usize) -> Result<Page> {
        let mut target = format!("/?list-type=2&encoding-type=url&max-keys={max}&prefix={}", encode_value(prefix));
        if by_folder {
            target.push_str("&delimiter=%2F");
        }
        if let Some(token) = from {
            target.push_str(&format!("&continuation-token={}", encode_value(token)));
        }
        let response = self.transport.send(&Request::new("GET", target)).await?;
        parse(text_of(&response)).ok_or_else(|| Failure::unavailable(format!("listing of {prefix:?} is not valid")))
    }

    pub async fn has_keys_below(&self, prefix: &str) -> Result<bool> {
        let page = self.list(prefix, false, None, 1).await?;
        Ok(!page.objects.is_empty() || page.next.is_some())
    }
}

fn parse(text: &str) -> Option<Page> {
    let mut page = Page::default();
    let mut path: Vec<&str> = Vec::new();
    let mut object = Listed::default();
    let (mut is_whole, mut is_truncated, mut next) = (false, false, None);
    for token in tokens(text) {
        match token {
            Token::Open(name) => path.push(name),
            Token::Close(name) => {
                if path.pop() != Some(name) {
                    return None;
                }
                match path.as_slice() {
                    ["ListBucketResult"] if name == "Contents" => page.objects.push(std::mem::take(&mut object)),
                    [] => is_whole = name == "ListBucketResult",
                    _ => {}
                }
            }
            Token::Text(text) => match path.as_slice() {
                [_, "IsTruncated"] => is_truncated = text.trim() == "true",
                [_, "NextContinuationToken"] => next = Some(decode(text)?),
                [_, "CommonPrefixes", "Prefix"] => page.prefixes.push(key::decode(&decode(text)?)?),
                [_, "Contents", "Key"] => object.key = key::decode(&decode(text)?)?,
                [_, "Contents", "ETag"] => object.etag = unquote(&decode(text)?),
                [_, "Contents", "Size"] => object.size = text.trim().parse().ok()?,
                [_, "Contents", "LastModified"] => object.last_modified = Time::parse_iso(text).unwrap_or_default(),
                _ => {}
            },
        }
    }
    page.next = if is_truncated { Some(next?) } else { None };
    is_whole.then_some(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = "<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>true</IsTruncated>\
        <NextContinuationToken>a&amp;b</NextContinuationToken>\
        <Contents><Key>x%20y%2Bz</Key><LastModified>2024-02-29T00:00:00.000Z</LastModified>\
        <ETag>&quot;e1&quot;</ETag><Size>12</Size></Contents>\
        <Contents><Key>empty</Key><ETag>\"e2\"</ETag><Size>0</Size></Contents>\
        <CommonPrefixes><Prefix>f%C3%BC/</Prefix></CommonPrefixes></ListBucketResult>";

    #[test]
    fn objects_prefixes_and_the_next_page_are_read() {
        let page = parse(LISTING).unwrap_or_default();

        assert_eq!(page.next.as_deref(), Some("a&b"));
        assert_eq!(page.prefixes, ["fü/"]);
        let first = Listed {
            key: "x y+z".to_owned(),
            etag: "e1".to_owned(),
            size: 12,
            last_modified: Time { seconds: 1_709_164_800, nanoseconds: 0 },
        };
        assert_eq!(page.objects.first(), Some(&first));
        assert_eq!(page.objects.get(1).map(|object| object.size), Some(0));
    }

    #[test]
    fn a_listing_that_is_cut_short_is_not_valid() {
        assert_eq!(parse(&LISTING[..LISTING.len() - 10]), None);
        assert_eq!(parse("<html>busy</html>"), None);
        assert_eq!(parse(""), None);
    }
}
