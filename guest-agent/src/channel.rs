//! How the host connects to the agent, and how each side survives a restart of the other.
//!
//! The problem: the virtio-serial port outlives every host process. A host agent may die in the middle of an HTTP/2
//! frame, and its successor may connect so fast, or while the guest is paused, that the guest sees no disconnect at
//! all. The bytes of the new host then directly follow those of the old one. Wherever the old host stopped, three
//! things must hold: the guest notices the new host; bytes of the new host never complete a frame of the old one (half
//! an upload would become a whole file with garbage at its end); and no response meant for the old host reaches the new
//! one.
//!
//! Alternatives considered:
//!   - Searching for the hello line in the data stream. Wrong: a user can upload a file that contains that line.
//!   - The same with a secret in the line. Almost right: the first bytes of the secret may complete an old frame before
//!     they are recognised, and holding back everything that could be its beginning delays valid frames.
//!   - Length-prefixed chunks. Wrong: when a host dies within a chunk, the rest of the chunk swallows the next hello.
//!   - Byte stuffing, so that one byte value never occurs in data and always means "start of connection". Right, but the
//!     host has to rewrite everything it sends, so Node cannot pass the socket to http2 (394 instead of 153 µs per
//!     request).
//!   - A separate port for the hello, which never carries user data. Right; it costs one more virtio port and one round
//!     trip per connection (0.1 ms), and both sides keep the raw stream. Chosen.
//!
//! There are two ports, `warren.hello` and `warren.agent`:
//!
//!   1. host → hello port   `WARREN1 <n>\n`      n: 32 lower-case hex digits, random, new for every connection
//!   2. agent               ends the previous session: streams, commands started by exec, pending output
//!   3. agent → hello port  `WARREN1 <n> OK\n`
//!   4. host → agent port   `WARREN1 <n>\n`      only after step 3
//!   5. agent               skips everything on the agent port before that line
//!   6. agent → agent port  `WARREN1 <n> OK\n`
//!   7. host                skips everything on the agent port before that line; then raw HTTP/2 in both directions
//!
//! Why this is correct: between steps 2 and 5 the agent passes nothing to HTTP/2, and the new host sends nothing before
//! step 3, so no byte of the new host can complete a frame of the old one. `n` is random and did not exist when the old
//! bytes were sent, so no old byte, in either direction, can be mistaken for the line that ends the skipping. The hello
//! port carries only these lines, and a truncated line before a complete one is skipped (`hello.rs`).
//!
//! A hello may arrive at any time and always takes precedence. The session also ends when the agent port stays
//! disconnected: that stops the commands of a host that died and did not come back. A host that receives no reply in
//! time starts again with step 1.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::agent::Agent;
use crate::hello::{self, HelloScanner, LineScanner, Nonce};
use crate::kmsg::log;
use crate::port::Port;
use crate::serve;
use crate::session_io::SessionIo;
use crate::virtio_ports::{Ports, open_ports, reset_device};

/// A host that has just connected may still look absent to the kernel. Shorter than the host's own timeout, so that a
/// broken queue is detected before the host sends its next hello.
const REPLY_TIMEOUT: Duration = Duration::from_millis(400);
const RETRY_DELAY: Duration = Duration::from_secs(1);

pub struct Channel {
    hello: HelloPort,
    data: Port,
    agent: Arc<Agent>,
}

struct HelloPort {
    port: Port,
    search: HelloScanner,
}

/// Why a session ended.
enum SessionEnd {
    NewHost(Nonce),
    Disconnected,
    /// A host is connected, but nothing can be written to it (`virtio_ports.rs`).
    QueueBroken,
}

impl Channel {
    pub fn new(ports: Ports, agent: Arc<Agent>) -> Self {
        Self { hello: HelloPort { port: ports.hello, search: HelloScanner::default() }, data: ports.data, agent }
    }

    /// Serves one host after another; never returns.
    pub async fn run(mut self) {
        let mut nonce = self.hello.next().await;
        // All requests of a session run in this set, so that ending the session ends them all.
        let mut requests = JoinSet::new();
        loop {
            let session = serve_host(&nonce, &mut self.data, &self.agent, &mut requests);
            let over = tokio::select! {
                biased;
                over = self.hello.reply_then_next(&nonce) => over,
                over = session => over,
            };
            // Waits until every request has released its resources; only then is the next hello answered.
            requests.shutdown().await;
            nonce = match over {
                SessionEnd::NewHost(next) => next,
                SessionEnd::Disconnected => self.hello.next().await,
                SessionEnd::QueueBroken => {
                    self.reopen_ports().await;
                    self.hello.next().await
                }
            };
        }
    }

    async fn reopen_ports(&mut self) {
        if !self.agent.is_init {
            return;
        }
        log("the queue to the host is broken; resetting the device");
        loop {
            let reset = self.agent.workers.run(reset_device).await.and_then(|reset| reset);
            if let Err(error) = reset {
                log(&format!("failed to reset the virtio-serial device: {error}"));
            }
            match open_ports().await {
                Ok(Ports { hello, data }) => {
                    self.hello.port = hello;
                    self.data = data;
                    return;
                }
                Err(error) => log(&format!("failed to open the ports: {error}")),
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }
}

/// Steps 5 to 7. Returns when the host has disconnected or violated the protocol.
async fn serve_host(nonce: &Nonce, data: &mut Port, agent: &Arc<Agent>, requests: &mut JoinSet<()>) -> SessionEnd {
    let first_bytes = skip_to(nonce, data).await;
    if data.write_all(&hello::reply(nonce), REPLY_TIMEOUT).await.is_err() {
        return if data.is_full() { SessionEnd::QueueBroken } else { SessionEnd::Disconnected };
    }
    serve::serve(SessionIo::new(data, first_bytes), agent, requests).await;
    SessionEnd::Disconnected
}

/// Reads the agent port up to this host's line. Returns the bytes that followed it in the same read.
async fn skip_to(nonce: &Nonce, data: &mut Port) -> Vec<u8> {
    let mut search = LineScanner::new(hello::line(nonce));
    let mut buffer = [0u8; 4096];
    loop {
        let count = data.read_some(&mut buffer).await;
        let bytes = buffer.get(..count).unwrap_or_default();
        if let Some(end) = bytes.iter().position(|byte| search.take(*byte)) {
            return bytes.get(end + 1..).unwrap_or_default().to_vec();
        }
    }
}

impl HelloPort {
    /// Waits for a hello. Of several queued hellos only the last can be from a host that is still connected.
    async fn next(&mut self) -> Nonce {
        let mut buffer = [0u8; 1024];
        loop {
            let count = self.port.read_some(&mut buffer).await;
            let bytes = buffer.get(..count).unwrap_or_default();
            if let Some(nonce) = bytes.iter().filter_map(|byte| self.search.take(*byte)).last() {
                return nonce;
            }
        }
    }

    async fn reply_then_next(&mut self, nonce: &Nonce) -> SessionEnd {
        // Other write errors are ignored: the host has disconnected, or it will send another hello.
        if self.port.write_all(&hello::reply(nonce), REPLY_TIMEOUT).await.is_err() && self.port.is_full() {
            return SessionEnd::QueueBroken;
        }
        SessionEnd::NewHost(self.next().await)
    }
}
