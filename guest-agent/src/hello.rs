//! The hello line, `WARREN1 <32 hex>\n`, and its reply, `WARREN1 <same 32 hex> OK\n`.
//!
//! Both scanners rely on one property: `W` occurs only as the first byte of the line, so after a mismatch a match can
//! only start at the mismatching byte. A partial line left by a host that died is skipped for free.

pub const PREFIX: &[u8; 8] = b"WARREN1 ";
pub const NONCE_LEN: usize = 32;

pub type Nonce = [u8; NONCE_LEN];

pub fn line(nonce: &Nonce) -> Vec<u8> {
    [PREFIX.as_slice(), nonce, b"\n"].concat()
}

pub fn reply(nonce: &Nonce) -> Vec<u8> {
    [PREFIX.as_slice(), nonce, b" OK\n"].concat()
}

/// Finds any hello in a byte stream.
#[derive(Default)]
pub struct HelloScanner {
    matched: usize,
    nonce: Nonce,
}

impl HelloScanner {
    /// Consumes one byte; returns the nonce if it completed a hello.
    pub fn take(&mut self, byte: u8) -> Option<Nonce> {
        let place = self.matched;
        let fits = match PREFIX.get(place) {
            Some(wanted) => byte == *wanted,
            None => match self.nonce.get_mut(place - PREFIX.len()) {
                Some(slot) => {
                    *slot = byte;
                    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
                }
                None => byte == b'\n',
            },
        };
        self.matched = if fits { place + 1 } else { usize::from(byte == b'W') };
        if self.matched <= PREFIX.len() + NONCE_LEN {
            return None;
        }
        self.matched = 0;
        Some(self.nonce)
    }
}

/// Finds one specific line in a byte stream.
pub struct LineScanner {
    wanted: Vec<u8>,
    matched: usize,
}

impl LineScanner {
    pub fn new(wanted: Vec<u8>) -> Self {
        Self { wanted, matched: 0 }
    }

    /// Consumes one byte; returns true if it completed the line.
    pub fn take(&mut self, byte: u8) -> bool {
        let fits = self.wanted.get(self.matched) == Some(&byte);
        self.matched = if fits { self.matched + 1 } else { usize::from(byte == b'W') };
        if self.matched < self.wanted.len() {
            return false;
        }
        self.matched = 0;
        true
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use super::*;

    const A: &Nonce = b"0123456789abcdef0123456789abcdef";
    const B: &Nonce = b"ffffffffffffffffffffffffffffffff";

    fn all(bytes: &[u8]) -> Vec<Nonce> {
        let mut search = HelloScanner::default();
        bytes.iter().filter_map(|byte| search.take(*byte)).collect()
    }

    #[test]
    fn a_hello_is_found_after_a_hello_truncated_at_any_byte() {
        for end in 0..line(A).len() {
            let bytes = [&line(A)[..end], &line(B)].concat();

            assert_eq!(all(&bytes), [*B], "truncated at byte {end}");
        }
    }

    #[test]
    fn noise_and_malformed_hellos_are_skipped() {
        let capital = [PREFIX.as_slice(), &A.to_ascii_uppercase(), b"\n"].concat();
        let bytes = [b"WWARREN1 \xff\x00".as_slice(), &capital, b"WARREN1 \n", &line(A), b"WARREN", &line(B)].concat();

        assert_eq!(all(&bytes), [*A, *B]);
    }

    #[test]
    fn only_the_line_with_the_right_nonce_matches() {
        let mut search = LineScanner::new(line(B));
        let bytes = [line(A), line(B)[..20].to_vec(), line(B)].concat();

        let ends: Vec<usize> = (0..bytes.len()).filter(|at| search.take(bytes[*at])).collect();

        assert_eq!(ends, [bytes.len() - 1]);
    }
}
