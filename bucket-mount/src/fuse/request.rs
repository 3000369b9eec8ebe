//! Requests of the kernel.

use super::abi::opcode;
use super::wire::Input;
use crate::time::Time;

#[derive(Clone, Copy, Debug)]
pub struct Header {
    pub unique: u64,
    pub node: u64,
    pub uid: u32,
    pub gid: u32,
    /// The thread that waits for the answer.
    pub thread: u32,
}

#[derive(Debug, PartialEq)]
pub enum Operation<'a> {
    Init {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
    },
    Lookup {
        name: &'a [u8],
    },
    /// Nodes, each with the number of lookups that the kernel no longer needs.
    Forget(Vec<(u64, u64)>),
    GetAttributes,
    SetAttributes(SetAttributes),
    ReadLink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MakeNode {
        name: &'a [u8],
        mode: u32,
    },
    MakeDirectory {
        name: &'a [u8],
        mode: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    RemoveDirectory {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        new_parent: u64,
        new_name: &'a [u8],
        flags: u32,
    },
    Link,
    Open {
        flags: u32,
    },
    Create {
        name: &'a [u8],
        flags: u32,
        mode: u32,
    },
    Read {
        handle: u64,
        offset: u64,
        size: u32,
    },
    Write {
        handle: u64,
        offset: u64,
        data: &'a [u8],
    },
    Allocate {
        offset: u64,
        length: u64,
        mode: u32,
    },
    Flush {
        handle: u64,
    },
    Sync,
    Release {
        handle: u64,
    },
    OpenDirectory,
    ReadDirectory {
        handle: u64,
        offset: u64,
        size: u32,
        plus: bool,
    },
    ReleaseDirectory {
        handle: u64,
    },
    SyncDirectory,
    StatFilesystem,
    Interrupt {
        unique: u64,
    },
    Destroy,
    Unknown,
}

/// Fields that are None do not change.
#[derive(Debug, Default, PartialEq)]
pub struct SetAttributes {
    pub size: Option<u64>,
    pub mtime: Option<SetTime>,
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// Through an open file, rather than by name.
    pub is_open: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SetTime {
    Now,
    To(Time),
}

/// None: not a request of this protocol.
pub fn parse(bytes: &[u8]) -> Option<(Header, Operation<'_>)> {
    let mut input = Input(bytes);
    let length = input.u32()?;
    if length as usize != bytes.len() {
        return None;
    }
    let code = input.u32()?;
    let header =
        Header { unique: input.u64()?, node: input.u64()?, uid: input.u32()?, gid: input.u32()?, thread: input.u32()? };
    input.u32()?;
    Some((header, parse_operation(code, header.node, &mut input)?))
}

fn parse_operation<'a>(code: u32, node: u64, input: &mut Input<'a>) -> Option<Operation<'a>> {
    Some(match code {
        opcode::INIT => Operation::Init {
            major: input.u32()?,
            minor: input.u32()?,
            max_readahead: input.u32()?,
            flags: input.u32()?,
        },
        opcode::LOOKUP => Operation::Lookup { name: input.name()? },
        opcode::FORGET => Operation::Forget(vec![(node, input.u64()?)]),
        opcode::BATCH_FORGET => {
            let count = input.u32()?;
            input.u32()?;
            Operation::Forget((0..count).map(|_| Some((input.u64()?, input.u64()?))).collect::<Option<_>>()?)
        }
        opcode::GETATTR => Operation::GetAttributes,
        opcode::SETATTR => Operation::SetAttributes(parse_set_attributes(input)?),
        opcode::READLINK => Operation::ReadLink,
        opcode::SYMLINK => Operation::Symlink { name: input.name()?, target: input.name()? },
        opcode::MKNOD => {
            let mode = input.u32()?;
            input.take(12)?;
            Operation::MakeNode { name: input.name()?, mode }
        }
        opcode::MKDIR => {
            let mode = input.u32()?;
            input.u32()?;
            Operation::MakeDirectory { name: input.name()?, mode }
        }
        opcode::UNLINK => Operation::Unlink { name: input.name()? },
        opcode::RMDIR => Operation::RemoveDirectory { name: input.name()? },
        opcode::RENAME => {
            let new_parent = input.u64()?;
            Operation::Rename { new_parent, flags: 0, name: input.name()?, new_name: input.name()? }
        }
        opcode::RENAME2 => {
            let (new_parent, flags) = (input.u64()?, input.u32()?);
            input.u32()?;
            Operation::Rename { new_parent, flags, name: input.name()?, new_name: input.name()? }
        }
        opcode::LINK => Operation::Link,
        opcode::OPEN => Operation::Open { flags: input.u32()? },
        opcode::CREATE => {
            let (flags, mode) = (input.u32()?, input.u32()?);
            input.take(8)?;
            Operation::Create { name: input.name()?, flags, mode }
        }
        opcode::READ => Operation::Read { handle: input.u64()?, offset: input.u64()?, size: input.u32()? },
        opcode::WRITE => {
            let (handle, offset, size) = (input.u64()?, input.u64()?, input.u32()?);
            input.take(20)?;
            Operation::Write { handle, offset, data: input.take(size as usize)? }
        }
        opcode::FALLOCATE => {
            input.u64()?;
            Operation::Allocate { offset: input.u64()?, length: input.u64()?, mode: input.u32()? }
        }
        opcode::FLUSH => Operation::Flush { handle: input.u64()? },
        opcode::FSYNC => Operation::Sync,
        opcode::RELEASE => Operation::Release { handle: input.u64()? },
        opcode::OPENDIR => Operation::OpenDirectory,
        opcode::READDIR | opcode::READDIRPLUS => Operation::ReadDirectory {
            handle: input.u64()?,
            offset: input.u64()?,
            size: input.u32()?,
            plus: code == opcode::READDIRPLUS,
        },
        opcode::RELEASEDIR => Operation::ReleaseDirectory { handle: input.u64()? },
        opcode::FSYNCDIR => Operation::SyncDirectory,
        opcode::STATFS => Operation::StatFilesystem,
        opcode::INTERRUPT => Operation::Interrupt { unique: input.u64()? },
        opcode::DESTROY => Operation::Destroy,
        _ => Operation::Unknown,
    })
}

