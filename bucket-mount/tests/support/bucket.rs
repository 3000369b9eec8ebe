//! Objects in memory, with the rules of S3.

use std::collections::{BTreeMap, HashMap};
use std::time::SystemTime;

use super::http::{Request, Response, decode, encode};

#[derive(Clone)]
pub struct Object {
    pub body: Vec<u8>,
    pub etag: String,
    pub metadata: Vec<(String, String)>,
    pub modified: SystemTime,
}

#[derive(Default)]
pub struct Bucket {
    pub objects: BTreeMap<String, Object>,
    pub uploads: HashMap<String, Upload>,
    /// Whether conditions of writes are looked at.
    pub ignores_conditions: bool,
    counter: u64,
}

#[derive(Default)]
pub struct Upload {
    key: String,
    metadata: Vec<(String, String)>,
    parts: BTreeMap<usize, Vec<u8>>,
}

impl Bucket {
    pub fn put(&mut self, key: &str, body: &[u8]) -> String {
        self.store(key, body.to_vec(), Vec::new())
    }

    fn store(&mut self, key: &str, body: Vec<u8>, metadata: Vec<(String, String)>) -> String {
        self.counter += 1;
        let etag = format!("{:032x}", self.counter);
        let object = Object { body, etag: etag.clone(), metadata, modified: SystemTime::now() };
        self.objects.insert(key.to_owned(), object);
        etag
    }

    pub fn answer(&mut self, request: &Request) -> Response {
        let (query, key) = (&request.query, request.key.as_str());
        let is_write = !matches!(request.method.as_str(), "GET" | "HEAD");
        if is_write && !self.condition_holds(request) {
            return Response::error(412, "PreconditionFailed");
        }
        let needs_digest = request.method == "PUT" && !request.body.is_empty();
        assert!(!needs_digest || request.header("content-md5").is_some(), "the proxy requires a digest");
        match (request.method.as_str(), query.get("uploadId")) {
            ("HEAD", _) if key.is_empty() => Response::new(200),
            ("GET", _) if key.is_empty() => self.list(query),
            ("GET" | "HEAD", _) => self.get(request),
            ("POST", None) => self.start_upload(request),
            ("POST", Some(upload)) => self.complete(request, upload),
            ("PUT", Some(upload)) => self.put_part(request, upload),
            ("PUT", None) => self.put_object(request),
            ("DELETE", Some(upload)) => {
                self.uploads.remove(upload);
                Response::new(204)
            }
            ("DELETE", None) => {
                self.objects.remove(key);
                Response::new(204)
            }
            _ => Response::error(501, "NotImplemented"),
        }
    }

    fn condition_holds(&self, request: &Request) -> bool {
        if self.ignores_conditions {
            return true;
        }
        let found = self.objects.get(&request.key);
        match (request.header("if-none-match"), request.header("if-match")) {
            (Some(_), _) => found.is_none(),
            (_, Some(etag)) => found.is_some_and(|found| etag.trim_matches('"') == found.etag),
            _ => true,
        }
    }

    fn get(&self, request: &Request) -> Response {
        let Some(object) = self.objects.get(&request.key) else { return Response::error(404, "NoSuchKey") };
        if request.header("if-match").is_some_and(|etag| etag.trim_matches('"') != object.etag) {
            return Response::error(412, "PreconditionFailed");
        }
        let range = request.header("range").map(|range| parse_range(range, object.body.len()));
        let mut response = match range {
            Some(range) if range.start >= object.body.len() => return Response::error(416, "InvalidRange"),
            Some(range) => Response { status: 206, headers: Vec::new(), body: object.body[range].to_vec() },
            None => Response { status: 200, headers: Vec::new(), body: object.body.clone() },
        };
        if request.method == "HEAD" {
            response = response.header("Content-Length", object.body.len().to_string());
        }
        response.headers.extend(object.metadata.clone());
        response.header("ETag", format!("\"{}\"", object.etag)).header("Last-Modified", http_date(object.modified))
    }

    fn list(&self, query: &HashMap<String, String>) -> Response {
        let prefix = query.get("prefix").cloned().unwrap_or_default();
        let max: usize = query.get("max-keys").map_or(1000, |max| max.parse().unwrap());
        let after = query.get("continuation-token").cloned().unwrap_or_default();
        let (mut contents, mut last, mut count, mut truncated) = (String::new(), String::new(), 0, false);
        for (key, object) in self.objects.range(prefix.clone()..).take_while(|(key, _)| key.starts_with(&prefix)) {
            let rest = &key[prefix.len()..];
            let folder = query.get("delimiter").and_then(|_| rest.find('/').map(|end| &key[..prefix.len() + end + 1]));
            let shown = folder.unwrap_or(key);
            if shown <= after.as_str() || shown == last {
                continue;
            }
            if count == max {
                truncated = true;
                break;
            }
            count += 1;
            last = shown.to_owned();
            contents.push_str(&match folder {
                Some(folder) => format!("<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>", encode(folder)),
                None => format!(
                    "<Contents><Key>{}</Key><LastModified>{}</LastModified><ETag>&quot;{}&quot;</ETag><Size>{}</Size></Contents>",
                    encode(key),
                    iso_date(object.modified),
                    object.etag,
                    object.body.len()
                ),
            });
        }
        let next =
            if truncated { format!("<NextContinuationToken>{last}</NextContinuationToken>") } else { String::new() };
        Response::xml(format!(
            "<ListBucketResult><IsTruncated>{truncated}</IsTruncated>{next}{contents}</ListBucketResult>"
        ))
    }

