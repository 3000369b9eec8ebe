//! PUT /files: writes the body into an unnamed file in the target's directory and gives it its name in one step when
//! the body has ended cleanly. An interrupted upload leaves nothing behind: the kernel frees an unnamed file when it is
//! closed, even if the machine is turned off. Filesystems without unnamed files get a hidden name next to the target,
//! which is removed again.
//!
//! An existing file is replaced, not overwritten: readers see either the old or the new one. Mode and owner are
//! preserved; other hard links keep the old content. The file is not fsynced, as with `cp`: a pause saves the page
//! cache, and POST /sync flushes.

use std::fs::{self, DirBuilder, File, Metadata};
use std::io::{Error, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::StatusCode;
use serde::Serialize;

use crate::agent::Agent;
use crate::reply::{Failure, HandlerError, HandlerResult, send_json};
use crate::ssh;
use crate::sys;
use crate::workers::WorkerPool;

use super::path::{follow_links, parse_path};
use super::{invalid_path, write_failure};

const NEW_FILE_MODE: u32 = 0o644;
const NEW_DIRECTORY_MODE: u32 = 0o755;
/// Collected before one write on a worker thread; half the stream's window, so that the next half arrives meanwhile.
const WRITE_BYTES: usize = 64 * 1024;

#[derive(Serialize)]
struct Uploaded {
    bytes: u64,
}

pub async fn put_file(
    agent: &Arc<Agent>,
    query: Option<&str>,
    body: &mut RecvStream,
    respond: &mut SendResponse<Bytes>,
) -> HandlerResult {
    let path = parse_path(query)?;
    let is_authorized_keys = path.ends_with(".ssh/authorized_keys");
    let worker = |error: Error| HandlerError::from(Failure::internal("worker", &error));
    let mut draft = DraftGuard::new(agent, agent.workers.run(move || Draft::begin(&path)).await.map_err(worker)??);
    let mut bytes = 0;
    loop {
        let (pieces, ended) = gather(body).await?;
        let count: usize = pieces.iter().map(Bytes::len).sum();
        bytes += count as u64;
        let taken = draft.take()?;
        draft.put(agent.workers.run(move || taken.write(&pieces)).await.map_err(worker)??);
        body.flow_control().release_capacity(count)?;
        if ended {
            break;
        }
    }
    let whole = draft.take()?;
    agent.workers.run(move || whole.finish()).await.map_err(worker)??;
    if is_authorized_keys {
        ssh::prepare_host_key(agent).await;
    }
    send_json(respond, StatusCode::OK, &Uploaded { bytes })
}

/// Reads part of the body, and whether that was its end. A reset is an error, never the end.
async fn gather(body: &mut RecvStream) -> HandlerResult<(Vec<Bytes>, bool)> {
    let (mut pieces, mut count) = (Vec::new(), 0);
    while count < WRITE_BYTES {
        let Some(piece) = body.data().await else { return Ok((pieces, true)) };
        let piece = piece?;
        count += piece.len();
        pieces.push(piece);
    }
    Ok((pieces, false))
}

/// Holds the draft between two writes. When dropped, it is closed on a worker thread, because freeing the blocks of a
/// large file takes time.
struct DraftGuard {
    draft: Option<Draft>,
    workers: WorkerPool,
}

impl DraftGuard {
    fn new(agent: &Agent, draft: Draft) -> Self {
        Self { draft: Some(draft), workers: agent.workers.clone() }
    }

    fn take(&mut self) -> HandlerResult<Draft> {
        self.draft.take().ok_or(HandlerError::Disconnected)
    }

    fn put(&mut self, draft: Draft) {
        self.draft = Some(draft);
    }
}

impl Drop for DraftGuard {
    fn drop(&mut self) {
        if let Some(draft) = self.draft.take() {
            self.workers.submit(move || drop(draft));
        }
    }
}

struct Draft {
    file: File,
    target: PathBuf,
    replaced: Option<Metadata>,
    /// The hidden name, if the file needs one.
    name: Option<PathBuf>,
    /// Directories created for this upload, outermost first; removed again if it fails.
    created_directories: Vec<PathBuf>,
    finished: bool,
}

impl Draft {
    fn begin(path: &Path) -> Result<Self, Failure> {
        let to_failure = |error: Error| write_failure(path, &error);
        let target = follow_links(path).map_err(to_failure)?;
        let replaced = fs::symlink_metadata(&target).ok();
        match replaced.as_ref().map(Metadata::file_type) {
            Some(kind) if kind.is_dir() => return Err(invalid_path("path is a directory")),
            Some(kind) if !kind.is_file() => return Err(invalid_path("path is not a regular file")),
            _ => {}
        }
        let directory = target.parent().unwrap_or(Path::new("/")).to_path_buf();
        let created_directories = make_directories(&directory).map_err(to_failure)?;
        match open_draft(&directory) {
            Ok((file, name)) => Ok(Self { file, target, replaced, name, created_directories, finished: false }),
            Err(error) => {
                remove_directories(&created_directories);
                Err(to_failure(error))
            }
        }
    }

    fn write(mut self, pieces: &[Bytes]) -> Result<Self, Failure> {
        for piece in pieces {
            self.file.write_all(piece).map_err(|error| write_failure(&self.target, &error))?;
        }
        Ok(self)
    }

    fn finish(mut self) -> Result<(), Failure> {
        self.publish().map_err(|error| write_failure(&self.target, &error))?;
        self.finished = true;
        Ok(())
    }

    fn publish(&mut self) -> Result<(), Error> {
        // Owner first: changing it clears the set-user-id bits of the mode.
        if let Some(old) = &self.replaced {
            fchown(&self.file, Some(old.uid()), Some(old.gid()))?;
        }
        let mode = self.replaced.as_ref().map_or(NEW_FILE_MODE, |old| old.mode() & 0o7777);
        self.file.set_permissions(fs::Permissions::from_mode(mode))?;
        if self.name.is_none() {
            if self.replaced.is_none() {
                match link(&self.file, &self.target) {
                    Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
                    result => return result,
                }
            }
            // A link cannot replace a file; a rename can, but needs a name to start from.
            let name = hidden_name(self.target.parent().unwrap_or(Path::new("/")));
            link(&self.file, &name)?;
            self.name = Some(name);
        }
        if let Some(name) = &self.name {
            fs::rename(name, &self.target)?;
            self.name = None;
        }
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        if let Some(name) = &self.name {
            // It may have been removed with its directory.
            let _ = fs::remove_file(name);
        }
        remove_directories(&self.created_directories);
    }
}

fn open_draft(directory: &Path) -> Result<(File, Option<PathBuf>), Error> {
    // Not readable by other users until it is complete.
    match sys::open(directory, libc::O_TMPFILE | libc::O_WRONLY, 0o600) {
        Ok(fd) => Ok((File::from(fd), None)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)) => {
            let name = hidden_name(directory);
            let fd = sys::open(&name, libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY, 0o600)?;
            Ok((File::from(fd), Some(name)))
        }
        Err(error) => Err(error),
    }
}

