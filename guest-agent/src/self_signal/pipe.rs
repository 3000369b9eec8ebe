//! The named pipe /run/self: one verb per line. The writer gets no response, so unknown lines are ignored.
//!
//! The agent keeps both ends open, so that writers never block waiting for a reader and the agent never reads
//! end-of-file. The directory is watched, and the pipe is recreated when it is removed.

use std::fs;
use std::io::{Error, Result};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{sleep, timeout};

use crate::agent::Agent;
use crate::kmsg::log;
use crate::sys;

use super::Action;

/// Every user inside may send a signal, as over HTTP; only root may read the pipe.
const MODE: u32 = 0o622;
const LINE_MAX_BYTES: usize = 256;
/// `printf park > /run/self` sends no newline; after this much silence the line counts as complete.
const LINE_LIMIT: Duration = Duration::from_millis(500);
const RETRY_DELAY: Duration = Duration::from_secs(5);

pub async fn serve_pipe(agent: Arc<Agent>, path: &Path) {
    loop {
        match open_pipe(path) {
            Ok(pipe) => read_until_lost(&agent, path, &pipe).await,
            Err(error) => {
                log(&format!("failed to open {}: {error}", path.display()));
                sleep(RETRY_DELAY).await;
            }
        }
    }
}

fn open_pipe(path: &Path) -> Result<AsyncFd<OwnedFd>> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_fifo() => {}
        Ok(found) if found.is_dir() => return Err(Error::other("is a directory")),
        // A regular file, created by `echo park > /run/self` between the removal and the recreation of the pipe.
        Ok(_) => fs::remove_file(path)?,
        Err(_) => {}
    }
    let name = sys::c_path(path)?;
    // SAFETY: a valid C string.
    match sys::check(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }) {
        Err(error) if error.raw_os_error() != Some(libc::EEXIST) => return Err(error),
        _ => {}
    }
    let pipe = fs::File::from(sys::open(path, libc::O_RDWR | libc::O_NONBLOCK | libc::O_NOFOLLOW, 0)?);
    if !pipe.metadata()?.file_type().is_fifo() {
        return Err(Error::other("is not a pipe"));
    }
    pipe.set_permissions(fs::Permissions::from_mode(MODE))?;
    sys::watch(pipe.into(), Interest::READABLE)
}

async fn read_until_lost(agent: &Agent, path: &Path, pipe: &AsyncFd<OwnedFd>) {
    let mut lines = Lines::default();
    let removals = path.parent().and_then(|directory| watch_removals(directory).ok());
    // Also detects a removal between opening the pipe and starting the watch.
    while is_at(path, pipe) {
        tokio::select! {
            () = read_lines(agent, pipe, &mut lines) => return,
            () = next_removal(removals.as_ref()) => {}
        }
    }
}

fn is_at(path: &Path, pipe: &AsyncFd<OwnedFd>) -> bool {
    let opened = fs::metadata(format!("/proc/self/fd/{}", pipe.get_ref().as_raw_fd()));
    let found = fs::symlink_metadata(path);
    matches!((opened, found), (Ok(opened), Ok(found)) if (opened.dev(), opened.ino()) == (found.dev(), found.ino()))
}

/// Returns only when the pipe cannot be read any more.
async fn read_lines(agent: &Agent, pipe: &AsyncFd<OwnedFd>, lines: &mut Lines) {
    let mut buffer = [0u8; 512];
    loop {
        let silence = if lines.partial.is_empty() { Duration::from_secs(3600) } else { LINE_LIMIT };
        let Ok(ready) = timeout(silence, pipe.readable()).await else {
            lines.take(b"\n", |action| agent.signals.raise(action, None));
            continue;
        };
        let Ok(mut ready) = ready else { return };
        match ready.try_io(|pipe| sys::read(pipe.get_ref().as_fd(), &mut buffer)) {
            Ok(Ok(count)) if count > 0 => {
                let bytes = buffer.get(..count).unwrap_or_default();
                lines.take(bytes, |action| agent.signals.raise(action, None));
            }
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Ok(_) => return,
            Err(_would_block) => {}
        }
    }
}

#[derive(Default)]
struct Lines {
    partial: Vec<u8>,
    too_long: bool,
}

impl Lines {
    fn take(&mut self, bytes: &[u8], mut notify: impl FnMut(Action)) {
        for byte in bytes {
            if *byte == b'\n' {
                let action = if self.too_long { None } else { parse_line(&self.partial) };
                action.into_iter().for_each(&mut notify);
                self.partial.clear();
                self.too_long = false;
            } else if self.partial.len() < LINE_MAX_BYTES {
                self.partial.push(*byte);
            } else {
                self.too_long = true;
            }
        }
    }
}

fn parse_line(line: &[u8]) -> Option<Action> {
    match std::str::from_utf8(line).ok()?.trim() {
        "park" | "pause" => Some(Action::Pause),
        "retire" | "delete" | "rm" | "destroy" => Some(Action::Delete),
        _ => None,
    }
}

fn watch_removals(directory: &Path) -> Result<AsyncFd<OwnedFd>> {
    let name = sys::c_path(directory)?;
    // SAFETY: a new descriptor that this function owns, and a valid C string.
    let watch = unsafe {
        let watch = OwnedFd::from_raw_fd(sys::check(libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC))?);
        let what = libc::IN_DELETE | libc::IN_MOVED_FROM | libc::IN_MOVED_TO;
        sys::check(libc::inotify_add_watch(watch.as_raw_fd(), name.as_ptr(), what))?;
        watch
    };
    sys::watch(watch, Interest::READABLE)
}

/// Returns when any entry was removed from the directory.
async fn next_removal(watch: Option<&AsyncFd<OwnedFd>>) {
    let Some(watch) = watch else { return std::future::pending().await };
    let mut buffer = [0u8; 4096];
    loop {
        let Ok(mut ready) = watch.readable().await else { return std::future::pending().await };
        if ready.try_io(|watch| sys::read(watch.get_ref().as_fd(), &mut buffer)).is_ok() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_are_recognised_as_whole_lines_however_the_bytes_arrive() {
        let text = b"# park\npark\n\n  retire \nrmx\nPARK\nrm\n";
        for size in 1..text.len() {
            let mut lines = Lines::default();
            let mut seen = Vec::new();

            for piece in text.chunks(size) {
                lines.take(piece, |action| seen.push(action));
            }

            assert_eq!(seen, [Action::Pause, Action::Delete, Action::Delete]);
        }
    }

    #[test]
    fn an_endless_line_uses_bounded_memory_and_is_ignored() {
        let mut lines = Lines::default();
        let mut seen = Vec::new();
        for _ in 0..1000 {
            lines.take(&[b' '; 500], |action| seen.push(action));
        }
        lines.take(b"park\npark\n", |action| seen.push(action));

        assert!(lines.partial.len() <= LINE_MAX_BYTES);
        assert_eq!(seen, [Action::Pause]);
    }
}
