//! The log of a stage: what file it is, every change of its data, and how it is read back after a crash.

use std::io::Read;

use serde::{Deserialize, Serialize};

use super::content::{Base, Content};

/// Which file a stage belongs to. The last one in a log counts.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct StageInfo {
    pub version: u32,
    pub key: String,
    /// None: a new file.
    pub base: Option<BaseInfo>,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: String,
    /// Marks the object that this stage becomes (`save.rs`).
    pub write_id: String,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct BaseInfo {
    pub etag: String,
    pub size: u64,
}

pub const VERSION: u32 = 1;

impl StageInfo {
    pub fn content(&self) -> Content {
        match &self.base {
            Some(base) => Content::of_object(Base { etag: base.etag.clone(), size: base.size }),
            None => Content::default(),
        }
    }
}

/// A change of the data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Record {
    Write { offset: u64, length: u64 },
    Truncate { size: u64 },
}

const RECORD_BYTES: usize = 17;

impl Record {
    pub fn render(self) -> [u8; RECORD_BYTES] {
        let (kind, first, second) = match self {
            Self::Write { offset, length } => (1, offset, length),
            Self::Truncate { size } => (2, size, 0),
        };
        let mut bytes = [kind; RECORD_BYTES];
        bytes[1..9].copy_from_slice(&first.to_le_bytes());
        bytes[9..].copy_from_slice(&second.to_le_bytes());
        bytes
    }

    fn parse(bytes: &[u8; RECORD_BYTES]) -> Option<Self> {
        let number = |range: std::ops::Range<usize>| bytes[range].try_into().map(u64::from_le_bytes).ok();
        let (first, second) = (number(1..9)?, number(9..17)?);
        match bytes[0] {
            1 => Some(Self::Write { offset: first, length: second }),
            2 => Some(Self::Truncate { size: first }),
            _ => None,
        }
    }

    fn apply(self, content: &mut Content) {
        match self {
            Self::Write { offset, length } => content.write(offset..offset.saturating_add(length)),
            Self::Truncate { size } => content.truncate(size),
        }
    }
}

const INFO: u8 = 3;
/// Longer than any key with the other fields.
const INFO_MAX_BYTES: u64 = 64 * 1024;

pub fn render_info(info: &StageInfo) -> Vec<u8> {
    let text = serde_json::to_vec(info).unwrap_or_default();
    let mut bytes = vec![INFO; RECORD_BYTES];
    bytes[1..9].copy_from_slice(&(text.len() as u64).to_le_bytes());
    bytes.extend(text);
    bytes
}

/// Reads a log. A record at the end that is not whole belongs to a change that was never acknowledged. None: there is no
/// valid description, because the stage was just being created.
pub fn replay(log: &mut impl Read) -> Option<(StageInfo, Content)> {
    let mut found: Option<(StageInfo, Content)> = None;
    let mut bytes = [0; RECORD_BYTES];
    while log.read_exact(&mut bytes).is_ok() {
        if bytes[0] == INFO {
            let Some(info) = read_info(&bytes, log) else { break };
            let content = found.map_or_else(|| info.content(), |(_, content)| content);
            found = Some((info, content));
            continue;
        }
        let Some((record, (_, content))) = Record::parse(&bytes).zip(found.as_mut()) else { break };
        record.apply(content);
    }
    found
}

fn read_info(bytes: &[u8; RECORD_BYTES], log: &mut impl Read) -> Option<StageInfo> {
    let length = bytes[1..9].try_into().map(u64::from_le_bytes).ok().filter(|length| *length <= INFO_MAX_BYTES)?;
    let mut text = vec![0; length as usize];
    log.read_exact(&mut text).ok()?;
    serde_json::from_slice(&text).ok().filter(|info: &StageInfo| info.version == VERSION)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(key: &str) -> StageInfo {
        let base = Some(BaseInfo { etag: "e".to_owned(), size: 1000 });
        let (mtime, write_id) = ("1.5".to_owned(), "w".to_owned());
        StageInfo { version: VERSION, key: key.to_owned(), base, mode: 0o644, uid: 0, gid: 0, mtime, write_id }
    }

    #[test]
    fn a_log_restores_the_content_up_to_its_last_whole_record() {
        let mut wanted = info("a").content();
        let mut log = render_info(&info("a"));
        for record in [
            Record::Write { offset: 10, length: 20 },
            Record::Truncate { size: 500 },
            Record::Write { offset: 800, length: 1 },
        ] {
            record.apply(&mut wanted);
            log.extend(record.render());
        }
        log.extend(render_info(&info("b")));
        log.extend(&Record::Truncate { size: 0 }.render()[..9]);

        let found = replay(&mut log.as_slice());

        assert_eq!(wanted.size, 801);
        assert_eq!(found, Some((info("b"), wanted)));
    }

    #[test]
    fn a_log_without_a_description_is_not_a_stage() {
        assert_eq!(replay(&mut [].as_slice()), None);
        assert_eq!(replay(&mut Record::Truncate { size: 1 }.render().as_slice()), None);
        assert_eq!(replay(&mut &render_info(&info("a"))[..30]), None);
    }
}
