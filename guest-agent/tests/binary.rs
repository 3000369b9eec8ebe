//! Tests of the binary on two unix sockets, as the host agent's tests start it, with real disconnects.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::process::{Child, Command};

use guest_agent::hello;
use support::{Scratch, new_nonce, skip_to_reply, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn start(scratch: &Scratch) -> Agent {
    let path = scratch.path("agent");
    let agent = Command::new(env!("CARGO_BIN_EXE_guest-agent")).arg("--listen-unix").arg(&path).spawn().unwrap();
    until("it listens", || path.exists() && scratch.path("agent.hello").exists()).await;
    Agent(agent)
}

#[tokio::test]
async fn one_host_after_another_is_served_however_the_previous_one_disconnected() {
    let scratch = Scratch::new();
    let agent = start(&scratch).await;

    for round in 0..30 {
        let mut hello_port = UnixStream::connect(scratch.path("agent.hello")).await.unwrap();
        let mut data = UnixStream::connect(scratch.path("agent")).await.unwrap();
        let nonce = new_nonce();
        hello_port.write_all(&hello::line(&nonce)).await.unwrap();
        skip_to_reply(&mut hello_port, &nonce).await;
        data.write_all(&hello::line(&nonce)).await.unwrap();
        skip_to_reply(&mut data, &nonce).await;
        if round % 2 == 0 {
            continue;
        }
        let (mut send, connection) = h2::client::handshake(data).await.unwrap();
        let driver = tokio::spawn(async move { drop(connection.await) });
        let request = http::Request::builder().uri("http://guest/ready").body(()).unwrap();
        let (response, _) = send.send_request(request, true).unwrap();
        assert_eq!(response.await.unwrap().status(), 200);
        driver.abort();
    }

    let status = std::fs::read_to_string(format!("/proc/{}/status", agent.0.id())).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap().trim().to_owned();
    let kib: u64 = resident.trim_end_matches(" kB").parse().unwrap();
    // The limit is for the release build; the debug build of the tests has three times the code.
    let limit_kib = if cfg!(debug_assertions) { 8 * 1024 } else { 4 * 1024 };
    assert!(kib < limit_kib, "{resident}");
}

#[tokio::test]
async fn self_signals_are_accepted_on_the_given_port_and_pipe() {
    let scratch = Scratch::new();
    // Bound and closed again to find a free port.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut command = Command::new(env!("CARGO_BIN_EXE_guest-agent"));
    command.arg("--listen-unix").arg(scratch.path("agent"));
    let _agent = Agent(command.arg("--self").arg(port.to_string()).arg(scratch.path("self")).spawn().unwrap());
    until("the pipe exists", || scratch.path("self").exists()).await;

    let mut inside = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    inside.write_all(b"POST /self/pause HTTP/1.1\r\n\r\n").await.unwrap();
    let mut response = String::new();
    inside.read_to_string(&mut response).await.unwrap();

    assert!(response.starts_with("HTTP/1.1 202 "));
}

#[tokio::test]
async fn a_termination_signal_ends_it() {
    let scratch = Scratch::new();
    let mut agent = start(&scratch).await;
    // It listens slightly before it handles signals.
    until("it handles the signal", || handles(agent.0.id(), libc::SIGTERM)).await;

    unsafe { libc::kill(agent.0.id() as i32, libc::SIGTERM) };

    until("it has ended", || agent.0.try_wait().unwrap().is_some()).await;
}

fn handles(pid: u32, signal: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0").trim();
    u64::from_str_radix(mask, 16).unwrap() & (1 << (signal - 1)) != 0
}
