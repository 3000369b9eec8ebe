//! SSH on demand: a tunnel to port 22 where nothing listens is given an `sshd -i` of its own, one per connection.
//!
//! Nothing runs, and nothing has keys, before somebody asks: a base snapshot holds no host key, and a clone that lost
//! its template's (`identity.rs`) makes its own. Whoever wants a server that listens starts one; then the tunnel goes
//! there. sshd does not start without a host key, so one is also made for who uploads a list of authorized keys. OpenSSH only: it is what images install, and its keys are the ones the identity renews.

use std::fs::{self, OpenOptions};
use std::io::Error;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::agent::Agent;
use crate::reap::{self, Child, Ending};
use crate::reply::Failure;
use crate::spawn::{Program, Refused, describe, environment, spawn};
use crate::tunnel::unreachable;

pub const PORT: u16 = 22;
const SERVERS: [&str; 3] = ["usr/sbin/sshd", "usr/local/sbin/sshd", "usr/bin/sshd"];

/// Where it looks, `/` in the machine, and the one who makes keys.
pub struct Ssh {
    root: PathBuf,
    making_keys: tokio::sync::Mutex<()>,
}

impl Ssh {
    pub fn new(root: PathBuf) -> Self {
        Self { root, making_keys: tokio::sync::Mutex::default() }
    }

    fn server(&self) -> Option<PathBuf> {
        SERVERS.iter().map(|path| self.root.join(path)).find(|path| path.is_file())
    }

    fn host_key(&self) -> PathBuf {
        self.root.join("etc/ssh/ssh_host_ed25519_key")
    }

    /// Of any kind: the user's configuration may name others than ours.
    fn has_host_key(&self) -> bool {
        let Ok(entries) = fs::read_dir(self.root.join("etc/ssh")) else { return false };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        names.into_iter().any(|name| name.starts_with("ssh_host_") && name.ends_with("_key"))
    }
}

/// The agent's end of a connection that a server of its own serves.
pub async fn serve_one(agent: &Arc<Agent>) -> Result<OwnedFd, Failure> {
    make_host_key(agent).await?;
    let worker = agent.clone();
    run(agent, move || start_server(&worker)).await?
}

/// The public CLI puts its user's key in place as a file and then runs sshd.
pub async fn expect_server(agent: &Arc<Agent>) {
    // The file is in place whether or not this image has a server; who starts one is told by it what is missing.
    let _ = make_host_key(agent).await;
}

async fn make_host_key(agent: &Arc<Agent>) -> Result<(), Failure> {
    // Two first connections at once make one key.
    let _turn = agent.ssh.making_keys.lock().await;
    let worker = agent.clone();
    let Some(ending) = run(agent, move || start_keygen(&worker)).await?? else { return Ok(()) };
    match ending.await {
        Ok(Ending::Exited(0)) => Ok(()),
        ending => Err(no_server(format!("ssh-keygen could not make a host key: {ending:?}"))),
    }
}

/// On a worker. None when there is a key.
fn start_keygen(agent: &Agent) -> Result<Option<oneshot::Receiver<Ending>>, Failure> {
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
    let (_, ending) = start(agent, "ssh-keygen".into(), args.into(), null, output)?;
    Ok(Some(ending))
}

/// On a worker. Each server is told that it serves one connection, which is its stdin and stdout.
fn start_server(agent: &Agent) -> Result<OwnedFd, Failure> {
    let failed = |error: Error| no_server(format!("sshd: {}", describe(&error)));
    let server = agent.ssh.server().ok_or_else(|| no_server("the image has no sshd".into()))?;
    make_privsep_directory(&agent.ssh.root).map_err(failed)?;
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let output = OwnedFd::from(theirs.try_clone().map_err(failed)?);
    // sshd starts itself again and wants its whole path for that.
    start(agent, server.display().to_string(), vec!["-i".into()], theirs.into(), output)?;
    Ok(ours.into())
}

/// sshd refuses to run without it, and /run is empty after every boot.
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
) -> Result<(Child, oneshot::Receiver<Ending>), Failure> {
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
    };
    let starting = reap::begin_start();
    let pid = spawn(&program).map_err(|refused| {
        let why = match &refused {
            Refused::NotFound => "not found".to_owned(),
            Refused::NotExecutable(error) | Refused::Cwd(error) | Refused::Other(error) => describe(error),
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
    agent.work.run(job).await.map_err(|error| Failure::internal("worker", &error))
}
