//! Derives the numbers that an outsider must not guess: keys, initial sequence numbers, timestamp
//! offsets.

use crate::config::Secret;
use crate::flow::{Flow, Key};
use crate::sequence::Sequence;
use crate::time::Instant;
use siphasher::sip::SipHasher24;
use std::hash::Hasher;

/// A key for each purpose, all derived from the one secret, so that one key reveals nothing about
/// another.
#[derive(Debug)]
pub(super) struct Keys {
    /// Key of the flow table and of the steering; the same on all cores.
    pub(super) flow: Key,
    /// Key of the SYN cookies.
    pub(super) cookie: Key,
    /// Key of the ephemeral port selection.
    pub(super) port: Key,
    initial: Key,
    budget: Key,
}

impl Keys {
    pub(super) fn new(secret: &Secret) -> Keys {
        let derive = |purpose: u64| Key(keyed(secret, purpose), keyed(secret, purpose + 1));
        Keys {
            flow: derive(0),
            cookie: derive(2),
            port: derive(4),
            initial: derive(6),
            budget: derive(8),
        }
    }

    /// Returns the initial sequence number (RFC 6528, section 3: a clock of 4 µs and a keyed hash
    /// of both ends) and the offset of the timestamps (RFC 7323, section 5.4). The offset is
    /// constant for a pair of ends, so that PAWS and RFC 6191 hold across incarnations.
    pub(super) fn initial(&self, flow: &Flow, now: Instant) -> (Sequence, u32) {
        let hash = flow.hash(self.initial);
        let clock = (now.as_micros() / 4) as u32;
        (Sequence((hash as u32).wrapping_add(clock)), (hash >> 32) as u32)
    }

    /// The limit of challenge acknowledgements in this second: a random number between 0.5 and 1.5
    /// times the configured limit, so that their count reveals nothing about other connections'
    /// segments.
    pub(super) fn challenge_budget(&self, limit: u32, second: u64) -> u32 {
        let mut hasher = SipHasher24::new_with_keys(self.budget.0, self.budget.1);
        hasher.write_u64(second);
        let spread = (u64::from(limit) * (hasher.finish() >> 32)) >> 32;
        (limit / 2).saturating_add(spread as u32).max(limit.min(1))
    }
}

/// Computes SipHash-2-4 with one half of the secret as the key, over the other half and the
/// purpose.
fn keyed(secret: &Secret, purpose: u64) -> u64 {
    let word = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&secret.0[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    let mut hasher = SipHasher24::new_with_keys(word(0), word(8));
    hasher.write(&secret.0[16..]);
    hasher.write_u64(purpose);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn flow(port: u16) -> Flow {
        let (local, remote) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        Flow::new((local, port), (remote, 80))
    }

    #[test]
    fn numbers_move_with_the_clock_and_differ_between_flows() {
        let keys = Keys::new(&Secret([7; 32]));
        let start = Instant::from_nanos(1 << 40);
        let (first, offset) = keys.initial(&flow(1), start);
        let (later, same) = keys.initial(&flow(1), start + Duration::from_secs(1));
        assert_eq!((later.since(first), offset), (250_000, same));
        let (other, _) = keys.initial(&flow(2), start);
        assert_ne!(first, other);
        let (foreign, _) = Keys::new(&Secret([8; 32])).initial(&flow(1), start);
        assert_ne!(first, foreign);
    }

    #[test]
    fn the_budget_varies_around_its_limit() {
        let keys = Keys::new(&Secret([7; 32]));
        let budgets: Vec<u32> = (0..64).map(|second| keys.challenge_budget(100, second)).collect();
        assert!(budgets.iter().all(|budget| (50..150).contains(budget)), "{budgets:?}");
        assert!(budgets.iter().any(|&budget| budget != budgets[0]));
        assert_eq!(keys.challenge_budget(0, 1), 0);
    }
}
