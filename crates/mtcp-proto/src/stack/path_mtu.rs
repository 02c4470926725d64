//! Remembers the path MTU that routers have reported, by destination (RFC 1191, RFC 8201).

use crate::time::Instant;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// Most destinations that are stored. Beyond this number the oldest is removed.
const LIMIT: usize = 1024;
/// How long a reported MTU is used before a larger packet may be tried (RFC 8201, section 4: ten
/// minutes).
const LASTS: Duration = Duration::from_secs(600);
/// The packet size that every path carries: RFC 8200, section 5; for IPv4 the size that every host
/// accepts (RFC 1122, section 3.3.2). Reports of a smaller MTU are attacks more often than paths.
const LEAST_IPV6: u16 = 1280;
const LEAST_IPV4: u16 = 576;

/// The longest packets that the paths to some destinations carry.
#[derive(Debug, Default)]
pub(super) struct PathMtus(BTreeMap<IpAddr, (u16, Instant)>);

impl PathMtus {
    /// The MTU to use for a router's report. Routers older than RFC 1191 report zero, for which the
    /// minimum is used.
    pub(super) fn plausible(destination: IpAddr, claimed: u32) -> u16 {
        let least = if destination.is_ipv4() { LEAST_IPV4 } else { LEAST_IPV6 };
        u16::try_from(claimed).unwrap_or(u16::MAX).max(least)
    }

    /// Stores the MTU that a router has reported for a destination.
    pub(super) fn learn(&mut self, destination: IpAddr, mtu: u16, now: Instant) {
        if self.0.len() >= LIMIT && !self.0.contains_key(&destination) {
            let oldest = self.0.iter().min_by_key(|(_, (_, until))| *until);
            if let Some(oldest) = oldest.map(|(&destination, _)| destination) {
                self.0.remove(&oldest);
            }
        }
        self.0.insert(destination, (mtu, now + LASTS));
    }

    /// The stored MTU of a destination, unless it has expired.
    pub(super) fn get(&self, destination: IpAddr, now: Instant) -> Option<u16> {
        if self.0.is_empty() {
            return None;
        }
        let &(mtu, until) = self.0.get(&destination)?;
        (now < until).then_some(mtu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_remembered_for_a_while_and_boundedly() {
        let mut mtus = PathMtus::default();
        let host = |number: u32| IpAddr::from((0x0a00_0000 + number).to_be_bytes());
        let start = Instant::from_nanos(5);
        for number in 0..LIMIT as u32 + 10 {
            mtus.learn(host(number), 1300, start + Duration::from_millis(u64::from(number)));
        }
        assert_eq!(mtus.0.len(), LIMIT);
        assert_eq!(mtus.get(host(9), start), None);
        assert_eq!(mtus.get(host(10), start), Some(1300));
        assert_eq!(mtus.get(host(10), start + LASTS * 2), None);
        assert_eq!(mtus.get([10, 9, 9, 9].into(), start), None);
    }

    #[test]
    fn claims_are_bounded() {
        assert_eq!(PathMtus::plausible([10, 0, 0, 1].into(), 0), 576);
        assert_eq!(PathMtus::plausible([10, 0, 0, 1].into(), 1400), 1400);
        assert_eq!(PathMtus::plausible("fd00::1".parse().unwrap(), 600), 1280);
        assert_eq!(PathMtus::plausible("fd00::1".parse().unwrap(), u32::MAX), u16::MAX);
    }
}
