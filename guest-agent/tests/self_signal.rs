#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::io::Write;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::PathBuf;

use bytes::BytesMut;
use guest_agent::self_signal::{serve_http, serve_pipe};
use h2::RecvStream;
use serde_json::{Value, json};
use support::{Client, Host, Scratch, noise, start_agent, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

struct Inside {
    port: u16,
    pipe: PathBuf,
    _scratch: Scratch,
}

async fn listen(host: &Host) -> Inside {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(serve_http(host.agent.clone(), listener));
    let scratch = Scratch::new();
    let pipe = scratch.path("self");
    let (agent, path) = (host.agent.clone(), pipe.clone());
    tokio::spawn(async move { serve_pipe(agent, &path).await });
    until("the pipe exists", || pipe.exists()).await;
    Inside { port, pipe, _scratch: scratch }
}

impl Inside {
    /// Sends raw bytes and returns everything until the server closes the connection.
    async fn send(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        let _ = stream.write_all(bytes).await;
        let mut response = Vec::new();
        let _ = stream.read_to_end(&mut response).await;
        String::from_utf8_lossy(&response).into_owned()
    }

    async fn request(&self, line: &str) -> String {
        self.send(
            format!("{line} HTTP/1.1\r\nHost: 127.0.0.1:1029\r\nUser-Agent: curl\r\nAccept: */*\r\n\r\n").as_bytes(),
        )
        .await
    }

    fn write(&self, bytes: &[u8]) {
        let mut pipe = std::fs::OpenOptions::new().write(true).open(&self.pipe).unwrap();
        pipe.write_all(bytes).unwrap();
    }
}

struct Signals {
    body: RecvStream,
    buffered: BytesMut,
}

async fn follow(client: &Client) -> Signals {
    let (response, mut send) = client.open("GET", "/signals").await;
    send.send_data(bytes::Bytes::new(), true).unwrap();
    let response = response.await.unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["content-type"]),
        (200, &"application/x-ndjson".parse().unwrap())
    );
    Signals { body: response.into_body(), buffered: BytesMut::new() }
}

impl Signals {
    async fn next(&mut self) -> Value {
        loop {
            if let Some(end) = self.buffered.iter().position(|byte| *byte == b'\n') {
                let line = self.buffered.split_to(end + 1);
                return serde_json::from_slice(&line).unwrap();
            }
            let chunk = self.body.data().await.unwrap().unwrap();
            self.body.flow_control().release_capacity(chunk.len()).unwrap();
            self.buffered.extend_from_slice(&chunk);
        }
    }
}

async fn acknowledge(client: &Client, signal: &Value) {
    let response = client.call("POST", "/signals/ack", json!({"id": signal["id"]}).to_string()).await;
    assert_eq!((response.status, response.json()), (200, json!({})));
}

#[tokio::test]
async fn a_pause_is_accepted_and_sent_with_its_reason() {
    let host = start_agent();
    let inside = listen(&host).await;
    let client = host.connect().await;
    let mut signals = follow(&client).await;

    let response = inside.request("POST /self/pause?reason=nothing+to%20do%0A").await;

    assert!(response.starts_with("HTTP/1.1 202 Accepted\r\n"));
    assert!(response.ends_with("\r\n\r\n{\"status\":\"accepted\",\"action\":\"pause\"}"));
    assert_eq!(signals.next().await, json!({"id": 1, "action": "pause", "reason": "nothing to do"}));
}

#[tokio::test]
async fn a_signal_is_sent_to_every_new_host_until_it_is_acknowledged() {
    let host = start_agent();
    let inside = listen(&host).await;
    inside.request("POST /self/pause").await;
    inside.request("POST /self/delete?reason=done").await;
    inside.write(b"park\n");

    let first = host.connect().await;
    let signal = follow(&first).await.next().await;
    assert_eq!(signal, json!({"id": 2, "action": "delete", "reason": "done"}));
    drop(first);
    // It disconnected without acknowledging.
    let second = host.connect().await;
    assert_eq!(follow(&second).await.next().await, signal);
    acknowledge(&second, &signal).await;
    let mut third = follow(&second).await;
    inside.write(b"pause\n");

    assert_eq!(third.next().await["action"], "pause");
}

