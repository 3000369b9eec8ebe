#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use support::{Client, Scratch, noise, read_all, send_all, start_agent, start_agent_at};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

async fn listen() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

async fn open(client: &Client, port: u16) -> (SendStream<Bytes>, RecvStream) {
    let (response, send) = client.open("POST", &format!("/tunnel?port={port}")).await;
    let response = response.await.unwrap();
    assert_eq!(response.status(), 200);
    (send, response.into_body())
}

async fn failure(client: &Client, port: &str) -> (u16, String) {
    let response = client.call("POST", &format!("/tunnel?port={port}"), "").await;
    (response.status, response.json()["code"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn bytes_pass_in_both_directions_and_each_direction_ends_independently() {
    let host = start_agent();
    let client = host.connect().await;
    let (listener, port) = listen().await;
    let (request, response) = (noise(3 << 20, 1), noise(3 << 20, 2));
    let (wanted, sent) = (request.clone(), response.clone());
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut read = Vec::new();
        // Half-closed by the caller: the program sees the end while the other direction is still open.
        stream.read_to_end(&mut read).await.unwrap();
        assert!(read == wanted);
        stream.write_all(&sent).await.unwrap();
    });

    let (mut send, body) = open(&client, port).await;
    send_all(&mut send, request, true).await.unwrap();

    assert!(read_all(body).await == response);
    server.await.unwrap();
}

#[tokio::test]
async fn the_program_may_end_first() {
    let host = start_agent();
    let client = host.connect().await;
    let (listener, port) = listen().await;
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"all I have").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut read = String::new();
        stream.read_to_string(&mut read).await.unwrap();
        read
    });

    let (mut send, body) = open(&client, port).await;
    assert_eq!(read_all(body).await, "all I have");
    send_all(&mut send, "and I thank you".into(), true).await.unwrap();

    assert_eq!(server.await.unwrap(), "and I thank you");
}

#[tokio::test]
async fn early_bytes_are_delivered_once_connected() {
    let host = start_agent();
    let client = host.connect().await;
    let (listener, port) = listen().await;
    let (response, mut send) = client.open("POST", &format!("/tunnel?port={port}")).await;
    send.send_data("early".into(), false).unwrap();

    let (mut stream, _) = listener.accept().await.unwrap();
    let mut early = [0; 5];
    stream.read_exact(&mut early).await.unwrap();

    assert_eq!(&early, b"early");
    assert_eq!(response.await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_refused_port_and_an_invalid_port_have_different_errors() {
    let host = start_agent();
    let client = host.connect().await;
    let (listener, port) = listen().await;
    drop(listener);

    assert_eq!(failure(&client, &port.to_string()).await, (502, "connect_refused".into()));
    assert_eq!(failure(&client, "1029").await, (502, "connect_refused".into()));
    assert_eq!(failure(&client, "0").await, (400, "invalid".into()));
    assert_eq!(failure(&client, "65536").await, (400, "invalid".into()));
    assert_eq!(failure(&client, "").await, (400, "invalid".into()));
}

#[tokio::test]
async fn a_server_on_the_ipv6_loopback_is_reached() {
    let host = start_agent();
    let client = host.connect().await;
    // A machine without IPv6 has no such server.
    let Ok(listener) = TcpListener::bind("[::1]:0").await else { return };
    let port = listener.local_addr().unwrap().port();

    let (_send, mut body) = open(&client, port).await;
    let (mut stream, _) = listener.accept().await.unwrap();
    stream.write_all(b"six").await.unwrap();

    assert_eq!(body.data().await.unwrap().unwrap(), "six");
}

#[tokio::test]
async fn an_error_on_one_side_resets_the_other() {
    let host = start_agent();
    let client = host.connect().await;
    let (listener, port) = listen().await;

    // The program resets the connection, which is not a clean end.
    let (_send, mut body) = open(&client, port).await;
    let (stream, _) = listener.accept().await.unwrap();
    stream.set_zero_linger().unwrap();
    drop(stream);
    assert!(body.data().await.unwrap().is_err());

    // The caller resets the stream.
    let (mut send, body) = open(&client, port).await;
    let (mut stream, _) = listener.accept().await.unwrap();
    send.send_reset(h2::Reason::CANCEL);
    drop(body);
    assert!(stream.read_u8().await.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset));

    // The caller resets after it has sent everything.
    let (mut send, body) = open(&client, port).await;
    let (mut stream, _) = listener.accept().await.unwrap();
    send.send_data(Bytes::new(), true).unwrap();
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
    drop((send, body));
    for tries in 0.. {
        if stream.write_all(b"hello?").await.is_err() {
            break;
        }
        assert!(tries < 2000, "timed out waiting until the connection is reset");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    // The host disconnects.
    let (_send, _body) = open(&client, port).await;
    let (mut stream, _) = listener.accept().await.unwrap();
    drop(client);
    let next = host.connect().await;
    assert!(matches!(stream.read(&mut [0]).await, Ok(0) | Err(_)));
    assert_eq!(next.call("GET", "/ready", "").await.status, 200);
}

#[tokio::test]
async fn a_reader_that_stops_blocks_only_its_own_writer() {
    let host = start_agent();
    let client = host.connect().await;
    let (listener, port) = listen().await;
    let (_send, mut body) = open(&client, port).await;
    let (mut stream, _) = listener.accept().await.unwrap();
    let written = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = written.clone();
    let writer = tokio::spawn(async move {
        while let Ok(more) = stream.write(&[7; 65536]).await {
            count.fetch_add(more, std::sync::atomic::Ordering::Relaxed);
        }
    });
    let written = || written.load(std::sync::atomic::Ordering::Relaxed);
    // Sockets and windows fill up, then the writer blocks. Time is the subject: it is blocked if nothing is written for
    // a while.
    let mut before = usize::MAX;
    while before != written() {
        before = written();
        assert!(before < 32 << 20, "{before}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    assert_eq!(client.exec(serde_json::json!({"cmd": "echo", "args": ["through"]})).await.out(), "through\n");
    let mut read = 0;
    while read < before + (1 << 20) {
        let chunk = body.data().await.unwrap().unwrap();
        body.flow_control().release_capacity(chunk.len()).unwrap();
        read += chunk.len();
    }
    writer.abort();
}

#[tokio::test]
async fn a_hundred_tunnels_work_concurrently() {
    let host = start_agent();
    let client = host.connect().await;
    let (listener, port) = listen().await;
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                tokio::io::copy(&mut read, &mut write).await.unwrap();
                write.shutdown().await.unwrap();
            });
        }
    });
    let mut tunnels = Vec::new();
    for _ in 0..100 {
        tunnels.push(open(&client, port).await);
    }

    for (number, (send, _)) in tunnels.iter_mut().enumerate() {
        send_all(send, format!("tunnel {number}").into(), true).await.unwrap();
    }

    for (number, (_, body)) in tunnels.into_iter().enumerate() {
        assert_eq!(read_all(body).await, format!("tunnel {number}"));
    }
}

