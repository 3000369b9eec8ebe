//! A stand-in for the jail and QEMU that runs a sandbox without a virtual machine, for the bench.
//!
//! The host agent starts it with the command line of the jail (`WARREN_VMM_PROGRAM`). For a base, which is booted, saved and
//! compared as always, it executes the real jail. For a clone it starts the guest agent as a process of the machine, in
//! new namespaces, on the sockets that QEMU would have: what is then measured through the API is Warren without a guest.
//!
//! Order of events: join the cgroups, leave the machine's namespaces and fork, as the jail does. The child builds a root
//! file system from the machine's own programs, connects a network device to the sandbox's tap, starts the guest agent,
//! and answers the monitor's commands until it receives `quit` or is killed.
//!
//! It confines nothing: the guest agent is root, and files of the machine are readable. Never run foreign code in it.

mod command_line;
mod guest;
mod monitor;
mod network;
mod root;
mod sys;

use std::fs::{File, OpenOptions};
use std::io::{Result, Write};
use std::os::fd::FromRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use command_line::CommandLine;
use sys::check;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("native-vmm: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<()> {
    let options = CommandLine::parse(args)?;
    if !options.is_clone {
        return Err(Command::new(beside("jail/target/warren/jail")?).args(args).exec());
    }
    for cgroup in &options.cgroups {
        OpenOptions::new().write(true).open(cgroup)?.write_all(b"0")?;
    }
    let namespaces =
        libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    // SAFETY: no pointers.
    check(unsafe { libc::unshare(namespaces) })?;
    // SAFETY: the caller passes this descriptor for this program to own.
    let mut report = unsafe { File::from_raw_fd(options.report) };
    let agent = beside("guest-agent/target/warren/guest-agent")?;
    match sys::fork_sibling()? {
        0 => {
            let result = be_machine(&options, &agent, report);
            eprintln!("native-vmm: {result:?}");
            std::process::exit(1)
        }
        pid => report.write_all(format!("pid {pid}\n").as_bytes()),
    }
}

/// A program of the checkout that this one was built in, as native-vmm/target/warren/native-vmm.
fn beside(path: &str) -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let checkout = own.ancestors().nth(4).ok_or_else(|| std::io::Error::other("this program is not in a checkout"))?;
    Ok(checkout.join(path))
}

/// Returns only if it failed.
fn be_machine(options: &CommandLine, agent: &std::path::Path, report: File) -> Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::setsid() })?;
    // The guest agent gets none of QEMU's files, nor the report.
    sys::close_all_on_exec()?;
    if options.dies_with_parent {
        check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
    }
    root::enter(&options.work, &options.sockets, agent)?;
    network::connect()?;
    let guest = guest::start()?;
    let monitor = monitor::listen()?;
    // The caller reads the report until all of its descriptors are closed.
    drop(report);
    monitor::serve(&monitor, guest)
}
