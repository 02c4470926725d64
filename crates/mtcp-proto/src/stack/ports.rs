//! Ephemeral ports (RFC 6056, section 3.3.4: double-hash port selection).

use super::flow::{Flow, Key};
use std::ops::RangeInclusive;

const COUNTERS: usize = 256;

/// Where the search for the next port begins: a keyed hash of the destination, plus a counter that
/// is shared by few destinations, so that ports follow each other per destination (and return as
/// late as possible) and cannot be guessed from another.
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

    /// The first port from there for which `take` gives something; `None` if all were refused.
    pub(super) fn choose<T>(
        &mut self,
        flow: &Flow,
        mut take: impl FnMut(Flow) -> Option<T>,
    ) -> Option<T> {
        let hash = flow.with_local_port(0).hash(self.key);
        let counter = &mut self.counters[(hash >> 56) as usize % COUNTERS];
        let (first, last) = (*self.range.start(), *self.range.end());
        let count = u32::from(last - first) + 1;
        for _ in 0..count {
            let place = (hash as u32).wrapping_add(*counter) % count;
            *counter = counter.wrapping_add(1);
            let chosen = take(flow.with_local_port(first + place as u16));
            if chosen.is_some() {
                return chosen;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn flow(host: u8) -> Flow {
        Flow::new(([10, 0, 0, 1].into(), 0), ([10, 0, 0, host].into(), 80))
    }

    #[test]
    fn all_ports_are_found_and_then_none() {
        let mut ports = Ports::new(Key(1, 2), 100..=199);
        let mut taken = BTreeSet::new();
        for _ in 0..100 {
            let port = ports.choose(&flow(2), |flow| {
                let port = flow.local_port();
                taken.insert(port).then_some(port)
            });
            assert!((100..=199).contains(&port.unwrap()));
        }
        assert_eq!(ports.choose(&flow(2), |flow| taken.insert(flow.local_port()).then_some(())), None);
        taken.remove(&150);
        let again = ports.choose(&flow(2), |flow| {
            taken.insert(flow.local_port()).then_some(flow.local_port())
        });
        assert_eq!(again, Some(150));
    }

    #[test]
    fn a_port_comes_back_late_and_starts_differ_between_destinations() {
        let mut ports = Ports::new(Key(1, 2), 1024..=65535);
        let first = ports.choose(&flow(2), |flow| Some(flow.local_port())).unwrap();
        for _ in 0..1000 {
            let next = ports.choose(&flow(2), |flow| Some(flow.local_port()));
            assert_ne!(next, Some(first));
        }
        let starts: BTreeSet<u16> = (3..20)
            .map(|host| ports.choose(&flow(host), |flow| Some(flow.local_port())).unwrap())
            .collect();
        assert!(starts.len() > 15, "{starts:?}");
    }

    #[test]
    fn the_whole_range_and_a_single_port_are_possible() {
        let mut ports = Ports::new(Key(1, 2), 0..=u16::MAX);
        assert!(ports.choose(&flow(2), |_| Some(())).is_some());
        let mut ports = Ports::new(Key(1, 2), 7..=7);
        assert_eq!(ports.choose(&flow(2), |flow| Some(flow.local_port())), Some(7));
    }
}
