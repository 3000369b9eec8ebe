//! Starts a program, as cheaply as the kernel allows: `clone(CLONE_VM | CLONE_VFORK)`, which copies no page tables.
//! It is what glibc's posix_spawn does; ours because the child must also leave the agent's out-of-memory protection,
//! fall back to another directory and try each place on PATH, all without a second exec.
//!
//! The child runs in OUR memory on a stack of its own while the calling thread sleeps, until exec or exit. So between
//! clone and exec there are only system calls: no allocation, no lock, nothing that panics. Everything it needs is
//! prepared in `Plan` before. Signals are blocked meanwhile, so no handler of ours runs in the child.
//!
//! It blocks until the exec is done: call it on a worker thread.

use std::ffi::{CStr, CString};
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr::null;

use crate::sys::c_string;

pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub struct Program {
    pub cmd: String,
    pub args: Vec<String>,
    /// The whole environment. Its PATH is the one searched.
    pub env: Vec<(String, String)>,
    /// None: /root, or / where there is no /root.
    pub cwd: Option<String>,
    pub stdin: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
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
        let mut argv = vec![c_string(&program.cmd)?];
        for arg in &program.args {
            argv.push(c_string(arg)?);
        }
        let mut env = Vec::new();
        for (name, value) in &program.env {
            env.push(c_string(format!("{name}={value}"))?);
        }
        let path = program.env.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_str());
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

#[derive(Clone, Copy)]
enum Stage {
    Running,
    Setup,
    Cwd,
    Exec,
}

struct Plan {
    candidates: Vec<*const libc::c_char>,
    argv: Vec<*const libc::c_char>,
    shell_argv: Vec<*const libc::c_char>,
    env: Vec<*const libc::c_char>,
    cwd: *const libc::c_char,
    cwd_may_fall_back: bool,
    stdio: [RawFd; 3],
    /// Written by the child, read by the parent: they share memory.
    failed_at: Stage,
    errno: libc::c_int,
}

/// The child needs a few hundred bytes; a page boundary more does no harm.
const CHILD_STACK_BYTES: usize = 32 * 1024;

fn clone_child(plan: &mut Plan) -> Result<i32> {
    let mut stack = vec![0u128; CHILD_STACK_BYTES / 16];
    // SAFETY: the stack outlives the child's use of it, since CLONE_VFORK returns only after exec or exit; `plan`
    // is not touched by us until then. The signal sets are local.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let top = stack.as_mut_ptr().add(stack.len());
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        let pid = libc::clone(run_child, top.cast(), flags, std::ptr::from_mut(plan).cast());
        let failure = Error::last_os_error();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        if pid < 0 { Err(failure) } else { Ok(pid) }
    }
}

/// The signals the agent handles or ignores; exec would keep an ignored one ignored.
const OURS: [libc::c_int; 6] =
    [libc::SIGPIPE, libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGUSR1, libc::SIGUSR2];

extern "C" fn run_child(argument: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the parent's Plan, alive and untouched until we exec or exit; only system calls below.
    unsafe {
        let plan = &mut *argument.cast::<Plan>();
        for number in OURS {
            libc::signal(number, libc::SIG_DFL);
        }
        libc::setsid();
        let [stdin, stdout, stderr] = plan.stdio;
        if libc::dup2(stdin, 0) < 0 || libc::dup2(stdout, 1) < 0 || libc::dup2(stderr, 2) < 0 {
            return give_up(plan, Stage::Setup);
        }
        // Whatever is not close-on-exec by mistake ends here too.
        libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32);
        leave_oom_protection();
        let entered = libc::chdir(plan.cwd) == 0 || (plan.cwd_may_fall_back && libc::chdir(c"/".as_ptr()) == 0);
        if !entered {
            return give_up(plan, Stage::Cwd);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
        try_all(plan)
    }
}

/// Children are ordinary prey of the out-of-memory killer; only the agent is not.
unsafe fn leave_oom_protection() {
    const FILE: &CStr = c"/proc/self/oom_score_adj";
    // SAFETY: system calls on constants. Without /proc there was no protection to leave.
    unsafe {
        let fd = libc::open(FILE.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if fd >= 0 {
            libc::write(fd, c"0".as_ptr().cast(), 1);
            libc::close(fd);
        }
    }
}

/// As execvp: a place that has no such file is passed over; one that may not be run is remembered while looking on.
unsafe fn try_all(plan: &mut Plan) -> libc::c_int {
    let mut outcome = libc::ENOENT;
    // SAFETY: all arrays end in null and point to strings the parent keeps.
    unsafe {
        let mut candidate = plan.candidates.as_ptr();
        while !(*candidate).is_null() {
            libc::execve(*candidate, plan.argv.as_ptr(), plan.env.as_ptr());
            match *libc::__errno_location() {
                libc::ENOEXEC => {
                    *plan.shell_argv.as_mut_ptr().add(1) = *candidate;
                    libc::execve(c"/bin/sh".as_ptr(), plan.shell_argv.as_ptr(), plan.env.as_ptr());
                    outcome = libc::ENOEXEC;
                    break;
                }
                libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT => {}
                libc::EACCES => outcome = libc::EACCES,
                other => {
                    outcome = other;
                    break;
                }
            }
            candidate = candidate.add(1);
        }
        *libc::__errno_location() = outcome;
    }
    give_up(plan, Stage::Exec)
}

fn give_up(plan: &mut Plan, stage: Stage) -> libc::c_int {
    plan.failed_at = stage;
    // SAFETY: errno of the sleeping parent's thread, which we share. _exit runs no handlers of the parent's.
    unsafe {
        plan.errno = *libc::__errno_location();
        libc::_exit(127)
    }
}
