//! One HTTP/1.1 connection to the proxy (docs/disk-protocol.md), used for one request after another.

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio::time::timeout;

pub const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const HEAD_MAX_BYTES: usize = 64 * 1024;
/// The longest body that is read: a page of a listing, or a range of an object.
const BODY_MAX_BYTES: usize = 16 * 1024 * 1024;
const READ_BYTES: usize = 16 * 1024;

#[derive(Clone, Copy)]
pub enum Body<'a> {
    Empty,
    Bytes(&'a [u8]),
    /// Sent by the kernel, without a copy in memory.
    File {
        file: &'a File,
        offset: u64,
        length: u64,
    },
}

impl Body<'_> {
    pub fn len(&self) -> u64 {
        match self {
            Self::Empty => 0,
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File { length, .. } => *length,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[derive(Debug, Default)]
pub struct Response {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

pub struct Limits {
    /// Until the first byte of the answer.
    pub answer: Duration,
    /// Without a byte in either direction.
    pub progress: Duration,
}

pub struct Connection {
    stream: TcpStream,
    /// What has been read beyond the last response.
    rest: Vec<u8>,
    pub idle_since: Instant,
    /// Whether the server has announced that it closes.
    closing: bool,
}

impl Connection {
    pub async fn open(address: SocketAddr) -> Result<Self> {
        let stream = timeout(CONNECT_LIMIT, TcpStream::connect(address)).await.map_err(|_| timed_out("connect"))??;
        stream.set_nodelay(true)?;
        Ok(Self { stream, rest: Vec::new(), idle_since: Instant::now(), closing: false })
    }

    /// Whether another request may be sent: the server has neither closed nor sent anything unasked.
    pub fn is_usable(&self) -> bool {
        let mut byte = [0];
        let quiet = matches!(self.stream.try_read(&mut byte), Err(error) if error.kind() == ErrorKind::WouldBlock);
        !self.closing && self.rest.is_empty() && quiet
    }

    /// `head` is the request line with all headers and the empty line. After an error the connection must be dropped.
    pub async fn send(&mut self, head: &[u8], body: Body<'_>, limits: &Limits) -> Result<Response> {
        let sent = self.write(head, body, limits).await;
        // A server that refuses a body answers before it has read all of it.
        match (self.read(head.starts_with(b"HEAD "), limits).await, sent) {
            (Ok(response), Ok(())) => {
                self.idle_since = Instant::now();
                Ok(response)
            }
            (Ok(response), Err(_)) if response.status >= 400 => {
                self.closing = true;
                Ok(response)
            }
            (_, Err(error)) | (Err(error), Ok(())) => Err(error),
        }
    }

    async fn write(&mut self, head: &[u8], body: Body<'_>, limits: &Limits) -> Result<()> {
        match body {
            // In one packet if possible.
            Body::Bytes(bytes) if bytes.len() <= READ_BYTES => {
                let whole = [head, bytes].concat();
                in_time(limits.progress, "send", self.stream.write_all(&whole)).await
            }
            Body::Bytes(bytes) => {
                in_time(limits.progress, "send", self.stream.write_all(head)).await?;
                for chunk in bytes.chunks(READ_BYTES * 16) {
                    in_time(limits.progress, "send", self.stream.write_all(chunk)).await?;
                }
                Ok(())
            }
            Body::File { file, offset, length } => {
                in_time(limits.progress, "send", self.stream.write_all(head)).await?;
                self.write_file(file, offset, length, limits).await
            }
            Body::Empty => in_time(limits.progress, "send", self.stream.write_all(head)).await,
        }
    }

    async fn write_file(&mut self, file: &File, offset: u64, length: u64, limits: &Limits) -> Result<()> {
        let mut position = offset as libc::off_t;
        let end = (offset + length) as libc::off_t;
        while position < end {
            let wanted = usize::try_from(end - position).unwrap_or(usize::MAX).min(1 << 20);
            let socket = self.stream.as_raw_fd();
            let step = self.stream.async_io(Interest::WRITABLE, || {
                // SAFETY: both descriptors are open, and the kernel advances the local position.
                let sent = unsafe { libc::sendfile(socket, file.as_raw_fd(), &mut position, wanted) };
                if sent < 0 { Err(Error::last_os_error()) } else { Ok(sent) }
            });
            // The stage file is shorter than it should be.
            if in_time(limits.progress, "send", step).await? == 0 {
                return Err(Error::from(ErrorKind::UnexpectedEof));
            }
        }
        Ok(())
    }

    async fn read(&mut self, is_head: bool, limits: &Limits) -> Result<Response> {
        let mut limit = limits.answer;
        loop {
            if let Some(end) = find(&self.rest, b"\r\n\r\n") {
                let head: Vec<u8> = self.rest.drain(..end + 4).collect();
                let mut response = parse_head(&head)?;
                // 100 Continue and the like are followed by the real response.
                if response.status < 200 {
                    continue;
                }
                self.closing |= response.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
                if !is_head && response.status != 204 && response.status != 304 {
                    response.body = self.read_body(&response, limits).await?;
                }
                return Ok(response);
            }
            if self.rest.len() > HEAD_MAX_BYTES {
                return Err(invalid("the head of the response is too long"));
            }
            self.fill(limit).await?;
            limit = limits.progress;
        }
    }

    async fn read_body(&mut self, response: &Response, limits: &Limits) -> Result<Vec<u8>> {
        let is_chunked =
            response.header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked"));
        if is_chunked {
            return self.read_chunks(limits).await;
        }
        let length = response.header("content-length").unwrap_or("0");
        let length: usize = length.parse().map_err(|_| invalid("invalid Content-Length"))?;
        self.read_exact(length, limits).await
    }

    async fn read_exact(&mut self, length: usize, limits: &Limits) -> Result<Vec<u8>> {
        if length > BODY_MAX_BYTES {
            return Err(invalid("the body of the response is too long"));
        }
        let from_rest = self.rest.len().min(length);
        let mut body = Vec::with_capacity(length);
        body.extend(self.rest.drain(..from_rest));
        while body.len() < length {
            let missing = (length - body.len()) as u64;
            let mut reader = (&mut self.stream).take(missing);
            if in_time(limits.progress, "receive", reader.read_buf(&mut body)).await? == 0 {
                return Err(Error::from(ErrorKind::UnexpectedEof));
            }
        }
        Ok(body)
    }

    async fn read_chunks(&mut self, limits: &Limits) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = self.read_line(limits).await?;
            let size = line.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(size, 16).map_err(|_| invalid("invalid chunk"))?;
            if body.len() + size > BODY_MAX_BYTES {
                return Err(invalid("the body of the response is too long"));
            }
            body.extend(self.read_exact(size, limits).await?);
            if size > 0 {
                self.read_line(limits).await?;
                continue;
            }
            while !self.read_line(limits).await?.is_empty() {}
            return Ok(body);
        }
    }

    async fn read_line(&mut self, limits: &Limits) -> Result<String> {
        loop {
            if let Some(end) = find(&self.rest, b"\r\n") {
                let line: Vec<u8> = self.rest.drain(..end + 2).take(end).collect();
                return String::from_utf8(line).map_err(|_| invalid("invalid chunk"));
            }
            if self.rest.len() > HEAD_MAX_BYTES {
                return Err(invalid("invalid chunk"));
            }
            self.fill(limits.progress).await?;
        }
    }

    async fn fill(&mut self, limit: Duration) -> Result<()> {
        self.rest.reserve(READ_BYTES);
        match in_time(limit, "receive", self.stream.read_buf(&mut self.rest)).await? {
            0 => Err(Error::from(ErrorKind::UnexpectedEof)),
            _ => Ok(()),
        }
    }
}

fn parse_head(head: &[u8]) -> Result<Response> {
    let text = std::str::from_utf8(head).map_err(|_| invalid("the head of the response is not text"))?;
    let mut lines = text.split("\r\n");
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok());
    let headers = lines.filter_map(|line| line.split_once(':'));
    let headers = headers.map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim().to_owned())).collect();
    Ok(Response { status: status.ok_or_else(|| invalid("not an HTTP response"))?, headers, body: Vec::new() })
}

async fn in_time<T>(limit: Duration, what: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(limit, work).await.map_err(|_| timed_out(what))?
}

fn timed_out(what: &str) -> Error {
    Error::new(ErrorKind::TimedOut, format!("no progress in time ({what})"))
}

fn invalid(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidData, message)
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}
