//! Queues the packets of a stack to its own addresses, which no device returns.

use std::collections::VecDeque;
use std::net::IpAddr;

/// Most packets that wait for the next turn, which takes all of them; the sink is then full.
const PACKETS_MAX: usize = 1024;
/// Most bytes that wait; one packet may exceed the limit.
const BYTES_MAX: usize = 8 << 20;
/// Most buffers that are kept for further packets.
const SPARE_MAX: usize = 64;

/// The looped-back packets of one engine, in the order in which they were sent.
#[derive(Debug, Default)]
pub(super) struct Looped {
    /// The stack's addresses, sorted.
    own: Vec<IpAddr>,
    packets: VecDeque<Vec<u8>>,
    bytes: usize,
    spare: Vec<Vec<u8>>,
    /// Number of packets since the creation.
    count: u64,
}

impl Looped {
    pub(super) fn set_addresses(&mut self, addresses: &[IpAddr]) {
        self.own = addresses.to_vec();
        self.own.sort_unstable();
    }

    #[inline]
    pub(super) fn is_own(&self, destination: IpAddr) -> bool {
        self.own.binary_search(&destination).is_ok()
    }

    pub(super) fn is_full(&self) -> bool {
        self.packets.len() >= PACKETS_MAX || self.bytes >= BYTES_MAX
    }

    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn push(&mut self, packet: &[u8]) {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(packet);
        self.bytes += packet.len();
        self.count += 1;
        self.packets.push_back(buffer);
    }

    /// Takes the oldest packet.
    pub(super) fn pop(&mut self, take: impl FnOnce(&[u8])) -> bool {
        let Some(packet) = self.packets.pop_front() else { return false };
        self.bytes -= packet.len();
        take(&packet);
        if self.spare.len() < SPARE_MAX {
            self.spare.push(packet);
        }
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn packets_come_back_in_order_and_are_bounded() {
        let mut looped = Looped::default();
        let own: Vec<IpAddr> = ["fd00::2", "10.0.0.9", "10.0.0.2"]
            .map(|address| address.parse().expect("an address"))
            .to_vec();
        looped.set_addresses(&own);
        assert!(own.iter().all(|address| looped.is_own(*address)));
        assert!(!looped.is_own("10.0.0.3".parse().expect("an address")));
        for number in 0..PACKETS_MAX {
            assert!(!looped.is_full());
            looped.push(&(number as u32).to_ne_bytes());
        }
        assert!(looped.is_full());
        let mut expected = 0u32;
        while looped.pop(|packet| assert_eq!(packet, expected.to_ne_bytes())) {
            expected += 1;
        }
        assert_eq!(expected as usize, PACKETS_MAX);
        assert!(looped.is_empty() && !looped.is_full());
        let long = vec![0; 64 << 10];
        while !looped.is_full() {
            looped.push(&long);
        }
        assert_eq!(looped.packets.len(), BYTES_MAX / long.len());
    }
}
