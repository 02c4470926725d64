//! Generates the content of files and values that servers serve in tests.

/// Bytes without a short period, so that a lost or repeated block is detected.
pub fn content(bytes: usize) -> Vec<u8> {
    let mut state = bytes as u64 + 1;
    let mut all = Vec::with_capacity(bytes + 8);
    while all.len() < bytes {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        all.extend_from_slice(&(state >> 16).to_le_bytes()[..6]);
    }
    all.truncate(bytes);
    all
}
