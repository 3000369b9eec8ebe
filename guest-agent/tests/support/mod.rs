//! A test host. Both ports are socket pairs that stay open for the whole test, so one host after another can connect
//! over them without the agent ever seeing a disconnect, which is the hardest case for the channel.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

pub mod mounts;
pub mod processes_client;

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use guest_agent::agent::Agent;
use guest_agent::channel::Channel;
use guest_agent::hello::{self, LineScanner, Nonce};
use guest_agent::port::Port;
use guest_agent::virtio_ports::Ports;
use guest_agent::{processes, reaper};
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use http::{Request, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);
const HANDSHAKES_MAX: usize = 20;

pub struct Host {
    hello: StdStream,
    data: StdStream,
    pub agent: Arc<Agent>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Host {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        self.agent.processes.kill_all();
    }
}

pub fn start_agent() -> Host {
    start_agent_at("/".into())
}

/// `root` is where the agent looks for an SSH server.
pub fn start_agent_at(root: PathBuf) -> Host {
    let (hello, hello_port) = StdStream::pair().unwrap();
    let (data, data_port) = StdStream::pair().unwrap();
    let agent = Agent::with_root(false, root);
    let port = |stream: StdStream| Port::from_fd(OwnedFd::from(stream)).unwrap();
    let ports = Ports { hello: port(hello_port), data: port(data_port) };
    let channel = Channel::new(ports, agent.clone());
    reaper::inherit_orphans();
    let tasks = vec![
        tokio::spawn(channel.run()),
        tokio::spawn(async { reaper::run().await.unwrap() }),
        tokio::spawn(processes::watch_trees(agent.clone())),
    ];
    Host { hello, data, agent, tasks }
}

impl Host {
    /// Opens a port again, as a new host process would.
    fn open(stream: &StdStream) -> UnixStream {
        let copy = stream.try_clone().unwrap();
        copy.set_nonblocking(true).unwrap();
        UnixStream::from_std(copy).unwrap()
    }

    pub fn hello_port(&self) -> UnixStream {
        Self::open(&self.hello)
    }

    pub fn data_port(&self) -> UnixStream {
        Self::open(&self.data)
    }

    /// Steps 1 to 7 of `channel.rs`. Like a real host it starts over when there is no reply in time: on a busy machine
    /// the agent may give up writing its reply while old output still fills the port.
    pub async fn handshake(&self) -> UnixStream {
        for _ in 0..HANDSHAKES_MAX {
            if let Ok(data) = tokio::time::timeout(HANDSHAKE_TIMEOUT, self.try_handshake()).await {
                return data;
            }
        }
        panic!("no reply to {HANDSHAKES_MAX} hellos");
    }

    async fn try_handshake(&self) -> UnixStream {
        let nonce = new_nonce();
        let (mut hello_port, mut data) = (self.hello_port(), self.data_port());
        hello_port.write_all(&hello::line(&nonce)).await.unwrap();
        skip_to_reply(&mut hello_port, &nonce).await;
        data.write_all(&hello::line(&nonce)).await.unwrap();
        skip_to_reply(&mut data, &nonce).await;
        data
    }

    pub async fn connect(&self) -> Client {
        let data = self.handshake().await;
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(256 * 1024).initial_connection_window_size(16 * 1024 * 1024);
        let (send, connection) = builder.handshake(data).await.unwrap();
        let driver = tokio::spawn(async move { drop(connection.await) });
        Client { send, driver }
    }
}

pub fn new_nonce() -> Nonce {
    static COUNTER: AtomicU32 = AtomicU32::new(1);
    let text = format!("{:032x}", COUNTER.fetch_add(1, Ordering::Relaxed));
    text.as_bytes().try_into().unwrap()
}

pub async fn skip_to_reply(port: &mut UnixStream, nonce: &Nonce) {
    let mut search = LineScanner::new(hello::reply(nonce));
    while !search.take(port.read_u8().await.unwrap()) {}
}

pub struct Client {
    pub send: SendRequest<Bytes>,
    driver: JoinHandle<()>,
}

