//! POST /self/pause and /self/delete on loopback: a minimal HTTP/1.1 server that tolerates any other input. Every
//! connection carries one request and has limits of time and bytes; connections beyond a fixed number wait in the
//! backlog.
//!
//! A browser inside the sandbox lets any web page send such a request, but always with an `Origin` header; other
//! programs do not send one. A request with an `Origin` is therefore rejected.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::agent::Agent;

use super::{Action, clean_reason};

const CONNECTIONS_MAX: usize = 16;
const HEAD_MAX_BYTES: usize = 8 * 1024;
const HEAD_LIMIT: Duration = Duration::from_secs(5);
/// After the response, the rest of the request body is read; otherwise the kernel would reset the connection and the
/// client might lose the response.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);
const CLOSE_MAX_BYTES: usize = 1024 * 1024;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub async fn serve_http(agent: Arc<Agent>, listener: TcpListener) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let agent = agent.clone();
                tokio::spawn(async move {
                    handle(&agent, &stream).await;
                    drop(permit);
                });
            }
            // Probably out of file descriptors; try again later.
            Err(_) => sleep(ACCEPT_PAUSE).await,
        }
    }
}

#[derive(Debug, PartialEq)]
enum Outcome {
    Accepted(Action, Option<String>),
    Rejected(&'static str, &'static str),
}

async fn handle(agent: &Agent, stream: &TcpStream) {
    let Ok(head) = timeout(HEAD_LIMIT, read_head(stream)).await else { return };
    let outcome = head.map_or(Outcome::Rejected("400 Bad Request", "this is not a request"), |head| decide(&head));
    let sent = timeout(HEAD_LIMIT, write_all(stream, render(&outcome).as_bytes())).await;
    if let Outcome::Accepted(action, reason) = outcome {
        agent.signals.raise(action, reason);
    }
    if matches!(sent, Ok(Ok(()))) {
        let _ = timeout(CLOSE_LIMIT, close(stream)).await;
    }
}

/// None if the connection ended before the head was complete, or if the head is too long.
async fn read_head(stream: &TcpStream) -> Option<Vec<u8>> {
    let mut head = Vec::new();
    let mut buffer = [0u8; 1024];
    while head.len() < HEAD_MAX_BYTES {
        let count = read_some(stream, &mut buffer).await.ok().filter(|count| *count > 0)?;
        head.extend_from_slice(buffer.get(..count)?);
        let ends = |end: &[u8]| head.windows(end.len()).position(|window| window == end);
        if let Some(end) = ends(b"\r\n\r\n").or_else(|| ends(b"\n\n")) {
            head.truncate(end);
            return Some(head);
        }
    }
    None
}

fn decide(head: &[u8]) -> Outcome {
    const NOT_HTTP: Outcome = Outcome::Rejected("400 Bad Request", "this is not a request");
    let Ok(head) = std::str::from_utf8(head) else { return NOT_HTTP };
    let mut lines = head.lines();
    let words: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    let [method, target, version] = words.as_slice() else { return NOT_HTTP };
    if !version.starts_with("HTTP/1.") {
        return NOT_HTTP;
    }
    let target = target
        .strip_prefix("http://")
        .map_or(*target, |rest| rest.find('/').map_or("/", |at| rest.get(at..).unwrap_or("/")));
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let action = match path {
        "/self/pause" => Action::Pause,
        "/self/delete" => Action::Delete,
        _ => return Outcome::Rejected("404 Not Found", "not found"),
    };
    if *method != "POST" {
        return Outcome::Rejected("405 Method Not Allowed", "only POST is accepted");
    }
    let named_origin =
        |line: &str| line.split_once(':').is_some_and(|(name, _)| name.trim().eq_ignore_ascii_case("origin"));
    if lines.any(named_origin) {
        return Outcome::Rejected("403 Forbidden", "web pages may not signal");
    }
    let reason = query.split('&').find_map(|pair| pair.strip_prefix("reason="));
    Outcome::Accepted(action, reason.and_then(|reason| clean_reason(&decode(reason))))
}

/// Decodes like a form: a plus is a space. Invalid UTF-8 becomes U+FFFD.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        let digits = tail.get(..2).and_then(|pair| std::str::from_utf8(pair).ok());
        let escaped = digits.filter(|_| *first == b'%').and_then(|pair| u8::from_str_radix(pair, 16).ok());
        match (first, escaped) {
            (_, Some(byte)) => {
                bytes.push(byte);
                rest = tail.get(2..).unwrap_or_default();
            }
            (b'+', None) => bytes.push(b' '),
            (other, None) => bytes.push(*other),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[derive(Serialize)]
struct Accepted {
    status: &'static str,
    action: Action,
}

#[derive(Serialize)]
struct Rejected {
    status: &'static str,
    message: &'static str,
}

fn render(outcome: &Outcome) -> String {
    let (status, body) = match outcome {
        Outcome::Accepted(action, _) => {
            ("202 Accepted", serde_json::to_string(&Accepted { status: "accepted", action: *action }))
        }
        Outcome::Rejected(status, message) => (*status, serde_json::to_string(&Rejected { status: "fail", message })),
    };
    let body = body.unwrap_or_default();
    let allow = if status.starts_with("405") { "Allow: POST\r\n" } else { "" };
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{allow}Connection: close\r\n\r\n{body}"
    )
}

async fn read_some(stream: &TcpStream, buffer: &mut [u8]) -> std::io::Result<usize> {
    loop {
        stream.readable().await?;
        match stream.try_read(buffer) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            result => return result,
        }
    }
}

async fn write_all(stream: &TcpStream, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn close(stream: &TcpStream) -> std::io::Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: an open socket.
    unsafe { libc::shutdown(stream.as_raw_fd(), libc::SHUT_WR) };
    let mut buffer = [0u8; 4096];
    let mut left = CLOSE_MAX_BYTES;
    while left > 0 {
        match read_some(stream, &mut buffer).await? {
            0 => break,
            count => left = left.saturating_sub(count),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(head: &str) -> String {
        render(&decide(head.as_bytes())).split(' ').nth(1).unwrap_or_default().to_owned()
    }

    #[test]
    fn only_post_to_the_two_paths_is_accepted() {
        assert_eq!(decide(b"POST /self/pause HTTP/1.1\r\nHost: x"), Outcome::Accepted(Action::Pause, None));
        let accepted = Outcome::Accepted(Action::Delete, Some("all done ü".into()));
        assert_eq!(decide(b"POST /self/delete?x=1&reason=all+done%20%C3%BC%0A HTTP/1.0"), accepted);
        assert_eq!(status("POST http://127.0.0.1:1029/self/pause HTTP/1.1"), "202");
        assert_eq!(status("GET /self/pause HTTP/1.1"), "405");
        assert_eq!(status("POST /self HTTP/1.1"), "404");
        assert_eq!(status("POST /self/pause/ HTTP/1.1"), "404");
        assert_eq!(status("POST /self/pause HTTP/1.1\r\norigin: http://evil"), "403");
        assert_eq!(status("hello"), "400");
        assert_eq!(status(""), "400");
    }

    #[test]
    fn invalid_escapes_are_left_unchanged() {
        assert_eq!(decode("100%"), "100%");
        assert_eq!(decode("%zz%4"), "%zz%4");
        assert_eq!(decode("%ff"), "\u{fffd}");
    }
}