fn parse_set_attributes(input: &mut Input) -> Option<SetAttributes> {
    use super::abi::set;
    let valid = input.u32()?;
    input.take(12)?;
    let size = input.u64()?;
    input.take(16)?;
    let mtime_seconds = input.u64()?;
    input.take(12)?;
    let mtime_nanoseconds = input.u32()?;
    input.u32()?;
    let mode = input.u32()?;
    input.u32()?;
    let (uid, gid) = (input.u32()?, input.u32()?);
    let has = |flag: u32| valid & flag != 0;
    let mtime = Time { seconds: mtime_seconds as i64, nanoseconds: mtime_nanoseconds };
    Some(SetAttributes {
        size: has(set::SIZE).then_some(size),
        mtime: match (has(set::MTIME), has(set::MTIME_NOW)) {
            (_, true) => Some(SetTime::Now),
            (true, false) => Some(SetTime::To(mtime)),
            (false, false) => None,
        },
        mode: has(set::MODE).then_some(mode),
        uid: has(set::UID).then_some(uid),
        gid: has(set::GID).then_some(gid),
        is_open: has(set::HANDLE),
    })
}

#[cfg(test)]
mod tests {
    use super::super::wire::Output;
    use super::*;

    fn request(code: u32, rest: &[u8]) -> Vec<u8> {
        let mut output = Output::default();
        let length = u32::try_from(40 + rest.len()).unwrap_or_default();
        output.u32(length).u32(code).u64(11).u64(22).u32(1).u32(2).u32(3).u32(0).bytes(rest);
        output.0
    }

    #[test]
    fn requests_are_parsed_with_their_names_and_data() {
        let mut write = Output::default();
        write.u64(5).u64(4096).u32(3).bytes(&[0; 20]).bytes(b"abc");

        let bytes = request(opcode::WRITE, &write.0);
        let (header, operation) = parse(&bytes).unwrap_or((HEADER, Operation::Unknown));

        assert_eq!((header.unique, header.node, header.thread), (11, 22, 3));
        assert_eq!(operation, Operation::Write { handle: 5, offset: 4096, data: b"abc" });
        let bytes = request(opcode::SYMLINK, b"link\0target\0");
        assert_eq!(parse(&bytes).map(|found| found.1), Some(Operation::Symlink { name: b"link", target: b"target" }));
    }

    #[test]
    fn a_time_of_now_wins_over_a_given_time() {
        use super::super::abi::set;
        let mut body = Output::default();
        body.u32(set::MTIME | set::MTIME_NOW | set::SIZE).bytes(&[0; 12]).u64(77).bytes(&[0; 64]);

        let bytes = request(opcode::SETATTR, &body.0);

        let wanted = SetAttributes { size: Some(77), mtime: Some(SetTime::Now), ..SetAttributes::default() };
        assert_eq!(parse(&bytes).map(|found| found.1), Some(Operation::SetAttributes(wanted)));
    }

    #[test]
    fn truncated_requests_are_refused() {
        assert!(parse(&request(opcode::WRITE, &[0; 12])).is_none());
        assert!(parse(&request(opcode::LOOKUP, b"without an end")).is_none());
        assert!(parse(&[1, 2, 3]).is_none());
    }

    const HEADER: Header = Header { unique: 0, node: 0, uid: 0, gid: 0, thread: 0 };
}
