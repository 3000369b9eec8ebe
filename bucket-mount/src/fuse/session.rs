//! Answers the requests of the kernel, each in a task, until the filesystem is unmounted.

use std::io::Result;
use std::rc::Rc;

use super::abi::{DATA_MAX_BYTES, DATA_MAX_PAGES, MAJOR, MINOR, REQUEST_MAX_BYTES, init};
use super::device::Device;
use super::interrupt::Running;
use super::request::{Header, Operation, SetAttributes, parse};
use super::wire::Output;
use crate::mount::{FRESH_FOR, Mount, TIMES};
use crate::ops::files::{self, NewFile};
use crate::ops::namespace;
use crate::ops::rename::{Names, rename};
use crate::ops::{attributes, lookup, read_directory};
use crate::s3::failure::{Failure, Result as S3Result};
use crate::tree::node::Node;

const BACKGROUND_REQUESTS: u16 = 64;

pub struct Session {
    mount: Rc<Mount>,
    device: Rc<Device>,
    running: Rc<Running>,
}

impl Session {
    pub fn new(mount: Rc<Mount>, device: Rc<Device>) -> Self {
        *mount.device.borrow_mut() = Some(device.clone());
        Self { mount, device, running: Rc::default() }
    }

    /// Returns when the filesystem is unmounted.
    pub async fn run(&self) -> Result<()> {
        let mut buffer = vec![0; REQUEST_MAX_BYTES];
        loop {
            let mut count = 0;
            loop {
                match self.device.read(&mut buffer) {
                    Ok(Some(request)) => self.accept(request),
                    Ok(None) => break,
                    Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(()),
                    Err(error) => return Err(error),
                }
                count += 1;
                // Answers of the bucket must not wait for a program that writes without a pause.
                if count % 16 == 0 {
                    tokio::task::yield_now().await;
                }
            }
            self.device.readable().await?;
        }
    }

    fn accept(&self, bytes: &[u8]) {
        let Some((header, operation)) = parse(bytes) else { return };
        let unique = header.unique;
        match operation {
            Operation::Init { major, minor, max_readahead, flags } => {
                self.device.reply(unique, init_reply((major, minor), max_readahead, flags).as_deref().map_err(|e| *e));
            }
            Operation::Forget(nodes) => {
                let mut tree = self.mount.tree.borrow_mut();
                nodes.into_iter().for_each(|(node, count)| tree.forget(node, count));
            }
            Operation::Interrupt { unique } => self.running.interrupt(unique),
            Operation::Destroy => self.device.reply(unique, Ok(&[])),
            Operation::StatFilesystem => self.device.reply(unique, Ok(&stat_filesystem())),
            Operation::Write { handle, offset, data } => self.write(header, handle, offset, data),
            Operation::Release { handle } => {
                files::close(&self.mount, handle);
                self.device.reply(unique, Ok(&[]));
            }
            Operation::ReleaseDirectory { handle } => {
                let closed = self.mount.handles.borrow_mut().close_directory(handle);
                if let Some(node) = closed {
                    self.mount.tree.borrow_mut().remove_unused(node.id);
                }
                self.device.reply(unique, Ok(&[]));
            }
            Operation::SyncDirectory => self.device.reply(unique, Ok(&[])),
            Operation::Link => self.device.reply(unique, Err(libc::EPERM)),
            Operation::Unknown => self.device.reply(unique, Err(libc::ENOSYS)),
            operation => match Task::of(operation) {
                Ok(task) => self.start(header, perform(self.mount.clone(), header, task)),
                Err(code) => self.device.reply(unique, Err(code)),
            },
        }
    }

    fn write(&self, header: Header, handle: u64, offset: u64, data: &[u8]) {
        let length = data.len() as u32;
        let reply = move || {
            let mut output = Output::default();
            output.u32(length).u32(0);
            output.0
        };
        let handle = match self.mount.handles.borrow().file(handle) {
            Ok(handle) => handle,
            Err(failure) => return self.device.reply(header.unique, Err(failure.to_errno())),
        };
        if let Some(result) = files::write_now(&handle, offset, data) {
            let result = result.map(|()| reply());
            return self.device.reply(header.unique, result.as_deref().map_err(Failure::to_errno));
        }
        let (mount, data) = (self.mount.clone(), data.to_vec());
        self.start(header, async move {
            files::write(&mount, &handle, offset, &data).await?;
            Ok(reply())
        });
    }