/// Dropping it is like killing the host process: nothing is sent.
impl Drop for Client {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

pub struct Reply {
    pub status: u16,
    pub body: Bytes,
    pub head: Response<()>,
}

impl Reply {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

impl Client {
    pub async fn open(&self, method: &str, target: &str) -> (h2::client::ResponseFuture, SendStream<Bytes>) {
        let request = Request::builder().method(method).uri(format!("http://guest{target}")).body(()).unwrap();
        let mut send = self.send.clone().ready().await.unwrap();
        send.send_request(request, false).unwrap()
    }

    pub async fn call(&self, method: &str, target: &str, body: impl Into<Bytes>) -> Reply {
        let (response, mut send) = self.open(method, target).await;
        // The agent may respond and close the stream before it has read everything.
        let _ = send_all(&mut send, body.into(), true).await;
        let (head, body) = response.await.unwrap().into_parts();
        Reply { status: head.status.as_u16(), body: read_all(body).await, head: Response::from_parts(head, ()) }
    }

    pub async fn exec(&self, command: serde_json::Value) -> Ran {
        let body = frame(3, command.to_string().as_bytes());
        self.exec_body(body).await
    }

    pub async fn exec_body(&self, body: Bytes) -> Ran {
        let response = self.call("POST", "/exec", body).await;
        assert_eq!(response.status, 200, "{:?}", response.body);
        Ran::parse(response.body)
    }
}

pub async fn send_all(send: &mut SendStream<Bytes>, mut bytes: Bytes, end: bool) -> Result<(), h2::Error> {
    while !bytes.is_empty() {
        send.reserve_capacity(bytes.len());
        match std::future::poll_fn(|context| send.poll_capacity(context)).await {
            Some(room) => {
                let room = room?.min(bytes.len());
                send.send_data(bytes.split_to(room), false)?;
            }
            None => return Ok(()),
        }
    }
    if end { send.send_data(Bytes::new(), true) } else { Ok(()) }
}

pub async fn read_all(mut body: RecvStream) -> Bytes {
    let mut all = BytesMut::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk.unwrap();
        body.flow_control().release_capacity(chunk.len()).unwrap();
        all.extend_from_slice(&chunk);
    }
    all.freeze()
}

pub fn frame(kind: u8, payload: &[u8]) -> Bytes {
    [&[kind], &(payload.len() as u32).to_be_bytes()[..], payload].concat().into()
}

/// The response of an exec, with its output collected.
#[derive(Debug, Default)]
pub struct Ran {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub started: Option<serde_json::Value>,
    pub error: Option<serde_json::Value>,
    pub exit: Option<serde_json::Value>,
}

impl Ran {
    pub fn parse(mut bytes: Bytes) -> Self {
        let mut ran = Self::default();
        while bytes.has_remaining() {
            assert!(ran.exit.is_none() && ran.error.is_none(), "a frame after the last one");
            let (kind, length) = (bytes.get_u8(), bytes.get_u32() as usize);
            let payload = bytes.split_to(length);
            let json = || Some(serde_json::from_slice(&payload).unwrap());
            match kind {
                1 => ran.stdout.extend_from_slice(&payload),
                2 => ran.stderr.extend_from_slice(&payload),
                4 => ran.started = json(),
                5 => ran.error = json(),
                6 => ran.exit = json(),
                other => panic!("frame type {other}"),
            }
        }
        ran
    }

    pub fn code(&self) -> Option<i64> {
        self.exit.as_ref()?["code"].as_i64()
    }

    pub fn out(&self) -> String {
        String::from_utf8(self.stdout.clone()).unwrap()
    }
}

/// A temporary directory for one test.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("guest-agent-test-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The request target for a file in this directory.
    pub fn url(&self, name: &str) -> String {
        format!("/files?path={}", self.path(name).display())
    }

    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Waits until a condition holds, and panics after 10 s.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("timed out waiting until {what}");
}

pub fn is_alive(pid: i64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.rsplit(')').next().unwrap_or_default().trim_start().starts_with('Z')
}

/// Number of live processes in a session.
pub fn session_members(session: i64) -> usize {
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let stats = pids.filter_map(|pid| std::fs::read_to_string(pid.path().join("stat")).ok());
    let member = |stat: &String| {
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        fields[0] != "Z" && fields[3] == session.to_string()
    };
    stats.filter(member).count()
}

/// Pseudo-random bytes.
pub fn noise(length: usize, seed: u64) -> Bytes {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&next());
    }
    bytes.truncate(length);
    bytes.into()
}

pub fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}
