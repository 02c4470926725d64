//! SYN cookies: connections that are begun without memory (RFC 4987, section 3.6).
//!
//! The initial sequence number carries, from its top: five bits of the minute, three bits of the
//! peer's maximum segment, and 24 bits of a keyed hash over both ends, the peer's initial number
//! and all that is encoded. What else the SYN offered (window scale, SACK, ECN) travels in the six
//! lowest bits of our timestamp, which the peer echoes; without timestamps it is forgotten.

use super::flow::{Flow, Key};
use crate::sequence::Sequence;
use crate::tcp::connection::Remembered;
use crate::time::Instant;
use crate::wire::tcp::{Flags, Options, TcpHeader};
use siphasher::sip::SipHasher24;
use std::hash::Hasher;

/// The maximum segments that can be remembered; a peer's is rounded down.
const MAXIMUM_SEGMENTS: [u16; 8] = [216, 536, 1220, 1360, 1400, 1440, 1460, 8940];
/// A cookie is good in the minute in which it was made and in the next.
const MINUTES: u32 = 1;
const MINUTE_BITS: u32 = 5;
const HASH_BITS: u32 = 24;
/// The bits of a timestamp that remember options.
const OPTION_BITS: u32 = 6;
const OPTION_MASK: u32 = (1 << OPTION_BITS) - 1;
const SACK: u32 = 1 << 4;
const ECN: u32 = 1 << 5;
/// A window scale that means none; 14 is the greatest there is.
const NO_SCALE: u32 = 15;
/// What a peer takes that does not say (RFC 9293, section 3.7.1).
const DEFAULT_SEGMENT: u16 = 536;

/// A cookie and the timestamp that goes with it, if the peer offered timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cookie {
    pub(super) initial: Sequence,
    pub(super) timestamp: Option<u32>,
}

/// Makes the cookie that answers a SYN. `options` are the SYN's, without those that the stack does
/// not accept; `clock` is our timestamp clock, offset included.
pub(super) fn make(
    key: Key,
    flow: &Flow,
    now: Instant,
    syn: &TcpHeader,
    options: &Options,
    clock: u32,
) -> Cookie {
    let segment = options.maximum_segment.unwrap_or(DEFAULT_SEGMENT);
    let fitting = MAXIMUM_SEGMENTS.iter().rposition(|&known| known <= segment).unwrap_or(0) as u32;
    let ecn = syn.flags.contains(Flags::ECE.with(Flags::CWR));
    let remembered = options.window_scale.map_or(NO_SCALE, |shift| u32::from(shift.min(14)))
        | if options.sack_permitted { SACK } else { 0 }
        | if ecn { ECN } else { 0 };
    // The clock goes at most 63 ms back, never ahead, so that later timestamps do not fall behind.
    let timestamp = options.timestamps.map(|_| {
        let stamped = clock & !OPTION_MASK | remembered;
        if stamped.wrapping_sub(clock) as i32 > 0 {
            stamped.wrapping_sub(1 << OPTION_BITS)
        } else {
            stamped
        }
    });
    let minute = minute(now);
    let bits = timestamp.map_or(NO_SCALE, |_| remembered);
    let hash = hash(key, flow, syn.sequence, minute, fitting, bits);
    let top = minute & ((1 << MINUTE_BITS) - 1);
    let initial = Sequence(top << (32 - MINUTE_BITS) | fitting << HASH_BITS | hash);
    Cookie { initial, timestamp }
}

/// What the SYN offered, if this ACK brings back a cookie of ours that is not too old.
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

/// Minutes of the stack's clock, for which 64 seconds serve.
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
    use crate::wire::tcp::Timestamps;
    use std::time::Duration;

    const KEY: Key = Key(11, 13);
    const START: Instant = Instant::from_nanos(7_000_000_000_000);

    fn flow() -> Flow {
        Flow::new(([10, 0, 0, 1].into(), 80), ([10, 0, 0, 2].into(), 40000))
    }

    fn syn(timestamps: bool, scale: Option<u8>, segment: Option<u16>) -> TcpHeader {
        TcpHeader {
            sequence: Sequence(u32::MAX),
            flags: Flags::SYN.with(Flags::ECE).with(Flags::CWR),
            options: Options {
                maximum_segment: segment,
                window_scale: scale,
                sack_permitted: true,
                timestamps: timestamps.then_some(Timestamps { value: 5, echo: 0 }),
                ..Options::default()
            },
            ..TcpHeader::default()
        }
    }

    fn ack(syn: &TcpHeader, cookie: Cookie) -> TcpHeader {
        let timestamps = cookie.timestamp.map(|echo| Timestamps { value: 6, echo });
        TcpHeader {
            sequence: syn.sequence + 1,
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
                let syn = syn(true, scale, Some(1460));
                let cookie = make(KEY, &flow(), START, &syn, &syn.options, clock);
                let behind = clock.wrapping_sub(cookie.timestamp.unwrap());
                assert!(behind < 64, "{behind} at {clock}");
                let found = check(KEY, &flow(), START, &ack(&syn, cookie)).unwrap();
                let expected = Remembered {
                    maximum_segment: 1460,
                    window_scale: scale,
                    sack_permitted: true,
                    timestamps: true,
                    ecn: true,
                };
                assert_eq!(found, expected);
            }
        }
    }

    #[test]
    fn without_timestamps_only_the_segment_comes_back() {
        for (offered, expected) in
            [(None, 536), (Some(100), 216), (Some(1459), 1440), (Some(u16::MAX), 8940)]
        {
            let syn = syn(false, Some(7), offered);
            let cookie = make(KEY, &flow(), START, &syn, &syn.options, 99);
            assert_eq!(cookie.timestamp, None);
            let found = check(KEY, &flow(), START, &ack(&syn, cookie)).unwrap();
            assert_eq!(found.maximum_segment, expected);
            assert_eq!((found.window_scale, found.sack_permitted), (None, false));
            assert!(!found.timestamps && !found.ecn);
        }
    }

    #[test]
    fn cookies_age_and_cannot_be_changed() {
        let syn = syn(true, Some(7), Some(1460));
        let cookie = make(KEY, &flow(), START, &syn, &syn.options, 12345);
        let good = ack(&syn, cookie);
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
