//! How the host reaches the agent, and how either side survives the death of the other.
//!
//! The trouble: the pipe (virtio-serial) outlives every host process. A host may die in the middle of an HTTP/2 frame
//! and the next one connect so fast, or while the guest is stopped, that the guest sees no hang-up at all. Then the
//! new host's bytes follow the old one's without a seam. Three things must hold whatever the cut: the new host is
//! noticed; nothing of the old one is completed by bytes of the new one (half an upload would become a whole file
//! with rubbish at its end); and no answer meant for the old one reaches the new one.
//!
//! Ways weighed:
//!   - Looking for the hello line in the stream. A user can put that line into a file and upload it. Wrong.
//!   - The same with a secret in it. Better, but the secret's first bytes may complete an old frame before they are
//!     known to be a secret, and holding back what might be its beginning stalls honest frames. Almost right.
//!   - Length-prefixed chunks. A host that dies within a chunk leaves a hole that swallows the next hello. Wrong.
//!   - Byte stuffing, so that one byte value never occurs in data and always means "from the beginning". Right, but
//!     the host must rewrite all it sends, so Node cannot give its socket to http2 (394 instead of 153 µs a request).
//!   - HELLO ON A PORT OF ITS OWN, where no user's byte ever travels. Right, costs one more virtio port and one round
//!     trip per connection (0.1 ms), and both sides keep the raw stream. Chosen.
//!
//! So there are two ports, `warren.hello` and `warren.agent`:
//!
//!   1. host → hello port   `WARREN1 <n>\n`      n: 32 lower-case hex digits, random, new for every connection
//!   2. agent               ends the session it had: streams, commands started by exec, pending output
//!   3. agent → hello port  `WARREN1 <n> OK\n`
//!   4. host → agent port   `WARREN1 <n>\n`      not before 3 was seen
//!   5. agent               skips everything on the agent port before that line
//!   6. agent → agent port  `WARREN1 <n> OK\n`
//!   7. host                skips everything on the agent port before that line; then HTTP/2, raw, both ways
//!
//! Why it holds: between 2 and 5 the agent hands nothing to HTTP/2, and the new host sends nothing before 3, so no
//! byte of the new host can complete a frame of the old one. `n` is fresh and unknown to anyone when old bytes were
//! sent, so no old byte, in either direction, can be taken for the line that ends the skipping. On the hello port
//! itself only these lines travel, and a cut line in front of a whole one is skipped (`hello.rs`).
//!
//! A hello may come at any moment and always wins. A hang-up of the agent port that lasts also ends the session: that
//! is how commands of a host that died for good are stopped. A host that gets no answer in time starts over with 1.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::agent::Agent;
use crate::hello::{self, AnyHello, Nonce, ThisLine};
use crate::kmsg::say;
use crate::port::Port;
use crate::ports::{Ports, open_ports, reset_device};
use crate::serve;
use crate::session_io::SessionIo;

/// A host that has just connected may still look absent to the kernel. Shorter than the host's own patience, so that
/// a broken queue is seen before it greets again.
const ANSWER_PATIENCE: Duration = Duration::from_millis(400);
const RETRY_PAUSE: Duration = Duration::from_secs(1);

pub struct Channel {
    hello: HelloPort,
    data: Port,
    agent: Arc<Agent>,
}

struct HelloPort {
    port: Port,
    search: AnyHello,
}

/// Why a session is over.
enum Over {
    Next(Nonce),
    Gone,
    /// A host is there, but the way to it is broken (`ports.rs`).
    Stuck,
}

impl Channel {
    pub fn new(ports: Ports, agent: Arc<Agent>) -> Self {
        Self { hello: HelloPort { port: ports.hello, search: AnyHello::default() }, data: ports.data, agent }
    }

    /// Serves one host after the other, for ever.
    pub async fn run(mut self) {
        let mut nonce = self.hello.next().await;
        // Every request of a session runs in here, so that ending a session ends them all.
        let mut requests = JoinSet::new();
        loop {
            let session = serve_host(&nonce, &mut self.data, &self.agent, &mut requests);
            let over = tokio::select! {
                biased;
                over = self.hello.answer_then_next(&nonce) => over,
                over = session => over,
            };
            // Waits until each request has let go of what it held; only then is the next hello answered.
            requests.shutdown().await;
            nonce = match over {
                Over::Next(next) => next,
                Over::Gone => self.hello.next().await,
                Over::Stuck => {
                    self.make_ports_anew().await;
                    self.hello.next().await
                }
            };
        }
    }

    async fn make_ports_anew(&mut self) {
        if !self.agent.is_init {
            return;
        }
        say("the queue to the host is broken: resetting the device");
        loop {
            let reset = self.agent.work.run(reset_device).await.and_then(|reset| reset);
            if let Err(error) = reset {
                say(&format!("reset: {error}"));
            }
            match open_ports().await {
                Ok(Ports { hello, data }) => {
                    self.hello.port = hello;
                    self.data = data;
                    return;
                }
                Err(error) => say(&format!("ports: {error}")),
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }
}

/// Steps 5 to 7. Returns when the host has gone or broke the protocol.
async fn serve_host(nonce: &Nonce, data: &mut Port, agent: &Arc<Agent>, requests: &mut JoinSet<()>) -> Over {
    let first_bytes = skip_to(nonce, data).await;
    if data.write_all(&hello::answer(nonce), ANSWER_PATIENCE).await.is_err() {
        return if data.is_full() { Over::Stuck } else { Over::Gone };
    }
    serve::serve(SessionIo::new(data, first_bytes), agent, requests).await;
    Over::Gone
}

/// Reads the agent port up to the line of this host; gives what came after it in the same read.
async fn skip_to(nonce: &Nonce, data: &mut Port) -> Vec<u8> {
    let mut search = ThisLine::new(hello::line(nonce));
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
    /// Of several that wait only the last is of a host that may still be there.
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

    async fn answer_then_next(&mut self, nonce: &Nonce) -> Over {
        // Not answered otherwise: the host has gone, or will greet again.
        if self.port.write_all(&hello::answer(nonce), ANSWER_PATIENCE).await.is_err() && self.port.is_full() {
            return Over::Stuck;
        }
        Over::Next(self.next().await)
    }
}
