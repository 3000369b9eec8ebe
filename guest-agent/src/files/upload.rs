//! PUT /files: the body goes into a file without a name in the target's directory and gets its name in one step when
//! the body has ended cleanly. A cut upload leaves nothing: the kernel frees a file without a name when it is closed,
//! even if the machine is turned off. Where the filesystem has no such files, a hidden name beside the target is used
//! and removed again.
//!
//! An existing file is replaced, not written into: readers see the old or the new one. It keeps mode and owner; other
//! hard links keep the old content. Not fsynced, as `cp` is not: a pause keeps the page cache, POST /sync flushes.

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
use crate::reply::{Done, Failure, Stop, send_json};
use crate::ssh;
use crate::sys;
use crate::work::Work;

use super::path::{follow_links, parse_path};
use super::{failure, invalid_path};

const NEW_FILE_MODE: u32 = 0o644;
const NEW_DIRECTORY_MODE: u32 = 0o755;
/// Gathered before a trip to a worker; half the stream's window, so the next half arrives meanwhile.
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
) -> Done {
    let path = parse_path(query)?;
    let opens_a_door = path.ends_with(".ssh/authorized_keys");
    let worker = |error: Error| Stop::from(Failure::internal("worker", &error));
    let mut draft = Held::new(agent, agent.work.run(move || Draft::begin(&path)).await.map_err(worker)??);
    let mut bytes = 0;
    loop {
        let (pieces, ended) = gather(body).await?;
        let count: usize = pieces.iter().map(Bytes::len).sum();
        bytes += count as u64;
        let taken = draft.take()?;
        draft.put(agent.work.run(move || taken.write(&pieces)).await.map_err(worker)??);
        body.flow_control().release_capacity(count)?;
        if ended {
            break;
        }
    }
    let whole = draft.take()?;
    agent.work.run(move || whole.finish()).await.map_err(worker)??;
    if opens_a_door {
        ssh::expect_server(agent).await;
    }
    send_json(respond, StatusCode::OK, &Uploaded { bytes })
}

/// Some of the body, and whether that was the end of it. A reset is an error, never an end.
async fn gather(body: &mut RecvStream) -> Done<(Vec<Bytes>, bool)> {
    let (mut pieces, mut count) = (Vec::new(), 0);
    while count < WRITE_BYTES {
        let Some(piece) = body.data().await else { return Ok((pieces, true)) };
        let piece = piece?;
        count += piece.len();
        pieces.push(piece);
    }
    Ok((pieces, false))
}

/// A draft between two writes. Dropped, it goes to a worker: freeing the blocks of a large file takes a while.
struct Held {
    draft: Option<Draft>,
    work: Work,
}

impl Held {
    fn new(agent: &Agent, draft: Draft) -> Self {
        Self { draft: Some(draft), work: agent.work.clone() }
    }

    fn take(&mut self) -> Done<Draft> {
        self.draft.take().ok_or(Stop::Gone)
    }

    fn put(&mut self, draft: Draft) {
        self.draft = Some(draft);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(draft) = self.draft.take() {
            self.work.submit(move || drop(draft));
        }
    }
}

struct Draft {
    file: File,
    target: PathBuf,
    replaced: Option<Metadata>,
    /// The hidden name, where the file needs one.
    name: Option<PathBuf>,
    /// Directories made for this upload, outermost first; taken back if it fails.
    made: Vec<PathBuf>,
    finished: bool,
}

impl Draft {
    fn begin(path: &Path) -> Result<Self, Failure> {
        let told = |error: Error| failure(path, &error);
        let target = follow_links(path).map_err(told)?;
        let replaced = fs::symlink_metadata(&target).ok();
        match replaced.as_ref().map(Metadata::file_type) {
            Some(kind) if kind.is_dir() => return Err(invalid_path("path is a directory")),
            Some(kind) if !kind.is_file() => return Err(invalid_path("path is not a regular file")),
            _ => {}
        }
        let directory = target.parent().unwrap_or(Path::new("/")).to_path_buf();
        let made = make_directories(&directory).map_err(told)?;
        match open_draft(&directory) {
            Ok((file, name)) => Ok(Self { file, target, replaced, name, made, finished: false }),
            Err(error) => {
                remove_directories(&made);
                Err(told(error))
            }
        }
    }

    fn write(mut self, pieces: &[Bytes]) -> Result<Self, Failure> {
        for piece in pieces {
            self.file.write_all(piece).map_err(|error| failure(&self.target, &error))?;
        }
        Ok(self)
    }

    fn finish(mut self) -> Result<(), Failure> {
        self.place().map_err(|error| failure(&self.target, &error))?;
        self.finished = true;
        Ok(())
    }

    fn place(&mut self) -> Result<(), Error> {
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
            // A link cannot replace a file; a rename can, and needs a name to start from.
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
            // It may be gone with its directory.
            let _ = fs::remove_file(name);
        }
        remove_directories(&self.made);
    }
}

fn open_draft(directory: &Path) -> Result<(File, Option<PathBuf>), Error> {
    // Readable by nobody else until it is whole.
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

/// Those that were missing, outermost first.
fn make_directories(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let missing = directory.ancestors().take_while(|ancestor| fs::metadata(ancestor).is_err());
    let mut made: Vec<PathBuf> = missing.map(Path::to_path_buf).collect();
    made.reverse();
    for (index, missing) in made.iter().enumerate() {
        let result = DirBuilder::new().mode(NEW_DIRECTORY_MODE).create(missing);
        match result {
            Err(error) if error.raw_os_error() != Some(libc::EEXIST) => {
                remove_directories(made.get(..index).unwrap_or_default());
                return Err(error);
            }
            _ => {}
        }
    }
    Ok(made)
}

/// Only those still empty: another upload may have moved in.
fn remove_directories(made: &[PathBuf]) {
    for directory in made.iter().rev() {
        let _ = fs::remove_dir(directory);
    }
}