/// A root directory with a fake sshd that sends a banner first and then echoes lines.
fn root_with_server() -> Scratch {
    let root = Scratch::new();
    for directory in ["usr/sbin", "etc/ssh", "run"] {
        std::fs::create_dir_all(root.path(directory)).unwrap();
    }
    let script = "#!/bin/sh\n[ \"$1\" = -i ] && [ -d \"${0%/usr/sbin/sshd}/run/sshd\" ] && echo SSH-2.0-test && cat\n";
    std::fs::write(root.path("usr/sbin/sshd"), script).unwrap();
    std::fs::set_permissions(root.path("usr/sbin/sshd"), PermissionsExt::from_mode(0o755)).unwrap();
    root
}

fn somebody_listens_on_22() -> bool {
    std::net::TcpStream::connect("127.0.0.1:22").is_ok()
}

#[tokio::test]
async fn a_tunnel_to_port_22_is_given_a_server_with_a_key_of_its_own() {
    if somebody_listens_on_22() || std::process::Command::new("ssh-keygen").arg("-?").output().is_err() {
        return;
    }
    let root = root_with_server();
    let host = start_agent_at(root.0.clone());
    let client = host.connect().await;
    let key = root.path("etc/ssh/ssh_host_ed25519_key");

    let ((mut send, mut body), (_second, _)) = tokio::join!(open(&client, 22), open(&client, 22));

    assert_eq!(body.data().await.unwrap().unwrap(), "SSH-2.0-test\n");
    send_all(&mut send, "hello\n".into(), true).await.unwrap();
    assert_eq!(read_all(body).await, "hello\n");
    let key_before = std::fs::read(&key).unwrap();
    assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    let _third = open(&client, 22).await;
    assert_eq!(std::fs::read(&key).unwrap(), key_before, "the key is generated once");
}

#[tokio::test]
async fn an_upload_of_authorized_keys_prepares_a_host_key() {
    if std::process::Command::new("ssh-keygen").arg("-?").output().is_err() {
        return;
    }
    let root = root_with_server();
    let host = start_agent_at(root.0.clone());
    let client = host.connect().await;
    let key = root.path("etc/ssh/ssh_host_ed25519_key");

    client.call("PUT", &root.url("root/.ssh/known_hosts"), "example").await;
    assert!(!key.exists());
    let put = client.call("PUT", &root.url("root/.ssh/authorized_keys"), "ssh-ed25519 AAAA me").await;

    assert_eq!((put.status, key.exists()), (200, true));
}

#[tokio::test]
async fn an_image_without_sshd_is_reported() {
    if somebody_listens_on_22() {
        return;
    }
    let root = Scratch::new();
    let host = start_agent_at(root.0.clone());
    let client = host.connect().await;

    assert_eq!(failure(&client, "22").await, (502, "no_ssh_server".into()));
    assert!(root.names().is_empty());
    let put = client.call("PUT", &root.url("authorized/.ssh/authorized_keys"), "").await;
    assert_eq!((put.status, root.names()), (200, vec!["authorized".to_owned()]));
}
