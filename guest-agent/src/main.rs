//! The lifecycle of PID 1:
//!
//!   1. The kernel starts the agent as /init of the initramfs. It mounts /dev, /proc and /sys, loads the kernel modules
//!      packed into the initramfs, waits for the disk, and makes the disk the root without leaving this process
//!      (`boot.rs`).
//!   2. It sets up the machine: mounts, limits, network, host names (`machine.rs`).
//!   3. It opens the two ports to the host, which stay open from then on, and serves one host connection after another
//!      (`channel.rs`). Meanwhile it reaps every orphan (`reaper.rs`), manages processes (`processes.rs`) and accepts
//!      self-signals from programs in the sandbox (`self_signal.rs`).
//!   4. On SIGTERM, on the signals that `halt` and `poweroff` of busybox and others send to init, and on POST /poweroff,
//!      it stops all processes and turns the machine off (`shutdown.rs`).
//!
//! If the agent dies, the kernel panics and the machine is lost. No input from outside may therefore cause a panic.
//!
//! When it is not PID 1, the agent does not touch the machine and only serves requests: on unix sockets with
//! `--listen-unix PATH` (the agent port is PATH, the hello port PATH.hello), or on devices with `--ports AGENT HELLO`.
//! `--self PORT PIPE` after either also accepts self-signals on that loopback port and that named pipe.

use std::fs::File;
use std::io::{Error, Result};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use guest_agent::agent::Agent;
use guest_agent::channel::Channel;
use guest_agent::kmsg::log;
use guest_agent::mounts::{MountProgramFile, ProgramFile, Stages};
use guest_agent::port::Port;
use guest_agent::self_signal::{self, PIPE, PORT};
use guest_agent::virtio_ports::{Ports, open_ports};
use guest_agent::{boot, machine, processes, reaper, shutdown, sys};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Where mount programs stage changes, on the disk of the machine.
const STAGES: &str = "/var/lib/warren/disks";

fn main() -> ExitCode {
    sys::configure_heap();
    // SAFETY: plain umask. Files created for the user then have exactly the requested modes.
    unsafe { libc::umask(0o022) };
    let is_init = std::process::id() == 1;
    if is_init {
        restore_default_faults();
    }
    let result = if is_init { start_machine() } else { Ok(None) };
    let result = result.and_then(|mount_program| serve(is_init, mount_program));
    if let Err(error) = result {
        log(&format!("fatal: {error}"));
    }
    if is_init {
        shutdown::turn_off();
    }
    ExitCode::FAILURE
}

/// The kernel drops signals that the init process has no handler for, unless a real fault raised them. Rust's runtime has
/// a handler for stack overflows, which can abort when a process in the guest sends the signal.
fn restore_default_faults() {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: no other thread exists yet, and the default action runs no code.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Without an initramfs there is none, unless the environment names one, and a folder for what it stages.
fn given_mount_program() -> Option<MountProgramFile> {
    let program = std::env::var_os("WARREN_BUCKET_MOUNT")?;
    let stages = std::env::var_os("WARREN_BUCKET_STAGES")?;
    Some(MountProgramFile { file: ProgramFile::Path(program.into()), stages: Stages::at(stages.into()) })
}

/// Returns the mount program.
fn start_machine() -> Result<Option<File>> {
    boot::mount_early()?;
    let command_line = boot::read_command_line();
    let mut mount_program = None;
    if boot::is_initramfs() {
        mount_program = boot::enter_root(&command_line)?;
    }
    machine::set_up(&command_line);
    Ok(mount_program)
}

fn serve(is_init: bool, mount_program: Option<File>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let agent = Agent::new(is_init);
    let stages = || Stages::in_root(&agent.own_root, Path::new(STAGES));
    let booted = mount_program.map(|file| MountProgramFile { file: ProgramFile::Open(file), stages: stages() });
    if let Some(program) = if is_init { booted } else { given_mount_program() } {
        agent.mounts.set_program(program);
    }
    runtime.block_on(async {
        let arguments = Arguments::read();
        let ports = if is_init { open_ports().await? } else { arguments.ports()? };
        let mut signals = termination_signals()?;
        reaper::inherit_orphans();
        if is_init {
            agent.trees.root();
        }
        if let Some((port, pipe)) = if is_init { Some((PORT, PIPE.into())) } else { arguments.self_signals()? } {
            listen_for_signals(&agent, port, pipe).await;
        }
        tokio::spawn(processes::watch_trees(agent.clone()));
        let channel = Channel::new(ports, agent.clone());
        if is_init {
            log("ready");
        }
        tokio::select! {
            () = channel.run() => Ok(()),
            reaped = reaper::run() => reaped,
            () = shutdown_requested(&agent, &mut signals) => {
                if is_init {
                    shutdown::power_off().await;
                }
                agent.processes.kill_all();
                agent.trees.remove();
                std::process::exit(0)
            }
        }
    })
}

/// If the port is already in use, the failure is logged and the named pipe still works.
async fn listen_for_signals(agent: &Arc<Agent>, port: u16, pipe: PathBuf) {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
        Ok(listener) => drop(tokio::spawn(self_signal::serve_http(agent.clone(), listener))),
        Err(error) => log(&format!("failed to listen for self-signals on port {port}: {error}")),
    }
    let agent = agent.clone();
    tokio::spawn(async move { self_signal::serve_pipe(agent, &pipe).await });
}

/// Command line arguments; used only when the agent is not PID 1.
struct Arguments(Vec<String>);

impl Arguments {
    fn read() -> Self {
        Self(std::env::args().skip(1).collect())
    }

    fn words(&self) -> Vec<&str> {
        self.0.iter().map(String::as_str).collect()
    }

    fn ports(&self) -> Result<Ports> {
        match self.words().as_slice() {
            ["--listen-unix", path] | ["--listen-unix", path, "--self", _, _] => {
                let hello = PathBuf::from(format!("{path}.hello"));
                Ok(Ports { hello: Port::listen(&hello)?, data: Port::listen(Path::new(path))? })
            }
            ["--ports", data, hello] | ["--ports", data, hello, "--self", _, _] => {
                Ok(Ports { hello: Port::open(Path::new(hello))?, data: Port::open(Path::new(data))? })
            }
            _ => Err(Error::other("usage: guest-agent --listen-unix PATH | --ports AGENT HELLO, [--self PORT PIPE]")),
        }
    }

    fn self_signals(&self) -> Result<Option<(u16, PathBuf)>> {
        match self.words().as_slice() {
            [.., "--self", port, pipe] => {
                let port = port.parse().map_err(|_| Error::other("--self PORT PIPE: PORT is not a port number"))?;
                Ok(Some((port, PathBuf::from(pipe))))
            }
            _ => Ok(None),
        }
    }
}

/// SIGTERM, and SIGUSR1 and SIGUSR2, which halt and poweroff of busybox send.
fn termination_signals() -> Result<[Signal; 3]> {
    Ok([signal(SignalKind::terminate())?, signal(SignalKind::user_defined1())?, signal(SignalKind::user_defined2())?])
}

async fn shutdown_requested(agent: &Arc<Agent>, [terminate, halt, power_off]: &mut [Signal; 3]) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = halt.recv() => {}
        _ = power_off.recv() => {}
        () = agent.power_off.notified() => {
            // Gives the response to POST /poweroff time to reach the host.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
