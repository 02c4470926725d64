//! Messages that begin with their number, from which their content is computed.

use crate::random::Random;

/// Writes the number and the content that follows from it.
pub(crate) fn fill(bytes: &mut [u8], number: u64) {
    let mut random = Random(number);
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    for chunk in bytes[8..].chunks_mut(8) {
        chunk.copy_from_slice(&random.next().to_le_bytes()[..chunk.len()]);
    }
}

/// Checks that a message has this number and its content.
pub(crate) fn check(bytes: &[u8], number: u64) {
    assert!(bytes.len() >= 8, "message {number} has {} bytes", bytes.len());
    let found = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(found, number, "a gap, a repeat, or another order");
    let mut expected = vec![0; bytes.len()];
    fill(&mut expected, number);
    assert!(bytes == expected, "message {number} was damaged");
}
