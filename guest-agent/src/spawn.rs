//! Starts a program with `clone(CLONE_VM | CLONE_VFORK)`, which copies no page tables, like glibc's posix_spawn.
//! posix_spawn itself is not enough: the child must also be created in a cgroup, fall back to another directory and try
//! every entry of PATH, all without a second exec.
//!
//! `child.rs` is the code that the child runs between clone and exec. `spawn` blocks until the exec is done, so it must
//! run on a worker thread.

mod child;

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr::null;

use crate::agent::Agent;
use crate::reply::{Failure, HandlerResult};
use crate::sys::c_string;

use child::{Plan, Stage, clone_child};

pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub struct Program {
    pub cmd: String,
    /// argv[0] if it differs from `cmd`: `-bash` is a login shell.
    pub name: Option<String>,
    pub args: Vec<String>,
    /// The complete environment. Its PATH is searched for `cmd`.
    pub env: BTreeMap<String, String>,
    /// None means /root, or / if there is no /root.
    pub cwd: Option<String>,
    pub stdin: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
    /// Whether stdin is a terminal that becomes the program's controlling terminal.
    pub terminal: bool,
    /// The directory of the cgroup in which the program is created.
    pub cgroup: Option<OwnedFd>,
    /// None means root, with the agent's umask.
    pub run_as: Option<RunAs>,
}

pub struct RunAs {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub umask: u32,
}

/// The default variables, overridden by the operator's, by the image's, by the sandbox's, and by those of the request.
pub fn environment(agent: &Agent, requested: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let defaults = [("HOME", "/root"), ("LOGNAME", "root"), ("PATH", DEFAULT_PATH), ("USER", "root")];
    let mut env: BTreeMap<String, String> = defaults.map(|(name, value)| (name.into(), value.into())).into();
    env.extend(agent.default_envs().as_ref().clone());
    env.extend(agent.image_envs().clone());
    env.extend(agent.envs().as_ref().clone());
    env.extend(requested);
    env
}

/// Rejects strings that cannot be passed to a program.
pub fn check_strings<'a>(words: impl Iterator<Item = &'a String>, env: &'a BTreeMap<String, String>) -> HandlerResult {
    if words.chain(env.values()).chain(env.keys()).any(|text| text.contains('\0')) {
        return Err(Failure::invalid("a NUL byte cannot be passed to a program").into());
    }
    if env.keys().any(|name| name.is_empty() || name.contains('=')) {
        return Err(Failure::invalid("env: a name is empty or contains =").into());
    }
    Ok(())
}

/// "Permission denied", without Rust's "(os error 13)".
pub fn describe(error: &Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

#[derive(Debug)]
pub enum SpawnError {
    /// Exit code 127 in a shell.
    NotFound,
    /// Exit code 126 in a shell.
    NotExecutable(Error),
    Cwd(Error),
    Other(Error),
}

/// Returns the pid of the program, which leads a new session and process group.
pub fn spawn(program: &Program) -> std::result::Result<i32, SpawnError> {
    let prepared = Prepared::new(program).map_err(SpawnError::Other)?;
    if prepared.candidates.is_empty() {
        return Err(SpawnError::NotFound);
    }
    let mut plan = prepared.plan([&program.stdin, &program.stdout, &program.stderr].map(AsRawFd::as_raw_fd));
    plan.terminal = program.terminal;
    plan.cgroup = program.cgroup.as_ref().map_or(-1, AsRawFd::as_raw_fd);
    plan.run_as = program.run_as.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let pid = clone_child(&mut plan).map_err(SpawnError::Other)?;
    // A child that failed to exec is reaped like any orphan.
    let error = |number| Error::from_raw_os_error(number);
    match (plan.failed_at, plan.errno) {
        (Stage::Running, _) => Ok(pid),
        (Stage::Cwd, number) => Err(SpawnError::Cwd(error(number))),
        (Stage::Setup, number) => Err(SpawnError::Other(error(number))),
        (Stage::Exec, libc::ENOENT | libc::ENOTDIR) => Err(SpawnError::NotFound),
        (Stage::Exec, number @ (libc::EACCES | libc::EISDIR | libc::ENOEXEC | libc::EPERM | libc::ETXTBSY)) => {
            Err(SpawnError::NotExecutable(error(number)))
        }
        (Stage::Exec, number) => Err(SpawnError::Other(error(number))),
    }
}

/// Owns the strings that the child's pointers refer to.
struct Prepared {
    candidates: Vec<CString>,
    argv: Vec<CString>,
    env: Vec<CString>,
    cwd: CString,
    cwd_may_fall_back: bool,
}

impl Prepared {
    fn new(program: &Program) -> Result<Self> {
        let mut argv = vec![c_string(program.name.as_ref().unwrap_or(&program.cmd))?];
        for arg in &program.args {
            argv.push(c_string(arg)?);
        }
        let mut env = Vec::new();
        for (name, value) in &program.env {
            env.push(c_string(format!("{name}={value}"))?);
        }
        let path = program.env.get("PATH").map(String::as_str);
        Ok(Self {
            candidates: candidates(&program.cmd, path.unwrap_or(DEFAULT_PATH))?,
            argv,
            env,
            cwd: c_string(program.cwd.as_deref().unwrap_or("/root"))?,
            cwd_may_fall_back: program.cwd.is_none(),
        })
    }

    fn plan(&self, stdio: [RawFd; 3]) -> Plan {
        let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
            strings.iter().map(|string| string.as_ptr()).chain([null()]).collect()
        };
        // For a script without `#!`: /bin/sh, the script, its arguments. The script's position is filled in when it is
        // tried.
        let mut shell_argv = vec![c"/bin/sh".as_ptr(), null()];
        shell_argv.extend(self.argv.iter().skip(1).map(|arg| arg.as_ptr()));
        shell_argv.push(null());
        Plan {
            candidates: pointers(&self.candidates),
            argv: pointers(&self.argv),
            shell_argv,
            env: pointers(&self.env),
            cwd: self.cwd.as_ptr(),
            cwd_may_fall_back: self.cwd_may_fall_back,
            stdio,
            terminal: false,
            cgroup: -1,
            enter_cgroup: false,
            run_as: null(),
            failed_at: Stage::Running,
            errno: 0,
        }
    }
}

/// The paths that execvp would try: a name with a slash is a path; an empty entry of PATH is the current directory.
fn candidates(cmd: &str, path: &str) -> Result<Vec<CString>> {
    if cmd.is_empty() {
        return Ok(Vec::new());
    }
    if cmd.contains('/') {
        return Ok(vec![c_string(cmd)?]);
    }
    let place = |dir: &str| if dir.is_empty() { c_string(cmd) } else { c_string(format!("{dir}/{cmd}")) };
    path.split(':').map(place).collect()
}
