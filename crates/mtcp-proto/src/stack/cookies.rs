//! Creates and checks SYN cookies, which represent half-open connections without memory (RFC 4987,
//! section 3.6).
//!
//! The initial sequence number contains, from its top: five bits of the minute, three bits of the
//! peer's maximum segment, and 24 bits of a keyed hash over the four-tuple, the peer's initial
//! number and all that is encoded. Other options of the SYN (window scale, SACK, ECN) are in the
//! six lowest bits of the timestamp, which the peer echoes; without timestamps they are lost.

use crate::flow::{Flow, Key};
use crate::sequence::Sequence;
use crate::tcp::Remembered;
use crate::time::Instant;
use crate::wire::tcp::TcpHeader;
use siphasher::sip::SipHasher24;
use std::hash::Hasher;

/// The maximum segment sizes that a cookie can encode; a peer's is rounded down.
const MAXIMUM_SEGMENTS: [u16; 8] = [64, 536, 1220, 1360, 1400, 1440, 1460, 8940];
/// A cookie is valid in the minute in which it was created and in the next.
const MINUTES: u32 = 1;
const MINUTE_BITS: u32 = 5;
const HASH_BITS: u32 = 24;
/// The bits of a timestamp that remember options.
const OPTION_BITS: u32 = 6;
const OPTION_MASK: u32 = (1 << OPTION_BITS) - 1;
const SACK: u32 = 1 << 4;
const ECN: u32 = 1 << 5;
/// A window scale that means "no option"; 14 is the largest valid one.
const NO_SCALE: u32 = 15;
/// A cookie and, if timestamps are used, the timestamp that encodes the options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cookie {
    pub(super) initial: Sequence,
    pub(super) timestamp: u32,
}

/// Makes the cookie that answers a SYN with this number. `clock` is our timestamp clock, including
/// the offset. Without timestamps the cookie keeps only the maximum segment.
pub(super) fn make(
    key: Key,
    flow: &Flow,
    now: Instant,
    peer_initial: Sequence,
    kept: &Remembered,
    clock: u32,
) -> Cookie {
    let largest = kept.maximum_segment;
    let segment = MAXIMUM_SEGMENTS.iter().rposition(|&known| known <= largest).unwrap_or(0) as u32;
    let remembered = kept.window_scale.map_or(NO_SCALE, |shift| u32::from(shift.min(14)))
        | if kept.sack_permitted { SACK } else { 0 }
        | if kept.ecn { ECN } else { 0 };
    let options = if kept.timestamps { remembered } else { NO_SCALE };
    // The clock goes back by at most 63 ms and never ahead, so later timestamps are not behind this
    // one.
    let back = clock.wrapping_sub(options) & OPTION_MASK;
    let minute = minute(now);
    let hash = hash(key, flow, peer_initial, minute, segment, options);
    let top = minute & ((1 << MINUTE_BITS) - 1);
    let initial = Sequence(top << (32 - MINUTE_BITS) | segment << HASH_BITS | hash);
    Cookie { initial, timestamp: clock.wrapping_sub(back) }
}

/// The options of the SYN, if this ACK contains a valid cookie; otherwise `None`.
pub(super) fn check(key: Key, flow: &Flow, now: Instant, ack: &TcpHeader) -> Option<Remembered> {
    let cookie = (ack.acknowledgement - 1).0;
    let current = minute(now);
    let age = current.wrapping_sub(cookie >> (32 - MINUTE_BITS)) & ((1 << MINUTE_BITS) - 1);
    if age > MINUTES {
        return None;
    }
    let segment = cookie >> HASH_BITS & 7;
    let echo = ack.options.timestamps.map(|timestamps| timestamps.echo & OPTION_MASK);
    let bits = echo.unwrap_or(NO_SCALE);
    let peer_initial = ack.sequence - 1;
    let expected = hash(key, flow, peer_initial, current.wrapping_sub(age), segment, bits);
    (cookie & ((1 << HASH_BITS) - 1) == expected).then(|| Remembered {
        maximum_segment: MAXIMUM_SEGMENTS[segment as usize],
        window_scale: (bits & 15 != NO_SCALE).then_some((bits & 15) as u8),
        sack_permitted: bits & SACK != 0,
        timestamps: echo.is_some(),
        ecn: bits & ECN != 0,
    })
}