fn hidden_name(directory: &Path) -> PathBuf {
    directory.join(format!(".warren-upload-{}", sys::random_hex()))
}

fn link(file: &File, name: &Path) -> Result<(), Error> {
    let from = sys::c_string(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let to = sys::c_path(name)?;
    let (here, follow) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
    // SAFETY: two valid C strings.
    sys::check(unsafe { libc::linkat(here, from.as_ptr(), here, to.as_ptr(), follow) })?;
    Ok(())
}

/// Creates the missing directories and returns them, outermost first.
fn make_directories(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let missing = directory.ancestors().take_while(|ancestor| fs::metadata(ancestor).is_err());
    let mut created_directories: Vec<PathBuf> = missing.map(Path::to_path_buf).collect();
    created_directories.reverse();
    for (index, missing) in created_directories.iter().enumerate() {
        let result = DirBuilder::new().mode(NEW_DIRECTORY_MODE).create(missing);
        match result {
            Err(error) if error.raw_os_error() != Some(libc::EEXIST) => {
                remove_directories(created_directories.get(..index).unwrap_or_default());
                return Err(error);
            }
            _ => {}
        }
    }
    Ok(created_directories)
}

/// Only removes empty ones: another upload may use them by now.
fn remove_directories(created_directories: &[PathBuf]) {
    for directory in created_directories.iter().rev() {
        let _ = fs::remove_dir(directory);
    }
}
