//! SSH on demand: when nothing listens on port 22, a tunnel to it is connected to a new `sshd -i`, one per connection.
//!
//! Nothing runs and no key exists before the first connection: a base snapshot holds no host key, and a clone, whose
//! template's keys were removed (`identity.rs`), generates new ones. If the user starts an SSH server that listens,
//! tunnels go to that server. sshd does not start without a host key, so one is also generated when a client uploads an
//! authorized_keys file. Only OpenSSH is supported: it is what images install, and its keys are the ones that
//! `identity.rs` renews.

use std::fs::{self, OpenOptions};
use std::io::Error;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::agent::Agent;
use crate::reaper::{self, Child, ExitStatus};
use crate::reply::Failure;
use crate::spawn::{Program, SpawnError, describe, environment, spawn};
use crate::tunnel::unreachable;

pub const PORT: u16 = 22;
const SERVERS: [&str; 3] = ["usr/sbin/sshd", "usr/local/sbin/sshd", "usr/bin/sshd"];

/// Where the SSH server and its keys are looked up (`/` in the machine), and the lock for generating keys.
pub struct Ssh {
    root: PathBuf,
    keygen_lock: tokio::sync::Mutex<()>,
}

impl Ssh {
    pub fn new(root: PathBuf) -> Self {
        Self { root, keygen_lock: tokio::sync::Mutex::default() }
    }

    fn server(&self) -> Option<PathBuf> {
        SERVERS.iter().map(|path| self.root.join(path)).find(|path| path.is_file())
    }

    fn host_key(&self) -> PathBuf {
        self.root.join("etc/ssh/ssh_host_ed25519_key")
    }

    /// A key of any type: the user's configuration may name other types than the generated one.
    fn has_host_key(&self) -> bool {
        let Ok(entries) = fs::read_dir(self.root.join("etc/ssh")) else { return false };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        names.into_iter().any(|name| name.starts_with("ssh_host_") && name.ends_with("_key"))
    }
}

/// Starts an sshd for one connection and returns the agent's end of it.
pub async fn open_connection(agent: &Arc<Agent>) -> Result<OwnedFd, Failure> {
    make_host_key(agent).await?;
    let worker = agent.clone();
    run(agent, move || start_server(&worker)).await?
}

/// Called after an upload of authorized_keys: clients write the user's key as a file and then run sshd.
pub async fn prepare_host_key(agent: &Arc<Agent>) {
    // A failure is ignored: the upload itself succeeded, and starting a missing server reports its own error.
    let _ = make_host_key(agent).await;
}

async fn make_host_key(agent: &Arc<Agent>) -> Result<(), Failure> {
    // Two concurrent first connections generate only one key.
    let _guard = agent.ssh.keygen_lock.lock().await;
    let worker = agent.clone();
    let Some(exit_status) = run(agent, move || start_keygen(&worker)).await?? else { return Ok(()) };
    match exit_status.await {
        Ok(ExitStatus::Exited(0)) => Ok(()),
        exit_status => Err(no_server(format!("ssh-keygen failed to generate a host key: {exit_status:?}"))),
    }
}

/// Runs on a worker thread. Returns None when a key exists.
fn start_keygen(agent: &Agent) -> Result<Option<oneshot::Receiver<ExitStatus>>, Failure> {
    let ssh = &agent.ssh;
    if ssh.server().is_none() {
        return Err(no_server("nothing listens on port 22, and the image has no sshd: install openssh-server".into()));
    }
    if ssh.has_host_key() {
        return Ok(None);
    }
    let key = ssh.host_key().display().to_string();
    let args = ["-q", "-t", "ed25519", "-N", "", "-C", "", "-f", &key].map(str::to_owned);
    let (null, output) = (null()?, null()?);
    let (_, exit_status) = start(agent, "ssh-keygen".into(), args.into(), null, output)?;
    Ok(Some(exit_status))
}

/// Runs on a worker thread. `-i` makes sshd serve one connection, on its stdin and stdout.
fn start_server(agent: &Agent) -> Result<OwnedFd, Failure> {
    let failed = |error: Error| no_server(format!("sshd: {}", describe(&error)));
    let server = agent.ssh.server().ok_or_else(|| no_server("the image has no sshd".into()))?;
    make_privsep_directory(&agent.ssh.root).map_err(failed)?;
    let (agent_end, server_end) = UnixStream::pair().map_err(failed)?;
    let output = OwnedFd::from(server_end.try_clone().map_err(failed)?);
    // sshd re-executes itself and needs its absolute path for that.
    start(agent, server.display().to_string(), vec!["-i".into()], server_end.into(), output)?;
    Ok(agent_end.into())
}

/// sshd does not run without this directory, and /run is empty after every boot.
fn make_privsep_directory(root: &Path) -> std::io::Result<()> {
    let directory = root.join("run/sshd");
    fs::create_dir_all(&directory)?;
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o755))
}

fn start(
    agent: &Agent,
    cmd: String,
    args: Vec<String>,
    stdin: OwnedFd,
    stdout: OwnedFd,
) -> Result<(Child, oneshot::Receiver<ExitStatus>), Failure> {
    let env = environment(agent, Default::default());
    let program = Program {
        cmd,
        name: None,
        args,
        env,
        cwd: Some("/".into()),
        stdin,
        stdout,
        stderr: null()?,
        terminal: false,
        cgroup: None,
        run_as: None,
    };
    let starting = reaper::begin_start();
    let pid = spawn(&program).map_err(|error| {
        let why = match &error {
            SpawnError::NotFound => "not found".to_owned(),
            SpawnError::NotExecutable(error) | SpawnError::Cwd(error) | SpawnError::Other(error) => describe(error),
        };
        no_server(format!("{}: {why}", program.cmd))
    })?;
    Ok(starting.register(pid))
}

fn null() -> Result<OwnedFd, Failure> {
    let null = OpenOptions::new().read(true).write(true).open("/dev/null");
    Ok(null.map_err(|error| Failure::internal("/dev/null", &error))?.into())
}

fn no_server(message: String) -> Failure {
    unreachable("no_ssh_server", message)
}

async fn run<T: Send + 'static>(agent: &Agent, job: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
    agent.workers.run(job).await.map_err(|error| Failure::internal("worker", &error))
}
