//! Keys of objects, relative to the root of the mount, and their percent-encoded form.

/// The longest key of S3. The prefix of the mount counts too, but only the proxy knows it.
pub const KEY_MAX_BYTES: usize = 1024;

/// Encodes a key as a path: every byte except unreserved ones and slashes.
pub fn encode_path(key: &str) -> String {
    encode(key, b"/")
}

/// Encodes the value of a query parameter.
pub fn encode_value(value: &str) -> String {
    encode(value, b"")
}

fn encode(text: &str, kept: &[u8]) -> String {
    let mut encoded = String::with_capacity(text.len() + 8);
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte as char),
            byte if kept.contains(&byte) => encoded.push(byte as char),
            byte => {
                const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
                encoded.push('%');
                encoded.push(DIGITS[usize::from(byte >> 4)] as char);
                encoded.push(DIGITS[usize::from(byte & 15)] as char);
            }
        }
    }
    encoded
}

/// None: not percent-encoded UTF-8.
pub fn decode(text: &str) -> Option<String> {
    if !text.contains('%') {
        return Some(text.to_owned());
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = match (first, after) {
            (b'%', [high, low, after @ ..]) => {
                let digit = |byte: u8| (byte as char).to_digit(16);
                bytes.push((digit(*high)? * 16 + digit(*low)?) as u8);
                after
            }
            (b'%', _) => return None,
            (byte, after) => {
                bytes.push(*byte);
                after
            }
        };
    }
    String::from_utf8(bytes).ok()
}

/// Whether a segment of a key can be a file name.
pub fn is_name(segment: &str) -> bool {
    !matches!(segment, "" | "." | "..") && segment.len() <= 255 && !segment.contains(['/', '\0'])
}

/// Whether a new object may have this name: a listing cannot contain most control characters, and some servers take
/// backslashes for slashes (docs/disk-protocol.md#keys).
pub fn is_storable(name: &str) -> bool {
    let is_bad = |c: char| (c.is_control() && !matches!(c, '\t' | '\n' | '\r')) || matches!(c, '\u{fffe}' | '\u{ffff}');
    !name.contains(is_bad) && !name.split('\\').any(|part| part == "." || part == "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_survives_encoding() {
        let key = "a b/ü%+&=?#\"<>\n\u{7f}/~x";

        let encoded = encode_path(key);

        assert_eq!(encoded, "a%20b/%C3%BC%25%2B%26%3D%3F%23%22%3C%3E%0A%7F/~x");
        assert_eq!(decode(&encoded).as_deref(), Some(key));
        assert_eq!(encode_value("a/b"), "a%2Fb");
    }

    #[test]
    fn invalid_encodings_are_refused() {
        for text in ["%", "%4", "%zz", "%ff"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }

    #[test]
    fn names_that_no_listing_can_contain_are_not_storable() {
        assert!(["a\tb", "a\\b", "ü"].iter().all(|name| is_storable(name)));
        assert!(["a\u{1}", "\u{7f}", "a\\..", "\u{ffff}"].iter().all(|name| !is_storable(name)));
    }

    #[test]
    fn segments_without_a_name_are_recognised() {
        assert!(is_name("a"));
        assert!(["", ".", "..", "a/b", "a\0"].iter().all(|segment| !is_name(segment)));
    }
}