    /// If the program is killed, it does not wait. What it asked for is done nevertheless, so that nothing is left half
    /// done.
    fn start(&self, header: Header, work: impl Future<Output = S3Result<Vec<u8>>> + 'static) {
        let (device, running) = (self.device.clone(), self.running.clone());
        let request = running.add(header.unique, header.thread);
        tokio::task::spawn_local(async move {
            let mut work = Box::pin(work);
            let result = tokio::select! {
                biased;
                result = &mut work => result,
                () = request.interrupted.notified() => {
                    tokio::task::spawn_local(async move { drop(work.await) });
                    Err(Failure::errno(libc::EINTR))
                }
            };
            running.remove(header.unique);
            // Programs see only the number.
            if let Some(failure) = result.as_ref().err().filter(|failure| failure.to_errno() == libc::EIO) {
                eprintln!("an operation failed: {failure}");
            }
            device.reply(header.unique, result.as_deref().map_err(Failure::to_errno));
        });
    }
}

/// An operation that may have to wait, without references to the buffer of requests.
enum Task {
    Lookup(String),
    GetAttributes,
    SetAttributes(SetAttributes),
    ReadLink,
    Symlink(String, String),
    MakeNode(String, u32),
    MakeDirectory(String, u32),
    Unlink(String),
    RemoveDirectory(String),
    Rename { name: String, new_parent: u64, new_name: String, flags: u32 },
    Open(u32),
    Create { name: String, flags: u32, mode: u32 },
    Read { handle: u64, offset: u64, size: u32 },
    Allocate { offset: u64, length: u64, mode: u32 },
    Flush { handle: u64 },
    Sync,
    OpenDirectory,
    ReadDirectory { handle: u64, offset: u64, size: u32, plus: bool },
}

impl Task {
    /// Keys are UTF-8, so names must be as well.
    fn of(operation: Operation) -> std::result::Result<Self, i32> {
        let text = |name: &[u8]| String::from_utf8(name.to_vec()).map_err(|_| libc::EILSEQ);
        Ok(match operation {
            Operation::Lookup { name } => Self::Lookup(text(name).map_err(|_| libc::ENOENT)?),
            Operation::GetAttributes => Self::GetAttributes,
            Operation::SetAttributes(set) => Self::SetAttributes(set),
            Operation::ReadLink => Self::ReadLink,
            Operation::Symlink { name, target } => Self::Symlink(text(name)?, text(target)?),
            Operation::MakeNode { name, mode } => Self::MakeNode(text(name)?, mode),
            Operation::MakeDirectory { name, mode } => Self::MakeDirectory(text(name)?, mode),
            Operation::Unlink { name } => Self::Unlink(text(name)?),
            Operation::RemoveDirectory { name } => Self::RemoveDirectory(text(name)?),
            Operation::Rename { name, new_parent, new_name, flags } => {
                Self::Rename { name: text(name)?, new_parent, new_name: text(new_name)?, flags }
            }
            Operation::Open { flags } => Self::Open(flags),
            Operation::Create { name, flags, mode } => Self::Create { name: text(name)?, flags, mode },
            Operation::Read { handle, offset, size } => Self::Read { handle, offset, size },
            Operation::Allocate { offset, length, mode } => Self::Allocate { offset, length, mode },
            Operation::Flush { handle } => Self::Flush { handle },
            Operation::Sync => Self::Sync,
            Operation::OpenDirectory => Self::OpenDirectory,
            Operation::ReadDirectory { handle, offset, size, plus } => {
                Self::ReadDirectory { handle, offset, size, plus }
            }
            _ => return Err(libc::ENOSYS),
        })
    }
}

