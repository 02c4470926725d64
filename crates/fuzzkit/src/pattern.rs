//! Creates contents in which every position differs from its neighbours.

use crate::random::mix;

/// Returns the bytes `start..start + count` of the endless stream with this number.
pub fn bytes(stream: u64, start: u64, count: usize) -> Vec<u8> {
    (start..start + count as u64).map(|at| byte(stream, at)).collect()
}

fn byte(stream: u64, at: u64) -> u8 {
    let word = mix(stream.wrapping_mul(0x9e37_79b9).wrapping_add(at / 8 + 1));
    word.to_le_bytes()[(at % 8) as usize]
}

/// Returns the first position that differs from the stream, if `found` is expected at `start`.
pub fn mismatch(stream: u64, start: u64, found: &[u8]) -> Option<u64> {
    let wrong = |(at, found): (u64, &u8)| (byte(stream, at) != *found).then_some(at);
    (start..).zip(found).find_map(wrong)
}

/// Minimum number of bytes of a message: its number and its length.
pub const MESSAGE_BYTES_MIN: usize = 8;

/// Returns the message with this number of a stream: its number, its length, then contents of its
/// own.
pub fn message(stream: u64, number: u32, count: usize) -> Vec<u8> {
    let count = count.max(MESSAGE_BYTES_MIN);
    let mut made = number.to_le_bytes().to_vec();
    made.extend_from_slice(&(count as u32).to_le_bytes());
    let rest = count - MESSAGE_BYTES_MIN;
    made.extend(bytes(mix(stream ^ u64::from(number)), 0, rest));
    made
}

/// Returns the number and the length in the beginning of a message.
pub fn message_header(found: &[u8]) -> Option<(u32, usize)> {
    let word = |at: usize| Some(u32::from_le_bytes(found.get(at..at + 4)?.try_into().ok()?));
    Some((word(0)?, word(4)? as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_byte_is_found_at_its_position() {
        let mut found = bytes(3, 100, 50);
        assert_eq!(mismatch(3, 100, &found), None);
        found[20] ^= 1;
        assert_eq!(mismatch(3, 100, &found), Some(120));
        assert!(mismatch(3, 101, &bytes(3, 100, 50)).is_some());
        assert!(mismatch(4, 100, &bytes(3, 100, 50)).is_some());
    }

    #[test]
    fn a_message_tells_its_number_and_length() {
        let made = message(9, 77, 40);
        assert_eq!((made.len(), message_header(&made)), (40, Some((77, 40))));
        assert_eq!(message_header(&made[..7]), None);
        assert_ne!(message(9, 78, 40)[8..], made[8..]);
    }
}
