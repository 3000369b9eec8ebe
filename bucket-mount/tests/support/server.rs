//! Serves a bucket on a port of this machine, and fails on demand.

use std::io::BufReader;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use super::bucket::Bucket;
use super::http::{Request, Response};
use super::until;

#[derive(Clone)]
pub struct Server {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    bucket: Mutex<Bucket>,
    log: Mutex<Vec<String>>,
    fault: Mutex<Option<Fault>>,
}

/// Decides about each request. None: it is answered as usual.
pub type Fault = Box<dyn Fn(&Request) -> Option<Effect> + Send>;

pub enum Effect {
    Answer(Response),
    /// Answers when it is set: with the response, or as usual.
    Until(Arc<AtomicBool>, Option<Response>),
    /// Never answers, and closes when the client does.
    Hang,
    /// Closes without an answer.
    Close,
    /// Does what was asked, then closes without an answer.
    CloseAfter,
}

pub const TOKEN: &str = "test-token";

impl Server {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self { address: listener.local_addr().unwrap(), shared: Arc::default() };
        let accepting = server.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = accepting.clone();
                thread::spawn(move || server.serve(stream));
            }
        });
        server
    }

    pub fn bucket(&self) -> MutexGuard<'_, Bucket> {
        self.shared.bucket.lock().unwrap()
    }

    pub fn set_fault(&self, fault: impl Fn(&Request) -> Option<Effect> + Send + 'static) {
        *self.shared.fault.lock().unwrap() = Some(Box::new(fault));
    }

    pub fn clear_fault(&self) {
        *self.shared.fault.lock().unwrap() = None;
    }

    /// The requests since the last call: method, key and what they have in the query.
    pub fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.log.lock().unwrap())
    }

    pub fn body(&self, key: &str) -> Option<Vec<u8>> {
        self.bucket().objects.get(key).map(|object| object.body.clone())
    }

    pub fn keys(&self) -> Vec<String> {
        self.bucket().objects.keys().cloned().collect()
    }

    fn serve(&self, stream: TcpStream) {
        stream.set_nodelay(true).unwrap();
        let mut writer = stream.try_clone().unwrap();
        let mut reader = BufReader::new(stream);
        while let Some(request) = Request::read(&mut reader) {
            assert_eq!(request.header("authorization"), Some(format!("Bearer {TOKEN}").as_str()));
            let mut query: Vec<&String> = request.query.keys().collect();
            query.sort();
            let copy = if request.header("x-amz-copy-source").is_some() { " copy" } else { "" };
            let line = format!("{} {} {query:?} {}{copy}", request.method, request.key, request.body.len());
            self.shared.log.lock().unwrap().push(line);
            let effect = self.shared.fault.lock().unwrap().as_ref().and_then(|fault| fault(&request));
            let response = match effect {
                None => self.bucket().answer(&request),
                Some(Effect::Answer(response)) => response,
                Some(Effect::Until(released, response)) => {
                    until("the release of a request", || released.load(Ordering::SeqCst));
                    response.unwrap_or_else(|| self.bucket().answer(&request))
                }
                Some(Effect::Hang) => {
                    let _ = Request::read(&mut reader);
                    return;
                }
                Some(Effect::Close) => return,
                Some(Effect::CloseAfter) => {
                    self.bucket().answer(&request);
                    return;
                }
            };
            if response.write(&mut writer, request.method == "HEAD").is_err() {
                return;
            }
        }
    }
}