    fn put_object(&mut self, request: &Request) -> Response {
        let mut metadata = metadata_of(request);
        let Some(source) = request.header("x-amz-copy-source") else {
            let etag = self.store(&request.key, request.body.clone(), metadata);
            return Response::new(200).header("ETag", format!("\"{etag}\""));
        };
        let object = match self.copy_source(request, source) {
            Ok(object) => object,
            Err(response) => return response,
        };
        if request.header("x-amz-metadata-directive") != Some("REPLACE") {
            metadata = object.metadata;
        }
        let etag = self.store(&request.key, object.body, metadata);
        Response::xml(format!("<CopyObjectResult><ETag>&quot;{etag}&quot;</ETag></CopyObjectResult>"))
    }

    fn copy_source(&self, request: &Request, source: &str) -> Result<Object, Response> {
        let found = self.objects.get(&decode(source.trim_start_matches('/')));
        let object = found.ok_or_else(|| Response::error(404, "NoSuchKey"))?;
        let wanted = request.header("x-amz-copy-source-if-match");
        if wanted.is_some_and(|etag| etag.trim_matches('"') != object.etag) {
            return Err(Response::error(412, "PreconditionFailed"));
        }
        Ok(object.clone())
    }

    fn start_upload(&mut self, request: &Request) -> Response {
        assert!(request.query.contains_key("uploads"));
        self.counter += 1;
        let id = format!("upload-{}", self.counter);
        let upload = Upload { key: request.key.clone(), metadata: metadata_of(request), parts: BTreeMap::new() };
        self.uploads.insert(id.clone(), upload);
        Response::xml(format!(
            "<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
        ))
    }

    fn put_part(&mut self, request: &Request, id: &str) -> Response {
        let number: usize = request.query["partNumber"].parse().unwrap();
        let mut data = request.body.clone();
        if let Some(source) = request.header("x-amz-copy-source") {
            data = match self.copy_source(request, source) {
                Ok(object) => {
                    let range = request.header("x-amz-copy-source-range").unwrap();
                    object.body[parse_range(range, object.body.len())].to_vec()
                }
                Err(response) => return response,
            };
        }
        let Some(upload) = self.uploads.get_mut(id) else { return Response::error(404, "NoSuchUpload") };
        assert_eq!(upload.key, request.key);
        let etag = format!("part-{number}-{}", data.len());
        upload.parts.insert(number, data);
        Response::xml(format!("<CopyPartResult><ETag>&quot;{etag}&quot;</ETag></CopyPartResult>"))
            .header("ETag", format!("\"{etag}\""))
    }

    fn complete(&mut self, request: &Request, id: &str) -> Response {
        let Some(upload) = self.uploads.remove(id) else { return Response::error(404, "NoSuchUpload") };
        let text = String::from_utf8(request.body.clone()).unwrap();
        assert_eq!(text.matches("<PartNumber>").count(), upload.parts.len());
        let sizes: Vec<usize> = upload.parts.values().map(Vec::len).collect();
        assert!(sizes.iter().rev().skip(1).all(|size| *size >= 5 << 20 && *size == sizes[0]), "{sizes:?}");
        let body = upload.parts.into_values().flatten().collect();
        let etag = self.store(&request.key, body, upload.metadata);
        Response::xml(format!(
            "<CompleteMultipartUploadResult><ETag>&quot;{etag}&quot;</ETag></CompleteMultipartUploadResult>"
        ))
    }
}

fn metadata_of(request: &Request) -> Vec<(String, String)> {
    let all = request.headers.iter();
    all.filter(|(name, _)| name.starts_with("x-amz-meta-")).map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn parse_range(text: &str, size: usize) -> std::ops::Range<usize> {
    let (start, end) = text.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
    start.parse().unwrap()..(end.parse::<usize>().unwrap() + 1).min(size)
}

fn http_date(time: SystemTime) -> String {
    let (year, month, day, clock) = split(time);
    let name = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"][month as usize - 1];
    format!("Day, {day:02} {name} {year} {clock} GMT")
}

fn iso_date(time: SystemTime) -> String {
    let (year, month, day, clock) = split(time);
    format!("{year}-{month:02}-{day:02}T{clock}.000Z")
}

fn split(time: SystemTime) -> (i64, i64, i64, String) {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as i64;
    let (mut days, rest) = (seconds / 86_400, seconds % 86_400);
    let leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let mut year = 1970;
    while days >= 365 + i64::from(leap(year)) {
        days -= 365 + i64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + i64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1, format!("{:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60))
}
