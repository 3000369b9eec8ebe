//! A set of byte ranges.

use std::collections::BTreeMap;
use std::ops::Range;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ranges {
    /// Ranges by their start, with their end. They neither overlap nor touch.
    ends: BTreeMap<u64, u64>,
    total: u64,
}

impl Ranges {
    pub fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        let before = self.ends.range(..=start).next_back().map(|(start, end)| (*start, *end));
        if let Some((before, its_end)) = before.filter(|(_, its_end)| *its_end >= start) {
            start = before;
            end = end.max(its_end);
        }
        while let Some((after, its_end)) = self.ends.range(start..=end).next().map(|(start, end)| (*start, *end)) {
            self.ends.remove(&after);
            self.total -= its_end - after;
            end = end.max(its_end);
        }
        self.ends.insert(start, end);
        self.total += end - start;
    }

    /// Removes everything from this position on.
    pub fn truncate(&mut self, position: u64) {
        let removed = self.ends.split_off(&position);
        self.total -= removed.iter().map(|(start, end)| end - start).sum::<u64>();
        if let Some(mut last) = self.ends.last_entry().filter(|last| *last.get() > position) {
            self.total -= *last.get() - position;
            *last.get_mut() = position;
        }
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The parts of `range` that are in the set.
    pub fn within(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self.ends.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
        self.ends
            .range(first..range.end.max(first))
            .map(move |(start, end)| (*start).max(range.start)..(*end).min(range.end))
            .filter(|part| !part.is_empty())
    }

    /// The parts of `range` that are not in the set.
    pub fn gaps(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut position = range.start;
        for part in self.within(range.clone()) {
            if part.start > position {
                gaps.push(position..part.start);
            }
            position = part.end;
        }
        if position < range.end {
            gaps.push(position..range.end);
        }
        gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ranges: &[Range<u64>]) -> Ranges {
        let mut set = Ranges::default();
        ranges.iter().for_each(|range| set.add(range.clone()));
        set
    }

    #[test]
    fn ranges_that_overlap_or_touch_become_one() {
        let set = set(&[10..20, 30..40, 20..25, 24..30, 50..60]);

        assert_eq!(set.ends.into_iter().collect::<Vec<_>>(), [(10, 40), (50, 60)]);
    }

    #[test]
    fn a_set_agrees_with_a_list_of_bytes() {
        let mut set = Ranges::default();
        let mut bytes = [false; 64];
        let mut seed = 1u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        for _ in 0..5000 {
            let start = random(60);
            let range = start..start + random(64 - start);
            if random(8) == 0 {
                set.truncate(start);
                bytes[start as usize..].fill(false);
            } else {
                set.add(range.clone());
                bytes[range.start as usize..range.end as usize].fill(true);
            }

            let asked = random(32)..32 + random(32);
            let mut seen = [false; 64];
            for part in set.within(asked.clone()) {
                seen[part.start as usize..part.end as usize].fill(true);
            }
            for gap in set.gaps(asked.clone()) {
                assert!(bytes[gap.start as usize..gap.end as usize].iter().all(|is_set| !is_set));
            }
            let inside = |index: usize| asked.contains(&(index as u64));
            assert!((0..64).all(|index| seen[index] == (bytes[index] && inside(index))));
            assert_eq!(set.total(), bytes.iter().filter(|is_set| **is_set).count() as u64);
        }
    }
}
