//! Sends requests over a pool of connections, with deadlines, and repeats those that failed for a moment.
//!
//! Every request may be repeated: reads have no effect, and writes that were made already are recognised by their write
//! id (`upload.rs`). A request ends at the latest after its limits, three times, and about ten seconds of pauses.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, watch};
use tokio::time::sleep;

use super::connection::{Body, Connection, Limits, Response};
use super::failure::{Cause, Failure, Result};
use super::xml;

/// What the proxy serves at a time for one mount.
const REQUESTS_MAX: usize = 16;
/// Below the 60 s after which the proxy closes.
const IDLE_MAX: Duration = Duration::from_secs(50);
const ATTEMPTS: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// A proxy that was just restarted learns its mounts within this time.
const UNKNOWN_MOUNT_FOR: Duration = Duration::from_secs(10);

pub struct Transport {
    address: Cell<SocketAddr>,
    token: RefCell<String>,
    idle: RefCell<Vec<Connection>>,
    slots: Semaphore,
    /// Counts how often all connections were closed.
    generation: watch::Sender<u64>,
    limits: TransportLimits,
    pub requests: Cell<u64>,
}

/// Time until the first byte of an answer, and without progress.
#[derive(Clone, Copy, Debug)]
pub struct TransportLimits {
    pub answer: Duration,
    /// For copies and completions.
    pub slow_answer: Duration,
    pub progress: Duration,
}

impl Default for TransportLimits {
    /// A little more than those of the proxy, whose answers say more than a closed connection.
    fn default() -> Self {
        Self {
            answer: Duration::from_secs(33),
            slow_answer: Duration::from_secs(303),
            progress: Duration::from_secs(33),
        }
    }
}

pub struct Request<'a> {
    pub method: &'static str,
    /// Percent-encoded, with the query.
    pub target: String,
    pub headers: Vec<(&'static str, String)>,
    pub body: Body<'a>,
    /// Copies and completions answer late.
    pub is_slow: bool,
}

impl<'a> Request<'a> {
    pub fn new(method: &'static str, target: String) -> Self {
        Self { method, target, headers: Vec::new(), body: Body::Empty, is_slow: false }
    }

    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub fn headers(mut self, headers: Vec<(&'static str, String)>) -> Self {
        self.headers.extend(headers);
        self
    }

    pub fn body(mut self, body: Body<'a>) -> Self {
        self.body = body;
        self
    }

    pub fn slow(mut self) -> Self {
        self.is_slow = true;
        self
    }
}

impl Transport {
    pub fn new(address: SocketAddr, token: String, limits: TransportLimits) -> Self {
        Self {
            address: Cell::new(address),
            token: RefCell::new(token),
            idle: RefCell::default(),
            slots: Semaphore::new(REQUESTS_MAX),
            generation: watch::Sender::new(0),
            limits,
            requests: Cell::new(0),
        }
    }

    /// Uses another proxy or token from now on.
    pub fn connect_to(&self, address: SocketAddr, token: String) {
        self.address.set(address);
        *self.token.borrow_mut() = token;
        self.close_all();
    }

    /// Closes every connection. Requests in progress are repeated on new ones.
    pub fn close_all(&self) {
        self.idle.borrow_mut().clear();
        self.generation.send_modify(|generation| *generation += 1);
    }

    /// Responses with a status of 400 and above are failures.
    pub async fn send(&self, request: &Request<'_>) -> Result<Response> {
        let started = Instant::now();
        let mut pause = FIRST_PAUSE;
        let mut attempt = 1;
        loop {
            let failure = match self.attempt(request).await {
                Ok(response) => return Ok(response),
                Err(failure) => failure,
            };
            match failure.cause {
                Cause::Unavailable if attempt < ATTEMPTS => attempt += 1,
                Cause::UnknownMount if started.elapsed() < UNKNOWN_MOUNT_FOR => {}
                _ => return Err(failure),
            }
            sleep(pause).await;
            pause = (pause * 3).min(PAUSE_MAX);
        }
    }

    async fn attempt(&self, request: &Request<'_>) -> Result<Response> {
        let _slot = self.slots.acquire().await.map_err(|_| Failure::unavailable("the mount is closing"))?;
        let answer = if request.is_slow { self.limits.slow_answer } else { self.limits.answer };
        let limits = Limits { answer, progress: self.limits.progress };
        self.requests.set(self.requests.get() + 1);
        loop {
            let mut generation = self.generation.subscribe();
            let head = self.render_head(request);
            let reused = self.take_idle();
            let is_reused = reused.is_some();
            let exchange = async {
                let mut connection = match reused {
                    Some(connection) => connection,
                    None => Connection::open(self.address.get()).await?,
                };
                let response = connection.send(&head, request.body, &limits).await?;
                Ok::<_, io::Error>((connection, response))
            };
            let result = tokio::select! {
                result = exchange => result,
                // The sender lives as long as this struct, so this means a change.
                _ = generation.changed() => continue,
            };
            match result {
                Ok((connection, response)) => {
                    if !generation.has_changed().unwrap_or(true) {
                        self.idle.borrow_mut().push(connection);
                    }
                    return check(request, response);
                }
                // The proxy may close a connection at the moment at which it is used again.
                Err(error) if is_reused && is_closed(&error) => {}
                Err(error) => {
                    let what = format!("{} {}: {error}", request.method, request.target);
                    return Err(Failure::unavailable(what));
                }
            }
        }
    }

    fn take_idle(&self) -> Option<Connection> {
        let mut idle = self.idle.borrow_mut();
        while let Some(connection) = idle.pop() {
            if connection.idle_since.elapsed() < IDLE_MAX && connection.is_usable() {
                return Some(connection);
            }
        }
        None
    }

    fn render_head(&self, request: &Request) -> Vec<u8> {
        let mut head = format!(
            "{} {} HTTP/1.1\r\nHost: disks\r\nAuthorization: Bearer {}\r\n",
            request.method,
            request.target,
            self.token.borrow()
        );
        for (name, value) in &request.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if matches!(request.method, "PUT" | "POST") {
            head.push_str(&format!("Content-Length: {}\r\n", request.body.len()));
        }
        head.push_str("\r\n");
        head.into_bytes()
    }
}

fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

fn check(request: &Request, response: Response) -> Result<Response> {
    if response.status < 400 {
        return Ok(response);
    }
    let in_body = || xml::find_text(std::str::from_utf8(&response.body).unwrap_or_default(), "Code");
    let code = response.header("warren-error").map(str::to_owned).or_else(in_body).unwrap_or_default();
    let what = format!("{} {}", request.method, request.target);
    Err(Failure::of_response(response.status, &code, &what))
}
