//! The life of PID 1.
//!
//!   1. The kernel starts us as /init of the initramfs. We mount /dev, /proc and /sys, load the modules packed beside
//!      us, wait for the disk, and make it the root without leaving this process (`boot.rs`).
//!   2. We make the root a machine: mounts, limits, network, names (`machine.rs`). We protect ourselves from the
//!      out-of-memory killer; whoever we start loses that protection (`spawn.rs`).
//!   3. We open the two ports to the host, once and for ever, and serve one host connection after the other
//!      (`channel.rs`), while reaping every orphan of the machine (`reap.rs`), keeping its managed processes
//!      (`processes.rs`) and listening for what it asks for itself (`self_signal.rs`).
//!   4. On SIGTERM, on the signals by which busybox's and others' `poweroff` ask their init, and on POST /poweroff,
//!      we end everything and turn the machine off (`shutdown.rs`).
//!
//! If we die, the kernel panics and the machine is gone: nothing below may panic on what the outside does.
//!
//! Started as anything but PID 1, the agent touches nothing of the machine and only serves: on unix sockets with
//! `--listen-unix PATH` (the agent port is PATH, the hello port PATH.hello), or on devices with `--ports AGENT HELLO`.
//! `--self PORT PIPE` behind either also listens for self-signals there, on loopback and on a named pipe.

use std::io::{Error, Result};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use guest_agent::agent::Agent;
use guest_agent::channel::Channel;
use guest_agent::kmsg::say;
use guest_agent::port::Port;
use guest_agent::ports::{Ports, open_ports};
use guest_agent::self_signal::{self, PIPE, PORT};
use guest_agent::{boot, machine, processes, reap, shutdown, sys};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

fn main() -> ExitCode {
    sys::keep_the_heap_small();
    // SAFETY: plain umask; files we make for the user have exactly the modes we name.
    unsafe { libc::umask(0o022) };
    let is_init = std::process::id() == 1;
    let result = if is_init { start_machine() } else { Ok(()) }.and_then(|()| serve(is_init));
    if let Err(error) = result {
        say(&format!("cannot go on: {error}"));
    }
    if is_init {
        shutdown::turn_off();
    }
    ExitCode::FAILURE
}

fn start_machine() -> Result<()> {
    boot::mount_early()?;
    let command_line = boot::read_command_line();
    if boot::is_initramfs() {
        boot::enter_root(&command_line)?;
    }
    machine::set_up(&command_line);
    Ok(())
}

fn serve(is_init: bool) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let agent = Agent::new(is_init);
    runtime.block_on(async {
        let arguments = Arguments::read();
        let ports = if is_init { open_ports().await? } else { arguments.ports()? };
        let mut ends = ending_signals()?;
        reap::inherit_orphans();
        if is_init {
            agent.trees.root();
        }
        if let Some((port, pipe)) = if is_init { Some((PORT, PIPE.into())) } else { arguments.self_signals()? } {
            listen_for_signals(&agent, port, pipe).await;
        }
        tokio::spawn(processes::watch_trees(agent.clone()));
        let channel = Channel::new(ports, agent.clone());
        if is_init {
            say("ready");
        }
        tokio::select! {
            () = channel.run() => Ok(()),
            reaped = reap::run() => reaped,
            () = asked_to_end(&agent, &mut ends) => {
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

/// A machine whose loopback is taken by somebody else still serves: the pipe is there, and the log says so.
async fn listen_for_signals(agent: &Arc<Agent>, port: u16, pipe: PathBuf) {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
        Ok(listener) => drop(tokio::spawn(self_signal::serve_http(agent.clone(), listener))),
        Err(error) => say(&format!("self-signals on port {port}: {error}")),
    }
    let agent = agent.clone();
    tokio::spawn(async move { self_signal::serve_pipe(agent, &pipe).await });
}

/// Of an agent that is not PID 1.
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
                let port = port.parse().map_err(|_| Error::other("--self PORT PIPE: not a port"))?;
                Ok(Some((port, PathBuf::from(pipe))))
            }
            _ => Ok(None),
        }
    }
}

/// SIGTERM, and SIGUSR1 and SIGUSR2 as busybox's halt and poweroff send them.
fn ending_signals() -> Result<[Signal; 3]> {
    Ok([signal(SignalKind::terminate())?, signal(SignalKind::user_defined1())?, signal(SignalKind::user_defined2())?])
}

async fn asked_to_end(agent: &Arc<Agent>, [terminate, halt, power_off]: &mut [Signal; 3]) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = halt.recv() => {}
        _ = power_off.recv() => {}
        () = agent.power_off.notified() => {
            // The answer is on its way to the port; the grace of `power_off` lets it leave.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
