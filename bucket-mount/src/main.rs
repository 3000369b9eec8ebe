//! The life of a mount:
//!
//!   1. The guest agent starts the program and writes its configuration to its standard input (`config.rs`).
//!   2. It asks whether the bucket can be reached, takes over unsaved changes of an earlier run, and mounts.
//!   3. It serves programs (`fuse/session.rs`) and the guest agent (`control.rs`), all in one thread. Unsaved changes
//!      that could not be written to the bucket are tried again from time to time.
//!   4. It exits when it is asked to, when the filesystem is unmounted, or when the guest agent is gone.

use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use bucket_mount::config::Config;
use bucket_mount::control::{self, Event, Next, send};
use bucket_mount::file::recover::recover;
use bucket_mount::file::save::save_all;
use bucket_mount::fuse::device::{Device, is_mounted, raise_read_ahead, unmount};
use bucket_mount::fuse::session::Session;
use bucket_mount::mount::Mount;
use bucket_mount::probe::probe_until_known;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::unix::pipe::Receiver;
use tokio::sync::Notify;
use tokio::task::{LocalSet, spawn_local};

const RETRY_INTERVAL: Duration = Duration::from_secs(30);
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    // It may have been started from a descriptor, whose number would be its name.
    // SAFETY: a C string of at most 16 bytes.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"bucket-mount".as_ptr()) };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return ExitCode::FAILURE;
    };
    let result = LocalSet::new().block_on(&runtime, run());
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            send(&Event::Failed { message });
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), String> {
    let mut commands = read_commands().map_err(|error| format!("standard input is not a pipe: {error}"))?;
    let line = commands.next_line().await.ok().flatten().unwrap_or_default();
    let config = Config::parse(&line)?;
    let mount_point = config.mount_point.clone();
    let read_only = config.read_only;
    let mount = Mount::new(config).map_err(|failure| format!("failed to open the stage folder: {failure}"))?;
    let reached = mount.client.check_bucket().await;
    reached.map_err(|failure| format!("the bucket cannot be reached: {failure}"))?;
    recover(&mount);
    let device = Device::mount(&mount_point, read_only);
    let device = device.map_err(|error| format!("failed to mount on {}: {error}", mount_point.display()))?;
    let session = Session::new(mount.clone(), Rc::new(device));
    let probing = mount.clone();
    spawn_local(async move { probe_until_known(&probing).await });
    spawn_local(save_again(mount.clone()));
    spawn_local(push_status(mount.clone()));
    spawn_local(announce(mount.clone()));
    let result = tokio::select! {
        result = session.run() => result.map_err(|error| format!("failed to serve {}: {error}", mount_point.display())),
        () = serve_commands(&mount, &mut commands) => Ok(()),
    };
    if is_mounted(&mount_point) {
        let _ = unmount(&mount_point, true);
    }
    result
}

fn read_commands() -> std::io::Result<Lines<BufReader<Receiver>>> {
    let fd: OwnedFd = std::io::stdin().as_fd().try_clone_to_owned()?;
    Ok(BufReader::new(Receiver::from_owned_fd(fd)?).lines())
}

/// Returns when the program has to exit.
async fn serve_commands(mount: &Rc<Mount>, commands: &mut Lines<BufReader<Receiver>>) {
    let exit = Rc::new(Notify::new());
    loop {
        let line = tokio::select! {
            line = commands.next_line() => line.ok().flatten(),
            () = exit.notified() => return,
        };
        let Some(line) = line else { break };
        let (mount, exit) = (mount.clone(), exit.clone());
        spawn_local(async move {
            if control::handle(&mount, &line).await == Next::Exit {
                exit.notify_one();
            }
        });
    }
    // The guest agent is gone.
    save_all(mount).await;
}

/// Another thread looks at the mount: this one would wait for itself.
async fn announce(mount: Rc<Mount>) {
    let mount_point = mount.config.mount_point.clone();
    let (send_ready, ready) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let raised = raise_read_ahead(&mount_point);
        let _ = send_ready.send(raised);
    });
    // Without larger steps it is slower, nothing else.
    let _ = ready.await;
    if is_mounted(&mount.config.mount_point) {
        send(&Event::Mounted);
    }
}

async fn save_again(mount: Rc<Mount>) {
    // Changes of an earlier run first.
    save_all(&mount).await;
    loop {
        tokio::time::sleep(RETRY_INTERVAL).await;
        for node in mount.dirty_nodes() {
            // What is open is saved when it is closed, unless that failed before.
            if node.opens.get() == 0 {
                let _ = bucket_mount::file::save::save(&mount, &node).await;
            }
        }
    }
}

/// Reports what changes, at most once in a second. The number of unsaved bytes alone is not worth a report.
async fn push_status(mount: Rc<Mount>) {
    let mut last = String::new();
    loop {
        let status = control::status(&mount);
        let key = format!("{:?} {:?} {}", status.conditions, status.problems, status.conflicts_total);
        if key != last {
            send(&Event::Status { status });
            last = key;
        }
        tokio::time::sleep(STATUS_INTERVAL).await;
    }
}
