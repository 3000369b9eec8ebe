//! The journals of all processes, with a common size limit.

use std::collections::HashMap;

use super::journal::{Journal, ReadResult, Stream};

/// Limit for all journals of the machine together, including bookkeeping.
const RETAINED_MAX_BYTES: usize = 32 * 1024 * 1024;

#[derive(Default)]
pub struct Journals {
    journals: HashMap<u64, Journal>,
    cost: usize,
    total_appended: u64,
}

impl Journals {
    pub fn get(&self, key: u64) -> Option<&Journal> {
        self.journals.get(&key)
    }

    pub fn add(&mut self, key: u64) {
        self.journals.insert(key, Journal::default());
    }

    pub fn remove(&mut self, key: u64) {
        if let Some(journal) = self.journals.remove(&key) {
            self.cost = self.cost.saturating_sub(journal.cost());
        }
    }

    /// Returns false when the record of the process was dropped: its output is discarded.
    pub fn append(&mut self, key: u64, stream: Stream, bytes: &[u8]) -> bool {
        let Some(journal) = self.journals.get_mut(&key) else { return false };
        self.total_appended += bytes.len() as u64;
        let before = journal.cost();
        journal.append(stream, bytes, self.total_appended);
        self.cost = (self.cost + journal.cost()).saturating_sub(before);
        while self.cost > RETAINED_MAX_BYTES && self.drop_oldest() {}
        true
    }

    /// Returns None when the record of the process was dropped.
    pub fn read(&self, key: u64, after: u64, max_bytes: usize) -> Option<ReadResult> {
        self.get(key).map(|journal| journal.read(after, max_bytes))
    }

    /// Drops the oldest event of the journal that has the oldest chunk.
    fn drop_oldest(&mut self) -> bool {
        let by_age = self.journals.values_mut().filter_map(|journal| Some((journal.created_at()?, journal)));
        let Some((_, oldest)) = by_age.min_by_key(|(created_at, _)| *created_at) else { return false };
        let before = oldest.cost();
        oldest.drop_oldest();
        self.cost = (self.cost + oldest.cost()).saturating_sub(before);
        true
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use crate::processes::journal::{EVENT_MAX_BYTES, FRAME_OVERHEAD_BYTES, RETAINED_MAX_BYTES as ONE_MAX_BYTES};

    fn text(key: u64, journals: &Journals, after: u64) -> Option<String> {
        match journals.read(key, after, usize::MAX)? {
            ReadResult::Events(frames, last) => {
                assert_eq!(Some(last), journals.get(key).map(Journal::newest));
                let mut rest = frames.as_ref();
                let mut all = String::new();
                let mut seq = after;
                while let Some((header, tail)) = rest.split_first_chunk::<FRAME_OVERHEAD_BYTES>() {
                    let length = u32::from_be_bytes(header[1..5].try_into().ok()?) as usize - 8;
                    seq += 1;
                    assert_eq!(u64::from_be_bytes(header[5..13].try_into().ok()?), seq);
                    all.push_str(std::str::from_utf8(tail.get(..length)?).ok()?);
                    rest = tail.get(length..)?;
                }
                Some(all)
            }
            ReadResult::UpToDate => Some(String::new()),
            ReadResult::Expired => None,
        }
    }

    #[test]
    fn a_read_returns_exactly_the_events_after_the_given_number() {
        let mut journals = Journals::default();
        journals.add(1);
        let events: Vec<String> = (0..5000).map(|number| format!("{number} ").repeat(number % 17 + 1)).collect();
        for event in &events {
            assert!(journals.append(1, Stream::Stdout, event.as_bytes()));
        }

        for after in [0, 1, 2, 1234, 4998, 4999, 5000, 9999] {
            let rest = events.get(after..).unwrap_or_default().concat();
            let journal = journals.get(1).unwrap();
            assert_eq!(journal.written() - journal.written_through(after as u64), rest.len() as u64);
            assert_eq!(text(1, &journals, after as u64), Some(rest), "after {after}");
        }
    }

    #[test]
    fn the_oldest_events_of_a_process_are_dropped_first() {
        let mut journals = Journals::default();
        journals.add(1);
        let event = "x".repeat(1000);
        for _ in 0..3000 {
            journals.append(1, Stream::Stdout, event.as_bytes());
        }

        let journal = journals.get(1).unwrap();
        let retained = ONE_MAX_BYTES / 1000;
        assert_eq!((journal.bytes(), journal.newest()), (retained * 1000, 3000));
        assert_eq!(journal.oldest(), 3000 - retained as u64 + 1);
        assert_eq!(text(1, &journals, journal.oldest() - 2), None);
        assert_eq!(text(1, &journals, journal.oldest() - 1).map(|all| all.len()), Some(retained * 1000));
    }

    #[test]
    fn all_journals_stay_below_the_limit_and_the_oldest_events_of_any_process_are_dropped_first() {
        let mut journals = Journals::default();
        for key in 0..60 {
            journals.add(key);
        }
        journals.append(0, Stream::Pty, b"first");
        let event = vec![b'x'; EVENT_MAX_BYTES];
        for round in 0..60 * 40 {
            journals.append(1 + round % 58, Stream::Pty, &event);
            if round % 100 == 0 {
                journals.append(59, Stream::Pty, b"slow ");
            }
        }

        assert!(journals.cost <= RETAINED_MAX_BYTES);
        assert_eq!(journals.get(0).map(|journal| (journal.bytes(), journal.oldest())), Some((0, 2)));
        let slow = journals.get(59).unwrap();
        assert!(slow.oldest() > 1 && slow.bytes() >= 5 * 5, "its newest events are as recent as those of the others");
        assert!(journals.get(1).unwrap().bytes() > 0);
    }

    #[test]
    fn output_written_byte_by_byte_stays_below_the_limit() {
        let mut journals = Journals::default();
        journals.add(1);
        for _ in 0..2_000_000 {
            journals.append(1, Stream::Pty, b"x");
        }

        let journal = journals.get(1).unwrap();
        assert_eq!(journal.bytes(), ONE_MAX_BYTES);
        assert!(journal.cost() < 10 * ONE_MAX_BYTES);
        journals.remove(1);
        assert_eq!(journals.cost, 0);
    }
}
