//! The jail of QEMU.
//!
//! Order of events: the jail joins the cgroups, leaves the machine's namespaces and forks. The child, which is the first
//! process of a new pid namespace, builds its file system, gives up all privileges and executes the program. The jail
//! itself writes the child's pid to the report and exits: the child is a child of the jail's own caller.
//!
//! The report is a descriptor of the caller. It receives `pid N`, or a message that begins with `error`, and is closed
//! when the program has been executed.

mod file_system;
mod options;
mod seccomp;

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::FromRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use crate::privileges::{self, Identity};
use crate::sys::{self, Failure, Step, check};
use options::Options;

pub fn main(args: impl Iterator<Item = String>) -> ExitCode {
    let options = match Options::parse(args) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("jail: {message}");
            return ExitCode::from(2);
        }
    };
    // SAFETY: the caller passes this descriptor for the jail to own.
    let mut report = unsafe { File::from_raw_fd(options.report) };
    match start(&options, &mut report) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            tell(&mut report, &format!("error {failure}\n"));
            ExitCode::FAILURE
        }
    }
}

fn start(options: &Options, report: &mut File) -> Result<(), Failure> {
    sys::close_on_exec(options.report).step("keep the report from the program")?;
    for cgroup in &options.cgroups {
        // `0` is the writer.
        let joined = OpenOptions::new().write(true).open(cgroup).and_then(|mut file| file.write_all(b"0"));
        joined.step(&format!("join the cgroup {cgroup}"))?;
    }
    if let Some(score) = options.oom_score {
        std::fs::write("/proc/self/oom_score_adj", score.to_string()).step("set the score for the lack of memory")?;
    }
    let namespaces = libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP;
    // SAFETY: this process has one thread and shares nothing with another one.
    check(unsafe { libc::unshare(namespaces) }).step("leave the namespaces of the machine")?;
    match sys::fork_sibling().step("fork")? {
        0 => {
            let failure = become_program(options);
            tell(report, &format!("error {failure}\n"));
            std::process::exit(1)
        }
        pid => {
            tell(report, &format!("pid {pid}\n"));
            Ok(())
        }
    }
}

/// One write, because the jail and the child both write. It fails only if the caller has ended.
fn tell(report: &mut File, line: &str) {
    let _ = report.write_all(line.as_bytes());
}

/// Returns only if it failed.
fn become_program(options: &Options) -> Failure {
    if let Err(failure) = confine(options) {
        return failure;
    }
    let mut program = Command::new(&options.program);
    let error = program.args(&options.args).exec();
    Failure::new(&format!("execute {}", options.program), error)
}

fn confine(options: &Options) -> Result<(), Failure> {
    // SAFETY: no pointers, or pointers to constants.
    check(unsafe { libc::setsid() }).step("start a session")?;
    check(unsafe { libc::sethostname(c"jail".as_ptr(), 4) }).step("set the host name")?;
    file_system::enter(options)?;
    privileges::limit(&options.limits)?;
    privileges::drop(&Identity { uid: options.uid, gid: options.gid, groups: &options.groups })?;
    if options.dies_with_parent {
        privileges::follow_parent(libc::SIGKILL, options.report)?;
    }
    // Last: the filter allows what QEMU needs, which is not what the steps above need.
    if options.filter_system_calls {
        seccomp::install().step("filter system calls")?;
    }
    Ok(())
}