async fn perform(mount: Rc<Mount>, header: Header, task: Task) -> S3Result<Vec<u8>> {
    let mount = &mount;
    let node = &mount.node(header.node)?;
    let owner = (header.uid, header.gid);
    let mut output = Output::default();
    match task {
        Task::Lookup(name) => match lookup::lookup(mount, node, &name).await? {
            Some(found) => entry(&mut output, mount, &found).await?,
            // The kernel remembers for a moment that there is none.
            None => drop(output.u64(0).u64(0).u64(FRESH_FOR.as_secs()).bytes(&[0; 104])),
        },
        Task::GetAttributes => {
            attributes::refresh(mount, node).await?;
            output.attributes_reply(&node.attributes(), TIMES);
        }
        Task::SetAttributes(set) => {
            attributes::set_attributes(mount, node, set).await?;
            output.attributes_reply(&node.attributes(), TIMES);
        }
        Task::ReadLink => drop(output.bytes(namespace::read_link(mount, node).await?.as_bytes())),
        Task::Symlink(name, target) => {
            entry(&mut output, mount, &namespace::make_link(mount, node, &name, (&target, owner)).await?).await?;
        }
        Task::MakeNode(name, mode) => {
            if mode & libc::S_IFMT != libc::S_IFREG {
                return Err(Failure::errno(libc::EPERM));
            }
            let new = NewFile { name: &name, flags: libc::O_EXCL as u32, mode, owner };
            let (created, opened) = files::create(mount, node, new).await?;
            let handle = mount.handles.borrow().file(opened.handle)?;
            let saved = files::flush(mount, &handle).await;
            files::close(mount, opened.handle);
            saved?;
            entry(&mut output, mount, &created).await?;
        }
        Task::MakeDirectory(name, mode) => {
            entry(&mut output, mount, &namespace::make_directory(mount, node, &name, (mode, owner)).await?).await?;
        }
        Task::Unlink(name) => namespace::unlink(mount, node, &name).await?,
        Task::RemoveDirectory(name) => namespace::remove_directory(mount, node, &name).await?,
        Task::Rename { name, new_parent, new_name, flags } => {
            let new_parent = &mount.node(new_parent)?;
            rename(mount, Names { parent: node, name: &name, new_parent, new_name: &new_name }, flags).await?;
        }
        Task::Open(flags) => {
            let opened = files::open(mount, node, flags).await?;
            output.opened(opened.handle, opened.flags);
        }
        Task::Create { name, flags, mode } => {
            let (created, opened) = files::create(mount, node, NewFile { name: &name, flags, mode, owner }).await?;
            entry(&mut output, mount, &created).await?;
            output.opened(opened.handle, opened.flags);
        }
        Task::Read { handle, offset, size } => {
            let handle = mount.handles.borrow().file(handle)?;
            return files::read(mount, &handle, offset, size).await;
        }
        Task::Allocate { offset, length, mode } => files::allocate(mount, node, offset, length, mode).await?,
        Task::Flush { handle } => {
            let handle = mount.handles.borrow().file(handle)?;
            files::flush(mount, &handle).await?;
        }
        Task::Sync => files::sync(mount, node).await?,
        Task::OpenDirectory => drop(output.opened(mount.handles.borrow_mut().open_directory(node), 0)),
        Task::ReadDirectory { handle, offset, size, plus } => {
            let handle = mount.handles.borrow().directory(handle)?;
            return read_directory::read_directory(mount, &handle, offset, (size, plus)).await;
        }
    }
    Ok(output.0)
}

/// The kernel holds a reference to each node that it receives.
async fn entry(output: &mut Output, mount: &Rc<Mount>, node: &Rc<Node>) -> S3Result<()> {
    attributes::refresh(mount, node).await?;
    node.lookups.set(node.lookups.get() + 1);
    output.entry(&node.attributes(), TIMES);
    Ok(())
}

fn init_reply((major, _minor): (u32, u32), max_readahead: u32, offered: u32) -> std::result::Result<Vec<u8>, i32> {
    if major != MAJOR {
        return Err(libc::EPROTO);
    }
    let wanted = init::ASYNC_READ
        | init::ATOMIC_O_TRUNC
        | init::BIG_WRITES
        | init::AUTO_INVAL_DATA
        | init::DO_READDIRPLUS
        | init::READDIRPLUS_AUTO
        | init::PARALLEL_DIROPS
        | init::MAX_PAGES
        | init::CACHE_SYMLINKS;
    let mut output = Output::default();
    output.u32(MAJOR).u32(MINOR).u32(max_readahead.max(DATA_MAX_BYTES as u32)).u32(wanted & offered);
    output.u16(BACKGROUND_REQUESTS).u16(BACKGROUND_REQUESTS * 3 / 4).u32(DATA_MAX_BYTES as u32).u32(1);
    output.u16(DATA_MAX_PAGES).u16(0).bytes(&[0; 32]);
    debug_assert_eq!(output.0.len(), 64);
    Ok(output.0)
}

/// A bucket has no size; programs that check for free space find enough.
fn stat_filesystem() -> Vec<u8> {
    const BLOCK_BYTES: u32 = 4096;
    const BLOCKS: u64 = (1 << 50) / BLOCK_BYTES as u64;
    const FILES: u64 = 1 << 40;
    let mut output = Output::default();
    output.u64(BLOCKS).u64(BLOCKS).u64(BLOCKS).u64(FILES).u64(FILES);
    output.u32(BLOCK_BYTES).u32(255).u32(BLOCK_BYTES).u32(0).bytes(&[0; 24]);
    output.0
}
