//! MD5 (RFC 1321), for Content-MD5: the one digest that every S3 server checks. It finds damaged bodies and protects
//! against nothing else.

pub struct Md5 {
    state: [u32; 4],
    length: u64,
    block: [u8; 64],
}

const SHIFTS: [[u32; 4]; 4] = [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];

/// floor(2^32 × |sin(i + 1)|)
const SINES: [u32; 64] = [
    0xd76aa478, 0xe8c7b756, 0x242070db, 0xc1bdceee, 0xf57c0faf, 0x4787c62a, 0xa8304613, 0xfd469501, 0x698098d8,
    0x8b44f7af, 0xffff5bb1, 0x895cd7be, 0x6b901122, 0xfd987193, 0xa679438e, 0x49b40821, 0xf61e2562, 0xc040b340,
    0x265e5a51, 0xe9b6c7aa, 0xd62f105d, 0x02441453, 0xd8a1e681, 0xe7d3fbc8, 0x21e1cde6, 0xc33707d6, 0xf4d50d87,
    0x455a14ed, 0xa9e3e905, 0xfcefa3f8, 0x676f02d9, 0x8d2a4c8a, 0xfffa3942, 0x8771f681, 0x6d9d6122, 0xfde5380c,
    0xa4beea44, 0x4bdecfa9, 0xf6bb4b60, 0xbebfbc70, 0x289b7ec6, 0xeaa127fa, 0xd4ef3085, 0x04881d05, 0xd9d4d039,
    0xe6db99e5, 0x1fa27cf8, 0xc4ac5665, 0xf4292244, 0x432aff97, 0xab9423a7, 0xfc93a039, 0x655b59c3, 0x8f0ccc92,
    0xffeff47d, 0x85845dd1, 0x6fa87e4f, 0xfe2ce6e0, 0xa3014314, 0x4e0811a1, 0xf7537e82, 0xbd3af235, 0x2ad7d2bb,
    0xeb86d391,
];

impl Default for Md5 {
    fn default() -> Self {
        Self { state: [0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476], length: 0, block: [0; 64] }
    }
}

impl Md5 {
    pub fn update(&mut self, mut bytes: &[u8]) {
        let filled = (self.length % 64) as usize;
        self.length += bytes.len() as u64;
        if filled > 0 {
            let taken = bytes.len().min(64 - filled);
            self.block[filled..filled + taken].copy_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            if filled + taken < 64 {
                return;
            }
            let block = self.block;
            self.add_block(&block);
        }
        let mut blocks = bytes.chunks_exact(64);
        for block in &mut blocks {
            self.add_block(block);
        }
        let rest = blocks.remainder();
        self.block[..rest.len()].copy_from_slice(rest);
    }

    pub fn finish(mut self) -> [u8; 16] {
        let bits = self.length.wrapping_mul(8);
        let padding = 64 - (self.length + 8) as usize % 64;
        let mut end = [0; 72];
        end[0] = 0x80;
        end[padding..padding + 8].copy_from_slice(&bits.to_le_bytes());
        self.update(&end[..padding + 8]);
        let mut digest = [0; 16];
        for (target, word) in digest.chunks_exact_mut(4).zip(self.state) {
            target.copy_from_slice(&word.to_le_bytes());
        }
        digest
    }

    fn add_block(&mut self, block: &[u8]) {
        let mut words = [0u32; 16];
        for (word, bytes) in words.iter_mut().zip(block.chunks_exact(4)) {
            *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        let [mut a, mut b, mut c, mut d] = self.state;
        // Unrolled by the compiler: every index and shift is then a constant.
        macro_rules! round {
            ($number:literal, $mix:expr, $index:expr) => {
                for step in 0..16 {
                    let mixed: u32 = $mix(b, c, d);
                    let sum = a
                        .wrapping_add(mixed)
                        .wrapping_add(SINES[$number * 16 + step])
                        .wrapping_add(words[$index(step) % 16]);
                    a = d;
                    d = c;
                    c = b;
                    b = b.wrapping_add(sum.rotate_left(SHIFTS[$number][step % 4]));
                }
            };
        }
        round!(0, |x: u32, y: u32, z: u32| z ^ (x & (y ^ z)), |step: usize| step);
        round!(1, |x: u32, y: u32, z: u32| y ^ (z & (x ^ y)), |step: usize| 5 * step + 1);
        round!(2, |x: u32, y: u32, z: u32| x ^ y ^ z, |step: usize| 3 * step + 5);
        round!(3, |x: u32, y: u32, z: u32| y ^ (x | !z), |step: usize| 7 * step);
        for (word, added) in self.state.iter_mut().zip([a, b, c, d]) {
            *word = word.wrapping_add(added);
        }
    }
}

pub fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let group = chunk.iter().fold(0u32, |group, byte| group << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for position in 0..4 {
            let letter = LETTERS[(group >> (18 - 6 * position) & 63) as usize];
            text.push(if position > chunk.len() { '=' } else { letter as char });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &[u8], step: usize) -> String {
        let mut md5 = Md5::default();
        text.chunks(step.max(1)).for_each(|chunk| md5.update(chunk));
        md5.finish().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn the_digests_are_those_of_the_standard() {
        for (text, digest) in [
            ("", "d41d8cd98f00b204e9800998ecf8427e"),
            ("abc", "900150983cd24fb0d6963f7d28e17f72"),
            ("message digest", "f96b697d7cb7938d525a2f31aaf161d0"),
            (
                "12345678901234567890123456789012345678901234567890123456789012345678901234567890",
                "57edf4a22be3c955ac49da2e2107b67a",
            ),
        ] {
            for step in [1, 7, 63, 64, 65, 1000] {
                assert_eq!(hex(text.as_bytes(), step), digest);
            }
        }
    }

    #[test]
    fn every_length_around_a_block_is_padded() {
        let text = [b'x'; 200];
        for length in 50..140 {
            assert_eq!(hex(&text[..length], 1), hex(&text[..length], 64), "{length}");
        }
        assert_eq!(hex(&text[..56], 56), "668a72d5ba17f08e62dabcafad6db14b");
    }

    #[test]
    fn base64_is_padded() {
        assert_eq!(base64(b"a"), "YQ==");
        assert_eq!(base64(b"ab"), "YWI=");
        assert_eq!(base64(b"abc"), "YWJj");
    }
}
