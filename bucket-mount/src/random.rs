//! Random names.

/// 16 hex digits.
pub fn random_id() -> String {
    let mut bytes = [0u8; 8];
    // SAFETY: a buffer with its length. So few bytes are always returned at once.
    unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
