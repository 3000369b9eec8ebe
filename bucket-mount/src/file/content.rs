//! What a changed file consists of: bytes in its stage file, bytes of the object that it started from, and zeros.

use std::ops::Range;

use super::ranges::Ranges;

/// The object that a file had before it was changed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Base {
    pub etag: String,
    pub size: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Content {
    pub size: u64,
    /// None: a new file, which must not exist in the bucket.
    pub base: Option<Base>,
    /// How much of the base is still part of the file. What is neither local nor below this is zero.
    pub base_length: u64,
    /// What is in the stage file.
    pub local: Ranges,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Source {
    Local,
    Base,
    Zeros,
}

impl Content {
    pub fn of_object(base: Base) -> Self {
        Self { size: base.size, base_length: base.size, base: Some(base), local: Ranges::default() }
    }

    pub fn write(&mut self, range: Range<u64>) {
        self.size = self.size.max(range.end);
        self.local.add(range);
    }

    pub fn truncate(&mut self, size: u64) {
        self.local.truncate(size);
        self.base_length = self.base_length.min(size);
        self.size = size;
    }

    /// Where each part of a range comes from, in order. The range must be within the file.
    pub fn pieces(&self, range: Range<u64>) -> Vec<(Range<u64>, Source)> {
        let mut pieces = Vec::new();
        let mut position = range.start;
        for part in self.local.within(range.clone()) {
            self.add_missing(position..part.start, &mut pieces);
            position = part.end;
            pieces.push((part, Source::Local));
        }
        self.add_missing(position..range.end, &mut pieces);
        pieces
    }

    fn add_missing(&self, range: Range<u64>, pieces: &mut Vec<(Range<u64>, Source)>) {
        let border = self.base_length.clamp(range.start, range.end.max(range.start));
        let parts = [(range.start..border, Source::Base), (border..range.end, Source::Zeros)];
        pieces.extend(parts.into_iter().filter(|(part, _)| !part.is_empty()));
    }

    /// The parts of a range that only the base has.
    pub fn missing(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let pieces = self.pieces(range).into_iter();
        pieces.filter(|(_, source)| *source == Source::Base).map(|(part, _)| part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content() -> Content {
        Content::of_object(Base { etag: "e".to_owned(), size: 100 })
    }

    #[test]
    fn a_write_into_an_object_leaves_the_rest_in_the_base() {
        let mut content = content();

        content.write(40..50);

        assert_eq!(content.pieces(30..60), [(30..40, Source::Base), (40..50, Source::Local), (50..60, Source::Base)]);
        assert_eq!(content.missing(0..100), [0..40, 50..100]);
    }

    #[test]
    fn what_was_truncated_is_zero_when_the_file_grows_again() {
        let mut content = content();

        content.write(0..10);
        content.truncate(60);
        content.truncate(5);
        content.truncate(80);
        content.write(90..95);

        assert_eq!(content.size, 95);
        assert_eq!(content.pieces(0..95), [(0..5, Source::Local), (5..90, Source::Zeros), (90..95, Source::Local)]);
    }
}
