//! The life of PID 1.
//!
//!   1. The kernel starts us as /init of the initramfs. We mount /dev, /proc and /sys, load the modules packed beside
//!      us, wait for the disk, and make it the root without leaving this process (`boot.rs`).
//!   2. We make the root a machine: mounts, limits, network, names (`machine.rs`). We protect ourselves from the
//!      out-of-memory killer; whoever we start loses that protection (`spawn.rs`).
//!   3. We open the two ports to the host, once and for ever, and serve one host connection after the other
//!      (`channel.rs`), while reaping every orphan of the machine (`reap.rs`).
//!   4. On SIGTERM, on the signals by which busybox's and others' `poweroff` ask their init, and on POST /poweroff,
//!      we end everything and turn the machine off (`shutdown.rs`).
//!
//! If we die, the kernel panics and the machine is gone: nothing below may panic on what the outside does.
//!
//! Started as anything but PID 1, the agent touches nothing of the machine and only serves: on unix sockets with
//! `--listen-unix PATH` (the agent port is PATH, the hello port PATH.hello), or on devices with `--ports AGENT HELLO`.

use std::io::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use guest_agent::agent::Agent;
use guest_agent::channel::Channel;
use guest_agent::kmsg::say;
use guest_agent::port::Port;
use guest_agent::ports::{Ports, open_ports};
use guest_agent::{boot, machine, reap, shutdown, sys};
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
        let ports = if is_init { open_ports().await? } else { ports_of_arguments()? };
        let mut ends = ending_signals()?;
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
                std::process::exit(0)
            }
        }
    })
}

fn ports_of_arguments() -> Result<Ports> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["--listen-unix", path] => {
            let hello = PathBuf::from(format!("{path}.hello"));
            Ok(Ports { hello: Port::listen(&hello)?, data: Port::listen(Path::new(path))? })
        }
        ["--ports", data, hello] => {
            Ok(Ports { hello: Port::open(Path::new(hello))?, data: Port::open(Path::new(data))? })
        }
        _ => Err(Error::other("usage: guest-agent --listen-unix PATH | --ports AGENT HELLO")),
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