/// Minutes of the stack's clock, approximated as 64 seconds.
fn minute(now: Instant) -> u32 {
    (now.as_millis() / 64_000) as u32
}

fn hash(
    key: Key,
    flow: &Flow,
    peer_initial: Sequence,
    minute: u32,
    segment: u32,
    options: u32,
) -> u32 {
    let mut hasher = SipHasher24::new_with_keys(key.0, key.1);
    hasher.write_u64(flow.hash(key));
    hasher.write_u64(u64::from(peer_initial.0) << 32 | u64::from(minute));
    hasher.write_u32(segment << OPTION_BITS | options);
    hasher.finish() as u32 & ((1 << HASH_BITS) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::tcp::{Flags, Options, Timestamps};
    use std::time::Duration;

    const KEY: Key = Key(11, 13);
    const START: Instant = Instant::from_nanos(7_000_000_000_000);

    fn flow() -> Flow {
        Flow::new(([10, 0, 0, 1].into(), 80), ([10, 0, 0, 2].into(), 40000))
    }

    const PEER_INITIAL: Sequence = Sequence(u32::MAX);

    fn kept(maximum_segment: u16, window_scale: Option<u8>, timestamps: bool) -> Remembered {
        let (sack_permitted, ecn) = (true, true);
        Remembered { maximum_segment, window_scale, sack_permitted, timestamps, ecn }
    }

    fn made(kept: &Remembered, clock: u32) -> Cookie {
        make(KEY, &flow(), START, PEER_INITIAL, kept, clock)
    }

    fn ack(cookie: Cookie, timestamps: bool) -> TcpHeader {
        let echo = cookie.timestamp;
        let timestamps = timestamps.then_some(Timestamps { value: 6, echo });
        TcpHeader {
            sequence: PEER_INITIAL + 1,
            acknowledgement: cookie.initial + 1,
            flags: Flags::ACK,
            options: Options { timestamps, ..Options::default() },
            ..TcpHeader::default()
        }
    }

    #[test]
    fn everything_comes_back_with_timestamps() {
        for clock in [0, 1, 62, 63, 64, 1000, u32::MAX, u32::MAX - 70] {
            for scale in [None, Some(0), Some(7), Some(14)] {
                let kept = kept(1460, scale, true);
                let cookie = made(&kept, clock);
                let behind = clock.wrapping_sub(cookie.timestamp);
                assert!(behind < 64, "{behind} at {clock}");
                assert_eq!(check(KEY, &flow(), START, &ack(cookie, true)), Some(kept));
            }
        }
    }

    #[test]
    fn without_timestamps_only_the_segment_comes_back() {
        for (offered, expected) in [(536, 536), (100, 64), (1459, 1440), (u16::MAX, 8940)] {
            let cookie = made(&kept(offered, Some(7), false), 99);
            let found = check(KEY, &flow(), START, &ack(cookie, false)).unwrap();
            assert_eq!(found.maximum_segment, expected);
            assert_eq!((found.window_scale, found.sack_permitted), (None, false));
            assert!(!found.timestamps && !found.ecn);
        }
    }

    #[test]
    fn cookies_age_and_cannot_be_changed() {
        let good = ack(made(&kept(1460, Some(7), true), 12345), true);
        assert!(check(KEY, &flow(), START + Duration::from_secs(63), &good).is_some());
        for seconds in [128, 64 * 3, 64 * 31] {
            let later = START + Duration::from_secs(seconds);
            assert_eq!(check(KEY, &flow(), later, &good), None, "after {seconds} s");
        }
        assert_eq!(check(Key(11, 14), &flow(), START, &good), None);
        assert_eq!(check(KEY, &flow().with_local_port(81), START, &good), None);
        for bit in 0..32 {
            let mut bad = good;
            bad.acknowledgement = Sequence((good.acknowledgement - 1).0 ^ 1 << bit) + 1;
            assert_eq!(check(KEY, &flow(), START, &bad), None, "bit {bit}");
            let mut bad = good;
            bad.sequence = Sequence(good.sequence.0 ^ 1 << bit);
            assert_eq!(check(KEY, &flow(), START, &bad), None, "peer's bit {bit}");
        }
        for bit in 0..OPTION_BITS {
            let mut bad = good;
            bad.options.timestamps.as_mut().unwrap().echo ^= 1 << bit;
            assert_eq!(check(KEY, &flow(), START, &bad), None, "option bit {bit}");
        }
    }
}
