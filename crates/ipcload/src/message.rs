//! Writes messages, and checks that the received ones are those that were sent.
//!
//! From 16 bytes on a message has its sequence number in the first eight bytes and in the last
//! eight, little endian, and between them the number's lowest byte repeatedly. From 8 bytes on the
//! second number is missing; shorter messages are the low bytes of the number. The writer writes
//! every byte, and the reader compares the numbers, which differ in a message that was overwritten
//! or cut.

use std::collections::BTreeSet;

const NUMBER_BYTES: usize = 8;

/// Most missing numbers that are stored, to distinguish late messages from repeated ones.
const MISSING_MAX: usize = 1_024;

/// Writes the message with this number over all of `message`.
#[inline]
pub fn fill(message: &mut [u8], sequence: u64) {
    let number = sequence.to_le_bytes();
    let bytes = message.len();
    if bytes < NUMBER_BYTES {
        message.copy_from_slice(&number[..bytes]);
        return;
    }
    message[..NUMBER_BYTES].copy_from_slice(&number);
    let rest = &mut message[NUMBER_BYTES..];
    match rest.len().checked_sub(NUMBER_BYTES) {
        Some(middle) => {
            rest[..middle].fill(number[0]);
            rest[middle..].copy_from_slice(&number);
        }
        None => rest.fill(number[0]),
    }
}

/// Compares received messages with the expected sequence numbers, from zero on.
#[derive(Debug)]
pub struct Checker {
    bytes: usize,
    expected: u64,
    /// The latest skipped numbers that have not arrived yet.
    missing: BTreeSet<u64>,
    /// The number of missing messages that could not be stored.
    forgotten: u64,
    repeated: u64,
    reordered: u64,
    corrupt: u64,
}

impl Checker {
    /// Returns a checker for messages of this size.
    pub fn new(bytes: usize) -> Checker {
        Checker {
            bytes,
            expected: 0,
            missing: BTreeSet::new(),
            forgotten: 0,
            repeated: 0,
            reordered: 0,
            corrupt: 0,
        }
    }

    /// Checks the next message.
    #[inline]
    pub fn check(&mut self, message: &[u8]) {
        let begin = number(message, 0);
        let end = message.len().checked_sub(NUMBER_BYTES).filter(|end| *end >= NUMBER_BYTES);
        let intact =
            message.len() == self.bytes && end.is_none_or(|end| number(message, end) == begin);
        if intact && begin == self.expected & mask(self.bytes) {
            self.expected += 1;
        } else if intact {
            self.unexpected(begin);
        } else {
            self.corrupt += 1;
            self.expected += 1;
        }
    }

    /// Handles an intact message with an unexpected number.
    #[cold]
    fn unexpected(&mut self, found: u64) {
        let mask = mask(self.bytes);
        let ahead = found.wrapping_sub(self.expected) & mask;
        if ahead <= mask / 2 {
            let remembered = ahead.min((MISSING_MAX - self.missing.len()) as u64);
            self.forgotten += ahead - remembered;
            let next = self.expected.saturating_add(ahead);
            self.missing.extend(next - remembered..next);
            self.expected = next.saturating_add(1);
            return;
        }
        let behind = (mask - ahead).saturating_add(1);
        let late = self.expected.checked_sub(behind);
        if late.is_some_and(|late| self.missing.remove(&late)) {
            self.reordered += 1;
        } else {
            self.repeated += 1;
        }
    }

    /// Returns whether every message so far was intact and in order.
    #[inline]
    pub fn is_satisfied(&self) -> bool {
        self.forgotten + self.repeated + self.reordered + self.corrupt == 0
            && self.missing.is_empty()
    }

    /// Returns a description of the faults; `None` if there were none.
    pub fn faults(&self) -> Option<String> {
        let lost = self.forgotten + self.missing.len() as u64;
        let counts = [
            (lost, "lost"),
            (self.repeated, "repeated"),
            (self.reordered, "reordered"),
            (self.corrupt, "corrupt"),
        ];
        let words: Vec<String> = counts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        (!words.is_empty()).then(|| format!("messages were not as sent: {}", words.join(", ")))
    }
}

/// Returns the number at `at`, of which a short message has only the low bytes.
#[inline]
fn number(message: &[u8], at: usize) -> u64 {
    if let Some(bytes) = message.get(at..).and_then(<[u8]>::first_chunk) {
        return u64::from_le_bytes(*bytes);
    }
    let mut number = [0; NUMBER_BYTES];
    number[..message.len()].copy_from_slice(message);
    u64::from_le_bytes(number)
}

/// Returns the bits of a number that a message of this size has.
#[inline]
fn mask(bytes: usize) -> u64 {
    if bytes >= NUMBER_BYTES { u64::MAX } else { (1 << (8 * bytes)) - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(bytes: usize, sequence: u64) -> Vec<u8> {
        let mut message = vec![0xee; bytes];
        fill(&mut message, sequence);
        message
    }

    fn faults_of(bytes: usize, numbers: &[u64]) -> String {
        let mut checker = Checker::new(bytes);
        numbers.iter().for_each(|number| checker.check(&message(bytes, *number)));
        checker.faults().unwrap_or_default()
    }

    #[test]
    fn every_size_carries_its_number() {
        for bytes in [1, 2, 7, 8, 9, 15, 16, 17, 64, 4_096] {
            let numbers: Vec<u64> = (0..1_000).collect();
            assert_eq!(faults_of(bytes, &numbers), "", "{bytes}");
        }
    }

    #[test]
    fn no_byte_is_left_as_it_was() {
        for bytes in 1..100 {
            assert!(message(bytes, 3).iter().all(|byte| *byte != 0xee), "{bytes}");
        }
    }

    #[test]
    fn what_is_lost_repeated_or_reordered_is_told_apart() {
        for bytes in [1, 4, 8, 12, 64] {
            let words = |numbers: &[u64]| faults_of(bytes, numbers);
            assert!(words(&[0, 1, 4, 5]).ends_with(": 2 lost"), "{bytes}");
            assert!(words(&[0, 1, 1, 2]).ends_with(": 1 repeated"), "{bytes}");
            assert!(words(&[0, 2, 1, 3]).ends_with(": 1 reordered"), "{bytes}");
            assert!(words(&[0, 3, 1, 3, 4]).ends_with("1 lost, 1 repeated, 1 reordered"));
        }
    }

    #[test]
    fn more_losses_than_can_be_remembered_are_counted() {
        assert!(faults_of(64, &[0, 1_000_001, 1_000_002]).ends_with(": 1000000 lost"));
        assert!(faults_of(64, &[u64::MAX / 4, u64::MAX / 2, 0]).contains("repeated"));
    }

    #[test]
    fn messages_that_were_changed_on_the_way_are_corrupt() {
        let mut checker = Checker::new(64);
        let mut torn = message(64, 0);
        torn[60] ^= 1;
        checker.check(&torn);
        checker.check(&message(64, 1));
        checker.check(&message(32, 2));
        checker.check(&[]);
        checker.check(&message(64, 4));
        assert_eq!(checker.faults().unwrap(), "messages were not as sent: 3 corrupt");
    }
}