#[tokio::test]
async fn a_restore_clears_a_pause_requested_before_it() {
    let host = start_agent();
    let inside = listen(&host).await;
    let client = host.connect().await;
    inside.request("POST /self/pause").await;

    client.call("POST", "/wake", "{}").await;
    let mut signals = follow(&client).await;
    inside.request("POST /self/delete").await;

    assert_eq!(signals.next().await["action"], "delete");
}

#[tokio::test]
async fn a_flood_of_requests_is_one_signal_until_it_is_acknowledged() {
    let host = start_agent();
    let inside = listen(&host).await;
    let client = host.connect().await;
    let mut signals = follow(&client).await;
    inside.write(b"park\n");
    let first = signals.next().await;

    for _ in 0..20 {
        inside.write(&b"park\n".repeat(800));
        assert!(inside.request("POST /self/pause").await.contains("202"));
    }
    acknowledge(&client, &first).await;

    let second = signals.next().await;
    assert!(second["id"].as_u64() > Some(20));
    assert!(signals.buffered.is_empty());
}

#[tokio::test]
async fn only_post_to_the_two_paths_is_accepted() {
    let host = start_agent();
    let inside = listen(&host).await;
    for (line, status) in [
        ("GET /self/pause", "405"),
        ("PUT /self/delete", "405"),
        ("POST /", "404"),
        ("POST /self/pause2", "404"),
        ("POST //self/pause", "404"),
    ] {
        let response = inside.request(line).await;
        assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{line}: {response}");
    }
    let page = inside.send(b"POST /self/delete HTTP/1.1\r\nHost: x\r\nOrigin: http://page.example\r\n\r\n").await;
    assert!(page.starts_with("HTTP/1.1 403 "));
    let body = inside.send(b"POST /self/pause HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello").await;
    assert!(body.starts_with("HTTP/1.1 202 "));
}

#[tokio::test]
async fn garbage_and_slow_clients_do_not_block_others() {
    let host = start_agent();
    let inside = listen(&host).await;
    let client = host.connect().await;
    let mut slow = Vec::new();
    for _ in 0..10 {
        let mut stream = TcpStream::connect(("127.0.0.1", inside.port)).await.unwrap();
        stream.write_all(b"POST /self/pau").await.unwrap();
        slow.push(stream);
    }
    for seed in 1..20 {
        inside.send(&noise(20_000, seed)).await;
        inside.send(&[b'\n'; 9000]).await;
        inside.write(&noise(3000, seed));
        inside.write(b"\n# park\nparkx\n\n");
    }
    assert!(inside.send(b"\r\n\r\n").await.starts_with("HTTP/1.1 400 "));
    drop(TcpStream::connect(("127.0.0.1", inside.port)).await.unwrap());

    assert!(inside.request("POST /self/pause").await.contains("202 Accepted"));
    inside.write(b"retire\n");

    let mut signals = follow(&client).await;
    loop {
        let signal = signals.next().await;
        if signal["action"] == "delete" {
            break;
        }
        acknowledge(&client, &signal).await;
    }
}

#[tokio::test]
async fn a_removed_pipe_is_recreated() {
    let host = start_agent();
    let inside = listen(&host).await;
    let client = host.connect().await;
    let mut signals = follow(&client).await;
    let is_pipe = || std::fs::symlink_metadata(&inside.pipe).is_ok_and(|found| found.file_type().is_fifo());
    assert_eq!(std::fs::metadata(&inside.pipe).unwrap().permissions().mode() & 0o777, 0o622);

    for removal in ["removed", "moved", "replaced"] {
        match removal {
            "removed" => std::fs::remove_file(&inside.pipe).unwrap(),
            "moved" => std::fs::rename(&inside.pipe, inside.pipe.with_extension("old")).unwrap(),
            _ => {
                let file = inside.pipe.with_extension("new");
                std::fs::write(&file, "a file").unwrap();
                std::fs::rename(file, &inside.pipe).unwrap();
            }
        }
        until("the pipe exists again", is_pipe).await;
        inside.write(b"park\n");
        let signal = signals.next().await;
        assert_eq!(signal["action"], "pause", "{removal}");
        acknowledge(&client, &signal).await;
    }
    // Without a newline, it takes effect after a moment.
    inside.write(b"destroy");
    assert_eq!(signals.next().await["action"], "delete");
}
