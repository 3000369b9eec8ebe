//! The journals of all processes, which together stay below a limit.

use std::collections::HashMap;

use super::journal::{Journal, Next, Stream};

/// All journals of the machine together (spec 8), bookkeeping included.
const KEPT_MAX_BYTES: usize = 32 * 1024 * 1024;

#[derive(Default)]
pub struct Journals {
    journals: HashMap<u64, Journal>,
    cost: usize,
    taken: u64,
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

    /// False when the process is no longer known: its output is of no use to anyone.
    pub fn append(&mut self, key: u64, stream: Stream, bytes: &[u8]) -> bool {
        let Some(journal) = self.journals.get_mut(&key) else { return false };
        self.taken += bytes.len() as u64;
        let before = journal.cost();
        journal.append(stream, bytes, self.taken);
        self.cost = (self.cost + journal.cost()).saturating_sub(before);
        while self.cost > KEPT_MAX_BYTES && self.forget_oldest() {}
        true
    }

    /// None when the process is no longer known.
    pub fn read(&self, key: u64, after: u64, max_bytes: usize) -> Option<Next> {
        self.get(key).map(|journal| journal.read(after, max_bytes))
    }

    /// Of whichever journal has the oldest chunk.
    fn forget_oldest(&mut self) -> bool {
        let aged = self.journals.values_mut().filter_map(|journal| Some((journal.born()?, journal)));
        let Some((_, oldest)) = aged.min_by_key(|(born, _)| *born) else { return false };
        let before = oldest.cost();
        oldest.forget_oldest();
        self.cost = (self.cost + oldest.cost()).saturating_sub(before);
        true
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use crate::processes::journal::{EVENT_MAX_BYTES, FRAME_OVERHEAD_BYTES, KEPT_MAX_BYTES as ONE_MAX_BYTES};

    fn text(key: u64, journals: &Journals, after: u64) -> Option<String> {
        match journals.read(key, after, usize::MAX)? {
            Next::Events(frames, last) => {
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
            Next::Nothing => Some(String::new()),
            Next::Expired => None,
        }
    }

    #[test]
    fn from_every_number_exactly_the_rest_is_read() {
        let mut journals = Journals::default();
        journals.add(1);
        let events: Vec<String> = (0..5000).map(|number| format!("{number} ").repeat(number % 17 + 1)).collect();
        for event in &events {
            assert!(journals.append(1, Stream::Stdout, event.as_bytes()));
        }

        for after in [0, 1, 2, 1234, 4998, 4999, 5000, 9999] {
            let rest = events.get(after..).unwrap_or_default().concat();
            let journal = journals.get(1).unwrap();
            assert_eq!(journal.written() - journal.written_up_to(after as u64), rest.len() as u64);
            assert_eq!(text(1, &journals, after as u64), Some(rest), "after {after}");
        }
    }

    #[test]
    fn the_oldest_events_of_a_process_go_first() {
        let mut journals = Journals::default();
        journals.add(1);
        let event = "x".repeat(1000);
        for _ in 0..3000 {
            journals.append(1, Stream::Stdout, event.as_bytes());
        }

        let journal = journals.get(1).unwrap();
        let kept = ONE_MAX_BYTES / 1000;
        assert_eq!((journal.bytes(), journal.newest()), (kept * 1000, 3000));
        assert_eq!(journal.oldest(), 3000 - kept as u64 + 1);
        assert_eq!(text(1, &journals, journal.oldest() - 2), None);
        assert_eq!(text(1, &journals, journal.oldest() - 1).map(|all| all.len()), Some(kept * 1000));
    }

    #[test]
    fn together_they_stay_below_the_limit_and_the_oldest_go_first_whoever_wrote_them() {
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

        assert!(journals.cost <= KEPT_MAX_BYTES);
        assert_eq!(journals.get(0).map(|journal| (journal.bytes(), journal.oldest())), Some((0, 2)));
        let slow = journals.get(59).unwrap();
        assert!(slow.oldest() > 1 && slow.bytes() >= 5 * 5, "its newest events are as young as those of the others");
        assert!(journals.get(1).unwrap().bytes() > 0);
    }

    #[test]
    fn bytes_written_one_by_one_cannot_cost_more_than_all_may() {
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
