//! Reading requests and sending responses as JSON. Every error response has the form `{code, message}`.

use bytes::{Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::spans;

/// Far above the size of any identity, and small enough for a small guest.
pub const JSON_MAX_BYTES: usize = 1024 * 1024;

#[derive(Debug)]
pub struct Failure {
    pub status: StatusCode,
    pub code: &'static str,
    pub message: String,
    /// Only set for `output_offset_expired`.
    pub oldest_available_seq: Option<u64>,
}

/// Why a request failed. `Disconnected`: the peer is gone, so no response is sent.
#[derive(Debug)]
pub enum HandlerError {
    Failed(Failure),
    Disconnected,
}

impl From<Failure> for HandlerError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<h2::Error> for HandlerError {
    fn from(_: h2::Error) -> Self {
        Self::Disconnected
    }
}

pub type HandlerResult<T = ()> = Result<T, HandlerError>;

impl Failure {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), oldest_available_seq: None }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid", message)
    }

    pub fn internal(what: &str, error: &std::io::Error) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", format!("{what}: {error}"))
    }

    /// The error as the caller sees it, as a response body or as the last frame of a response.
    pub fn body(&self) -> impl Serialize + '_ {
        let Self { code, message, oldest_available_seq, .. } = self;
        FailureBody { code, message, oldest_available_seq: *oldest_available_seq }
    }
}

#[derive(Serialize)]
struct FailureBody<'a> {
    code: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_available_seq: Option<u64>,
}

pub fn send_json(respond: &mut SendResponse<Bytes>, status: StatusCode, body: &impl Serialize) -> HandlerResult {
    // The response types always serialise; an empty body would still be better than a panic.
    let text = Bytes::from(serde_json::to_vec(body).unwrap_or_default());
    let head = Response::builder()
        .status(status)
        .header("content-type", "application/json")
        .header("content-length", text.len());
    // Small enough to wait in the send buffer for the peer's window.
    start(respond, head)?.send_data(text, true)?;
    Ok(())
}

pub fn send_failure(respond: &mut SendResponse<Bytes>, failure: &Failure) {
    // Fails if the peer is gone or the response has already started; then the stream is reset when it is dropped.
    let _ = send_json(respond, failure.status, &failure.body());
}

/// Sends the head of a response whose body follows.
pub fn start(respond: &mut SendResponse<Bytes>, head: http::response::Builder) -> HandlerResult<SendStream<Bytes>> {
    let head = match spans::header() {
        Some(measured) => head.header(spans::HEADER, measured),
        None => head,
    };
    let response = head.body(()).map_err(|_| HandlerError::Disconnected)?;
    Ok(respond.send_response(response, false)?)
}

pub async fn read_body(body: &mut RecvStream, max_bytes: usize) -> HandlerResult<Bytes> {
    let mut all = BytesMut::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        if all.len() + chunk.len() > max_bytes {
            let message = format!("the body is larger than {max_bytes} bytes");
            return Err(Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message).into());
        }
        all.extend_from_slice(&chunk);
        body.flow_control().release_capacity(chunk.len())?;
    }
    Ok(all.freeze())
}

/// An absent body is read as `{}`.
pub async fn read_json<T: DeserializeOwned>(body: &mut RecvStream) -> HandlerResult<T> {
    let text = read_body(body, JSON_MAX_BYTES).await?;
    parse_json(if text.is_empty() { b"{}" } else { &text })
}

pub fn parse_json<T: DeserializeOwned>(text: &[u8]) -> HandlerResult<T> {
    serde_json::from_slice(text).map_err(|error| Failure::invalid(format!("body: {error}")).into())
}

/// Sends as the peer's flow-control window allows. It reserves no more capacity than there is to send, because other
/// streams cannot use what one stream has reserved, and leaves nothing in h2's buffer, so that a slow reader costs no
/// memory.
pub async fn send_all(send: &mut SendStream<Bytes>, mut bytes: Bytes) -> HandlerResult {
    while !bytes.is_empty() {
        send.reserve_capacity(bytes.len());
        while send.capacity() == 0 {
            match std::future::poll_fn(|context| send.poll_capacity(context)).await {
                Some(capacity) => drop(capacity?),
                None => return Err(HandlerError::Disconnected),
            }
        }
        let room = send.capacity().min(bytes.len());
        send.send_data(bytes.split_to(room), false)?;
    }
    Ok(())
}
