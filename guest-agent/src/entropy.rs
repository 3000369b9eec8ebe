//! POST /entropy: reseeds the random generator. Two clones of one snapshot share the generator's state until the host
//! gives each of them different bytes. Adding entropy is not enough: only a forced reseed replaces the key in use.

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;

use serde::Serialize;

use crate::reply::{Failure, HandlerResult};
use crate::sys::check;

const MIN_BYTES: usize = 32;
const MAX_BYTES: usize = 512;
const RNDADDENTROPY: libc::Ioctl = 0x4008_5203_u32 as libc::Ioctl;
const RNDRESEEDCRNG: libc::Ioctl = 0x5207;

#[derive(Serialize)]
pub struct EntropyResponse {
    added_bytes: usize,
    reseeded: bool,
}

#[repr(C)]
struct RandPoolInfo {
    entropy_bits: libc::c_int,
    size_bytes: libc::c_int,
    bytes: [u8; MAX_BYTES],
}

pub fn add_entropy(bytes: &[u8]) -> HandlerResult<EntropyResponse> {
    if bytes.len() < MIN_BYTES {
        return Err(Failure::invalid(format!("entropy: must have at least {MIN_BYTES} bytes")).into());
    }
    let used = bytes.get(..MAX_BYTES).unwrap_or(bytes);
    let failed = |error| Failure::internal("failed to reseed the random generator", &error);
    let device = OpenOptions::new().write(true).open("/dev/urandom").map_err(failed)?;
    let count = used.len() as libc::c_int;
    let mut info = RandPoolInfo { entropy_bits: count * 8, size_bytes: count, bytes: [0; MAX_BYTES] };
    for (slot, byte) in info.bytes.iter_mut().zip(used) {
        *slot = *byte;
    }
    // SAFETY: the struct starts with the two lengths, and its array holds at least `size_bytes` bytes.
    check(unsafe { libc::ioctl(device.as_raw_fd(), RNDADDENTROPY, &info) }).map_err(failed)?;
    check(unsafe { libc::ioctl(device.as_raw_fd(), RNDRESEEDCRNG) }).map_err(failed)?;
    Ok(EntropyResponse { added_bytes: used.len(), reseeded: true })
}

/// Parses hex, the form of entropy in POST /wake.
pub fn parse_hex(text: &str) -> Option<Vec<u8>> {
    if text.len() % 2 != 0 {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pair = |pair: &[u8]| match pair {
        [high, low] => u8::try_from(digit(*high)? * 16 + digit(*low)?).ok(),
        _ => None,
    };
    text.as_bytes().chunks(2).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_is_parsed_completely_or_rejected() {
        assert_eq!(parse_hex("00ffA1"), Some(vec![0, 255, 0xa1]));
        assert_eq!(parse_hex("0"), None);
        assert_eq!(parse_hex("0g"), None);
    }

    #[test]
    fn too_little_entropy_is_rejected() {
        assert!(add_entropy(&[0; 31]).is_err());
    }
}
