//! The code that the child runs between clone and exec.
//!
//! The child runs in the parent's memory, on a separate stack, while the calling thread sleeps until exec or exit. So
//! it only makes system calls: no allocation, no locks, nothing that panics. Everything it needs is prepared in `Plan`
//! beforehand. Signals are blocked meanwhile, so that no signal handler of the agent runs in the child.

use std::io::{Error, Result};
use std::mem::MaybeUninit;
use std::os::fd::RawFd;

use crate::sys::check;

use super::RunAs;

const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

#[derive(Clone, Copy)]
pub enum Stage {
    Running,
    Setup,
    Cwd,
    Exec,
}

pub struct Plan {
    pub candidates: Vec<*const libc::c_char>,
    pub argv: Vec<*const libc::c_char>,
    pub shell_argv: Vec<*const libc::c_char>,
    pub env: Vec<*const libc::c_char>,
    pub cwd: *const libc::c_char,
    pub cwd_may_fall_back: bool,
    pub stdio: [RawFd; 3],
    pub terminal: bool,
    /// -1 if there is none.
    pub cgroup: RawFd,
    /// Set when the kernel cannot create a child inside a cgroup: the child then moves itself.
    pub enter_cgroup: bool,
    /// Null for root.
    pub run_as: *const RunAs,
    /// Written by the child and read by the parent: they share memory.
    pub failed_at: Stage,
    pub errno: libc::c_int,
}

/// The child needs a few hundred bytes. Allocated on the caller's stack, whose pages already exist.
const CHILD_STACK_BYTES: usize = 16 * 1024;
type Stack = [MaybeUninit<u128>; CHILD_STACK_BYTES / 16];

pub fn clone_child(plan: &mut Plan) -> Result<i32> {
    let mut stack: Stack = [MaybeUninit::uninit(); CHILD_STACK_BYTES / 16];
    // SAFETY: the signal sets are local.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let pid = match clone_into_cgroup(plan, &mut stack) {
            Some(pid) => pid,
            None => {
                plan.enter_cgroup = plan.cgroup >= 0;
                clone_plain(plan, &mut stack)
            }
        };
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        pid
    }
}

fn clone_plain(plan: &mut Plan, stack: &mut Stack) -> Result<i32> {
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the stack outlives the child's use of it, because CLONE_VFORK returns only after exec or exit; `plan` is
    // not accessed here until then.
    let pid = unsafe {
        let top = stack.as_mut_ptr().add(stack.len());
        libc::clone(run_child, top.cast(), flags, std::ptr::from_mut(plan).cast())
    };
    check(pid)
}

/// Creates the child inside the cgroup. Moving it there afterwards makes the kernel wait for a grace period, often 10
/// ms and more. libc has no wrapper for clone3, and a child on another stack could not return through one. None when
/// the kernel does not support it.
#[cfg(target_arch = "x86_64")]
fn clone_into_cgroup(plan: &mut Plan, stack: &mut Stack) -> Option<Result<i32>> {
    let cgroup = u64::try_from(plan.cgroup).ok()?;
    // SAFETY: all zeros is a valid clone_args.
    let mut wanted: libc::clone_args = unsafe { std::mem::zeroed() };
    wanted.flags = (libc::CLONE_VM | libc::CLONE_VFORK) as u64 | CLONE_INTO_CGROUP;
    wanted.exit_signal = libc::SIGCHLD as u64;
    wanted.stack = stack.as_mut_ptr() as u64;
    wanted.stack_size = size_of_val(stack) as u64;
    wanted.cgroup = cgroup;
    let result: i64;
    // SAFETY: as in `clone_plain`. The child continues with 0 on its own stack, whose top is aligned to 16 bytes, and
    // never leaves `run_child`; the parent finds all registers as the kernel preserves them.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone3 => result,
            in("rdi") &wanted,
            in("rsi") size_of::<libc::clone_args>(),
            in("r12") std::ptr::from_mut(plan),
            in("r13") run_child as extern "C" fn(*mut libc::c_void) -> libc::c_int,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    match i32::try_from(result) {
        Ok(pid) if pid > 0 => Some(Ok(pid)),
        Ok(error) if [libc::ENOSYS, libc::EINVAL, libc::E2BIG, libc::EPERM].contains(&-error) => None,
        Ok(error) => Some(Err(Error::from_raw_os_error(-error))),
        Err(_) => None,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn clone_into_cgroup(_: &mut Plan, _: &mut [u128]) -> Option<Result<i32>> {
    None
}

/// The signals that the agent handles or ignores; exec would keep an ignored signal ignored.
const RESET_SIGNALS: [libc::c_int; 6] =
    [libc::SIGPIPE, libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGUSR1, libc::SIGUSR2];

extern "C" fn run_child(argument: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the parent's Plan, valid and not accessed by the parent until exec or exit; only system calls below.
    unsafe {
        let plan = &mut *argument.cast::<Plan>();
        for number in RESET_SIGNALS {
            libc::signal(number, libc::SIG_DFL);
        }
        libc::setsid();
        if plan.enter_cgroup && !enter_cgroup(plan.cgroup) {
            return fail(plan, Stage::Setup);
        }
        let [stdin, stdout, stderr] = plan.stdio;
        if libc::dup2(stdin, 0) < 0 || libc::dup2(stdout, 1) < 0 || libc::dup2(stderr, 2) < 0 {
            return fail(plan, Stage::Setup);
        }
        if plan.terminal && libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
            return fail(plan, Stage::Setup);
        }
        // Closes descriptors that lack close-on-exec by mistake.
        libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32);
        let entered = libc::chdir(plan.cwd) == 0 || (plan.cwd_may_fall_back && libc::chdir(c"/".as_ptr()) == 0);
        if !entered {
            return fail(plan, Stage::Cwd);
        }
        // After the directory was entered, which the user may not be allowed to.
        if !plan.run_as.is_null() && !become_user(&*plan.run_as) {
            return fail(plan, Stage::Setup);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
        exec_first_candidate(plan)
    }
}

unsafe fn enter_cgroup(directory: RawFd) -> bool {
    // SAFETY: system calls on constants and an open directory.
    unsafe {
        let fd = libc::openat(directory, c"cgroup.procs".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        fd >= 0 && libc::write(fd, c"0".as_ptr().cast(), 1) == 1
    }
}

/// Not the functions of libc: they change all threads of the process, and these are the agent's.
unsafe fn become_user(user: &RunAs) -> bool {
    // SAFETY: system calls on values and on a list with its length.
    unsafe {
        libc::umask(user.umask);
        libc::syscall(libc::SYS_setgroups, user.groups.len(), user.groups.as_ptr()) == 0
            && libc::syscall(libc::SYS_setresgid, user.gid, user.gid, user.gid) == 0
            && libc::syscall(libc::SYS_setresuid, user.uid, user.uid, user.uid) == 0
    }
}

/// Like execvp: candidates that do not exist are skipped; a permission error is remembered while trying the rest.
unsafe fn exec_first_candidate(plan: &mut Plan) -> libc::c_int {
    let mut outcome = libc::ENOENT;
    // SAFETY: all arrays end in null and point to strings that the parent keeps alive.
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
                // The last is that of a disk that is not mounted at the moment.
                libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT | libc::ENOTCONN => {}
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
    fail(plan, Stage::Exec)
}

fn fail(plan: &mut Plan, stage: Stage) -> libc::c_int {
    plan.failed_at = stage;
    // SAFETY: errno of the sleeping parent's thread, which is shared. _exit runs no exit handlers of the parent.
    unsafe {
        plan.errno = *libc::__errno_location();
        libc::_exit(127)
    }
}
