//! Starts a program, as cheaply as the kernel allows: `clone(CLONE_VM | CLONE_VFORK)`, which copies no page tables.
//! It is what glibc's posix_spawn does; ours because the child must also be born into a cgroup, fall back to another
//! directory and try each place on PATH, all without a second exec.
//!
//! What the child does between clone and exec is in `child.rs`. It blocks until the exec is done: call it on a worker
//! thread.

mod child;

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr::null;

use crate::agent::Agent;
use crate::reply::{Done, Failure};
use crate::sys::c_string;

use child::{Plan, Stage, clone_child};

pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub struct Program {
    pub cmd: String,
    /// What the program is told it is called, where that is not `cmd`: `-bash` is a login shell.
    pub name: Option<String>,
    pub args: Vec<String>,
    /// The whole environment. Its PATH is the one searched.
    pub env: BTreeMap<String, String>,
    /// None: /root, or / where there is no /root.
    pub cwd: Option<String>,
    pub stdin: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
    /// Whether stdin is a terminal that becomes the program's own.
    pub terminal: bool,
    /// The directory of the cgroup it is born into.
    pub cgroup: Option<OwnedFd>,
}

/// What every program has, then the sandbox's variables, then the request's.
pub fn environment(agent: &Agent, asked: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let usual = [("HOME", "/root"), ("LOGNAME", "root"), ("PATH", DEFAULT_PATH), ("USER", "root")];
    let mut env: BTreeMap<String, String> = usual.map(|(name, value)| (name.into(), value.into())).into();
    env.extend(agent.envs().as_ref().clone());
    env.extend(asked);
    env
}

/// What no program can be given.
pub fn check_strings<'a>(words: impl Iterator<Item = &'a String>, env: &'a BTreeMap<String, String>) -> Done {
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
pub enum Refused {
    /// 127 in the shell's words.
    NotFound,
    /// 126.
    NotExecutable(Error),
    Cwd(Error),
    Other(Error),
}

/// The pid is that of a new session and process group, led by the program.
pub fn spawn(program: &Program) -> std::result::Result<i32, Refused> {
    let prepared = Prepared::new(program).map_err(Refused::Other)?;
    if prepared.candidates.is_empty() {
        return Err(Refused::NotFound);
    }
    let mut plan = prepared.plan([&program.stdin, &program.stdout, &program.stderr].map(AsRawFd::as_raw_fd));
    plan.terminal = program.terminal;
    plan.cgroup = program.cgroup.as_ref().map_or(-1, AsRawFd::as_raw_fd);
    let pid = clone_child(&mut plan).map_err(Refused::Other)?;
    // The exit of a child that could not exec is reaped like any orphan's.
    let error = |number| Error::from_raw_os_error(number);
    match (plan.failed_at, plan.errno) {
        (Stage::Running, _) => Ok(pid),
        (Stage::Cwd, number) => Err(Refused::Cwd(error(number))),
        (Stage::Setup, number) => Err(Refused::Other(error(number))),
        (Stage::Exec, libc::ENOENT | libc::ENOTDIR) => Err(Refused::NotFound),
        (Stage::Exec, number @ (libc::EACCES | libc::EISDIR | libc::ENOEXEC | libc::EPERM | libc::ETXTBSY)) => {
            Err(Refused::NotExecutable(error(number)))
        }
        (Stage::Exec, number) => Err(Refused::Other(error(number))),
    }
}

/// Owns the strings that the child's pointers point at.
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
        // For a script without `#!`: /bin/sh, the script, its arguments. The script's place is filled when tried.
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
            failed_at: Stage::Running,
            errno: 0,
        }
    }
}

/// Where execvp would look: a name with a slash is a path; an empty entry of PATH is the current directory.
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
