//! Selects ephemeral ports (RFC 6056, section 3.3.4: double-hash port selection).

use crate::flow::{Flow, Key};
use std::ops::RangeInclusive;

const COUNTERS: usize = 256;

/// Selects ports. The search starts at a keyed hash of the destination plus a counter that few
/// destinations share. Successive connections to one destination therefore use successive ports, a
/// port is reused as late as possible, and the ports to one destination do not reveal those to
/// another.
#[derive(Debug)]
pub(super) struct Ports {
    key: Key,
    range: RangeInclusive<u16>,
    counters: Box<[u32; COUNTERS]>,
}

impl Ports {
    pub(super) fn new(key: Key, range: RangeInclusive<u16>) -> Ports {
        Ports { key, range, counters: Box::new([0; COUNTERS]) }
    }

    /// Begins a search for a port to the flow's destination.
    pub(super) fn search(&self, flow: &Flow) -> Search {
        Search(flow.with_local_port(0).hash(self.key))
    }

    /// The number of ports; a search with as many steps has tried all of them.
    pub(super) fn count(&self) -> u32 {
        u32::from(self.range.end() - self.range.start()) + 1
    }

    /// The flow with the next port of a search.
    pub(super) fn step(&mut self, search: Search, flow: &Flow) -> Flow {
        let count = self.count();
        let counter = &mut self.counters[(search.0 >> 56) as usize % COUNTERS];
        // 64 bits, because the sum must not wrap: the ports would not follow each other then.
        let place = (u64::from(search.0 as u32) + u64::from(*counter)) % u64::from(count);
        *counter = (*counter + 1) % count;
        flow.with_local_port(self.range.start() + place as u16)
    }
}

/// The state of a search for a port to one destination.
#[derive(Clone, Copy, Debug)]
pub(super) struct Search(u64);

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn flow(host: u8) -> Flow {
        Flow::new(([10, 0, 0, 1].into(), 0), ([10, 0, 0, host].into(), 80))
    }

    fn next(ports: &mut Ports, host: u8) -> u16 {
        let search = ports.search(&flow(host));
        ports.step(search, &flow(host)).local_port()
    }

    #[test]
    fn a_search_sees_all_ports_once() {
        let mut ports = Ports::new(Key(1, 2), 100..=199);
        let seen: BTreeSet<u16> = (0..ports.count()).map(|_| next(&mut ports, 2)).collect();
        assert!(seen.into_iter().eq(100..=199));
    }

    #[test]
    fn a_search_that_passes_32_bits_sees_all_ports_once() {
        let mut ports = Ports::new(Key(1, 2), 100..=199);
        let search = Search(u64::from(u32::MAX - 50));
        let mut step = |_| ports.step(search, &flow(2)).local_port();
        let seen: BTreeSet<u16> = (100..=199).map(&mut step).collect();
        assert!(seen.into_iter().eq(100..=199));
    }

    #[test]
    fn a_port_comes_back_late_and_starts_differ_between_destinations() {
        let mut ports = Ports::new(Key(1, 2), 1024..=65535);
        let first = next(&mut ports, 2);
        assert!((0..1000).all(|_| next(&mut ports, 2) != first));
        let starts: BTreeSet<u16> = (3..20).map(|host| next(&mut ports, host)).collect();
        assert!(starts.len() > 15, "{starts:?}");
    }

    #[test]
    fn the_largest_range_and_a_single_port_are_possible() {
        let mut ports = Ports::new(Key(1, 2), 1..=u16::MAX);
        assert_eq!(ports.count(), 65_535);
        assert!((0..100).all(|_| next(&mut ports, 2) > 0));
        let mut ports = Ports::new(Key(1, 2), 7..=7);
        assert_eq!(next(&mut ports, 2), 7);
    }
}
