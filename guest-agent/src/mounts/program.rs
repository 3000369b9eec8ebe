//! A running mount program, and the lines of JSON that it understands (`bucket-mount/src/control.rs`).

use std::collections::{BTreeMap, HashMap};
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::{mpsc, oneshot};

use super::ProgramFile;
use super::stages::Stages;
use super::wanted::Wanted;
use crate::reaper::{self, Child};
use crate::spawn::{Program, spawn};
use crate::sys::pipe;

const LINE_MAX_BYTES: usize = 256 * 1024;

/// What the program sends unasked.
#[derive(Debug, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    Mounted,
    Failed { message: String },
    Status { status: Value },
}

pub struct MountProgram {
    child: Child,
    input: tokio::sync::Mutex<Sender>,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    last_id: u64,
    answers: HashMap<u64, oneshot::Sender<Value>>,
}

/// Must run on a worker thread. The descriptors are registered with the event loop afterwards.
pub fn spawn_program(file: &ProgramFile) -> Result<(Child, OwnedFd, OwnedFd), String> {
    let failed = |error: std::io::Error| format!("failed to start the mount program: {error}");
    let (stdin, input) = pipe().map_err(failed)?;
    let (output, stdout) = pipe().map_err(failed)?;
    let null = OpenOptions::new().write(true).open("/dev/null").map_err(failed)?;
    // The program's own standard error repeats what it reports.
    let program = Program {
        cmd: match file {
            ProgramFile::Open(file) => format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()),
            ProgramFile::Path(path) => path.display().to_string(),
        },
        name: Some("bucket-mount".to_owned()),
        args: Vec::new(),
        env: BTreeMap::new(),
        cwd: Some("/".to_owned()),
        stdin,
        stdout,
        stderr: null.into(),
        terminal: false,
        cgroup: None,
        run_as: None,
    };
    let starting = reaper::begin_start();
    let pid = spawn(&program).map_err(|error| format!("failed to start the mount program: {error:?}"))?;
    let (child, _) = starting.register(pid);
    // Without it every program that uses the mount fails, so others are ended first when memory is short.
    let _ = std::fs::write(format!("/proc/{pid}/oom_score_adj"), "-900");
    Ok((child, input, output))
}

impl MountProgram {
    /// Sends the configuration. The receiver ends when the program does.
    pub async fn start(
        (child, input, output): (Child, OwnedFd, OwnedFd),
        wanted: &Wanted,
        mount_point: &Path,
        stages: &Stages,
    ) -> std::io::Result<(Arc<Self>, mpsc::UnboundedReceiver<Event>)> {
        let input = tokio::sync::Mutex::new(Sender::from_owned_fd(input)?);
        let output = Receiver::from_owned_fd(output)?;
        let program = Arc::new(Self { child, input, waiting: Mutex::default() });
        let (events, receiver) = mpsc::unbounded_channel();
        tokio::spawn(read_lines(program.clone(), output, events));
        let mut config = json!({
            "address": wanted.address, "token": wanted.token, "mount_point": mount_point,
            "stage_folder": stages.path().join(&wanted.id), "shown_stage_folder": stages.shown().join(&wanted.id),
            "read_only": wanted.read_only,
        });
        if let (Some(mib), Some(object)) = (wanted.stage_max_mib, config.as_object_mut()) {
            object.insert("stage_max_mib".to_owned(), json!(mib));
        }
        program.write(&config).await?;
        Ok((program, receiver))
    }

    /// None: it did not answer in time, or is gone.
    pub async fn command(&self, mut command: Value, limit: Duration) -> Option<Value> {
        let (sender, answer) = oneshot::channel();
        let id = {
            let mut waiting = self.waiting();
            waiting.last_id += 1;
            let id = waiting.last_id;
            waiting.answers.insert(id, sender);
            id
        };
        command.as_object_mut()?.insert("id".to_owned(), json!(id));
        let asked = async {
            self.write(&command).await.ok()?;
            answer.await.ok()
        };
        let answer = tokio::time::timeout(limit, asked).await.ok().flatten();
        self.waiting().answers.remove(&id);
        answer
    }

    pub fn kill(&self) {
        if !reaper::is_reaped(&self.child) {
            // SAFETY: plain kill of a child that is not reaped yet.
            unsafe { libc::kill(self.child.pid, libc::SIGKILL) };
        }
    }

    pub fn is_running(&self) -> bool {
        !reaper::is_reaped(&self.child)
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn write(&self, line: &Value) -> std::io::Result<()> {
        let mut bytes = serde_json::to_vec(line).unwrap_or_default();
        bytes.push(b'\n');
        let input = self.input.lock().await;
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            input.writable().await?;
            match input.try_write(rest) {
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

async fn read_lines(program: Arc<MountProgram>, output: Receiver, events: mpsc::UnboundedSender<Event>) {
    let mut buffer = Vec::new();
    let mut chunk = [0; 4096];
    while output.readable().await.is_ok() {
        match output.try_read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => buffer.extend_from_slice(chunk.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(_) => break,
        }
        while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = buffer.drain(..=end).collect();
            accept(&program, &line, &events);
        }
        if buffer.len() > LINE_MAX_BYTES {
            break;
        }
    }
    // Commands that still wait get no answer.
    program.waiting().answers.clear();
}

fn accept(program: &MountProgram, line: &[u8], events: &mpsc::UnboundedSender<Event>) {
    let Ok(value) = serde_json::from_slice::<Value>(line) else { return };
    if let Some(id) = value.get("id").and_then(Value::as_u64) {
        if let Some(answer) = program.waiting().answers.remove(&id) {
            let _ = answer.send(value);
        }
        return;
    }
    if let Ok(event) = serde_json::from_value(value) {
        let _ = events.send(event);
    }
}
