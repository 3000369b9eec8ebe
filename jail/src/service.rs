//! The jail of Warren's own services: PostgreSQL, the control plane and others.
//!
//! Order of events: the jail leaves the machine's namespaces and forks an init, which is the first process of a new pid
//! namespace. The init builds the root directory, gives up all privileges, and forks the program. Then it reports that it
//! is ready, and the jail gives up its own privileges as well. Three processes remain:
//!
//!   jail      a child of the caller, who sees its exit and sends it signals
//!   init      collects orphans; the kernel kills everything in the jail when it ends
//!   program   has the descriptors that the caller passed; the other two have closed theirs
//!
//! Signals for the jail are passed on to the program. When the program ends, the jail ends in the same way, with its exit
//! code or by its signal. When the caller ends, the program gets the signal that was asked for. When the jail is killed,
//! so is everything in it.

mod options;
mod root;
mod seccomp;

use std::fs::File;
use std::io::{Error, Read, Write};
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::ptr::null_mut;

use crate::privileges::{self, Identity};
use crate::sys::{self, Failure, Step, check};
use options::Options;

/// What the init reports first. The program's wait status follows when it has ended.
const READY: u8 = 1;
/// Not passed on: the first is for the receiver, the others stop a process that reads from a terminal.
const OWN_SIGNALS: [libc::c_int; 4] = [libc::SIGCHLD, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

pub fn main(args: impl Iterator<Item = String>) -> ExitCode {
    let options = match Options::parse(args) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("jail: {message}");
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(status) => end_like(status),
        Err(failure) => {
            eprintln!("jail: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the wait status of the program.
fn run(options: &Options) -> Result<libc::c_int, Failure> {
    let callers_mask = block_signals().step("block signals")?;
    privileges::limit(&[])?;
    let network = if options.network { 0 } else { libc::CLONE_NEWNET };
    let namespaces = libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS | network;
    // SAFETY: this process has one thread and shares nothing with another one.
    check(unsafe { libc::unshare(namespaces) }).step(
        "leave the namespaces of the machine (root needs CAP_SYS_ADMIN for that; a container must be privileged)",
    )?;
    let (mut reports, reporter) = make_pipe().step("make a pipe")?;
    // SAFETY: this process has one thread.
    let init = match check(unsafe { libc::fork() }).step("fork")? {
        0 => {
            drop(reports);
            run_init(options, reporter, &callers_mask)
        }
        pid => pid,
    };
    drop(reporter);
    follow_caller(options)?;
    let mut ready = [0];
    if reports.read(&mut ready).step("wait for the jail")? == 1 {
        // What only set up is over, so this process needs no rights but that to signal the init.
        privileges::drop(&identity(options))?;
        follow_caller(options)?;
        close_all_but(reports.as_raw_fd());
    }
    let status = pass_signals_until_end(init);
    let mut program_status = [0; 4];
    match reports.read_exact(&mut program_status) {
        Ok(()) => Ok(libc::c_int::from_ne_bytes(program_status)),
        Err(_) => Ok(status), // The init failed or was killed.
    }
}

fn identity(options: &Options) -> Identity<'_> {
    Identity { uid: options.uid, gid: options.gid, groups: &options.groups }
}

/// The death signal of the jail is passed on like any other.
fn follow_caller(options: &Options) -> Result<(), Failure> {
    // SAFETY: no pointers.
    unsafe {
        check(libc::prctl(libc::PR_SET_PDEATHSIG, options.death_signal, 0, 0, 0)).step("follow the caller's end")?;
        // A caller that ended before that sends no signal.
        if libc::getppid() != options.parent {
            return Err(Failure::new("find the caller", Error::from_raw_os_error(libc::ESRCH)));
        }
    }
    Ok(())
}

/// The first process in the jail.
fn run_init(options: &Options, mut reporter: File, callers_mask: &libc::sigset_t) -> ! {
    let program = match start_program(options, &reporter, callers_mask) {
        Ok(pid) => pid,
        Err(failure) => {
            eprintln!("jail: {failure}");
            std::process::exit(1);
        }
    };
    let _ = reporter.write_all(&[READY]); // Fails only if the jail was killed, and then this process is as well.
    close_all_but(reporter.as_raw_fd());
    let status = pass_signals_until_end(program);
    let _ = reporter.write_all(&status.to_ne_bytes());
    std::process::exit(0)
}

fn start_program(options: &Options, reporter: &File, callers_mask: &libc::sigset_t) -> Result<libc::pid_t, Failure> {
    // SAFETY: no pointers, or pointers to constants.
    check(unsafe { libc::setsid() }).step("start a session")?;
    root::enter(options)?;
    privileges::limit(&options.limits)?;
    privileges::drop(&identity(options))?;
    privileges::follow_parent(libc::SIGKILL, reporter.as_raw_fd())?;
    // SAFETY: this process has one thread.
    match check(unsafe { libc::fork() }).step("fork")? {
        0 => {
            let failure = become_program(options, callers_mask);
            eprintln!("jail: {failure}");
            std::process::exit(127)
        }
        pid => Ok(pid),
    }
}

/// Returns only if it failed.
fn become_program(options: &Options, callers_mask: &libc::sigset_t) -> Failure {
    // SAFETY: a pointer to a signal set.
    let prepared = check(unsafe { libc::setsid() })
        .step("start a session")
        .and_then(|_| {
            check(unsafe { libc::sigprocmask(libc::SIG_SETMASK, callers_mask, null_mut()) }).step("unblock signals")
        })
        .and_then(|_| seccomp::install(options.ip_only).step("filter system calls"));
    if let Err(failure) = prepared {
        return failure;
    }
    let error = Command::new(&options.program).args(&options.args).exec();
    Failure::new(&format!("execute {}", options.program), error)
}

/// Returns the wait status of the child, and collects all others that end before.
fn pass_signals_until_end(child: libc::pid_t) -> libc::c_int {
    loop {
        // SAFETY: pointers to local values.
        let signal = unsafe {
            let mut all: libc::sigset_t = zeroed();
            libc::sigfillset(&mut all);
            libc::sigwaitinfo(&all, null_mut())
        };
        if signal == libc::SIGCHLD {
            if let Some(status) = collect(child) {
                return status;
            }
        } else if signal > 0 && !OWN_SIGNALS.contains(&signal) {
            // SAFETY: no pointers. It fails only if the child has just ended, which SIGCHLD reports.
            unsafe { libc::kill(child, signal) };
        }
    }
}

fn collect(child: libc::pid_t) -> Option<libc::c_int> {
    loop {
        let mut status = 0;
        // SAFETY: a pointer to a local value.
        match unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) } {
            pid if pid == child => return Some(status),
            pid if pid <= 0 => return None,
            _ => {}
        }
    }
}

/// Ends this process in the way in which another has ended.
fn end_like(status: libc::c_int) -> ExitCode {
    if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        // SAFETY: no pointers, except to a local value.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            let mut only: libc::sigset_t = zeroed();
            libc::sigemptyset(&mut only);
            libc::sigaddset(&mut only, signal);
            libc::sigprocmask(libc::SIG_UNBLOCK, &only, null_mut());
            libc::raise(signal);
        }
    }
    ExitCode::from(libc::WEXITSTATUS(status) as u8)
}

/// Signals wait from now on until `pass_signals_until_end` takes them. Returns the previous mask.
fn block_signals() -> std::io::Result<libc::sigset_t> {
    // SAFETY: pointers to local values.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = (zeroed(), zeroed());
        libc::sigfillset(&mut all);
        check(libc::sigprocmask(libc::SIG_SETMASK, &all, &mut before))?;
        Ok(before)
    }
}

fn make_pipe() -> std::io::Result<(File, File)> {
    let mut ends = [0; 2];
    // SAFETY: a pointer to two numbers; the new descriptors have no other owner.
    unsafe {
        check(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC))?;
        Ok((File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])))
    }
}

/// The caller must see the end of a pipe or channel as soon as the program closes it.
fn close_all_but(kept: libc::c_int) {
    sys::close_range(0, kept - 1);
    sys::close_range(kept + 1, libc::c_int::MAX);
}
