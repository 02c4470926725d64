//! Finds the listener for an address, and tracks the connections of each listener that are not
//! accepted yet.

use super::lists::List;
use crate::config::ListenOptions;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// One listener. The lists hold indices of connections; the table has their links.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) local: SocketAddr,
    pub(super) options: ListenOptions,
    /// Connections in SYN-RECEIVED.
    pub(super) half_open: List,
    /// Connections that are established and without data, while acceptance is deferred.
    pub(super) deferred: List,
    /// Connections that can be accepted.
    pub(super) waiting: List,
    /// Increases with each connection that can be accepted; wraps.
    pub(super) arrivals: u16,
}

impl Listener {
    pub(super) fn new(local: SocketAddr, options: &ListenOptions) -> Listener {
        Listener {
            local,
            options: *options,
            half_open: List::default(),
            deferred: List::default(),
            waiting: List::default(),
            arrivals: 0,
        }
    }

    /// The addresses under which the listener is found: two if it takes both families.
    pub(super) fn names(&self) -> impl Iterator<Item = SocketAddr> + use<> {
        let both = self.options.both_families && self.local.ip() == Ipv6Addr::UNSPECIFIED;
        let second = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), self.local.port());
        std::iter::once(self.local).chain(both.then_some(second))
    }

    /// Whether the backlog takes no further established connection.
    pub(super) const fn is_full(&self) -> bool {
        self.waiting.len() + self.deferred.len() >= self.options.backlog
    }
}

/// The listeners by port and address; an unspecified address matches all. Several with the same
/// address share its connections.
#[derive(Debug, Default)]
pub(super) struct Listeners(BTreeMap<(u16, IpAddr), Vec<u32>>);

impl Listeners {
    /// Adds a listener. Listeners on all addresses and on a single address may coexist; the more
    /// specific one is found.
    pub(super) fn insert(&mut self, local: SocketAddr, index: u32) {
        self.0.entry((local.port(), local.ip())).or_default().push(index);
    }

    /// The listeners at exactly this address.
    pub(super) fn of_name(&self, local: SocketAddr) -> &[u32] {
        self.0.get(&(local.port(), local.ip())).map_or(&[], Vec::as_slice)
    }

    pub(super) fn remove(&mut self, local: SocketAddr, index: u32) {
        let name = (local.port(), local.ip());
        if let Some(group) = self.0.get_mut(&name) {
            group.retain(|other| *other != index);
            if group.is_empty() {
                self.0.remove(&name);
            }
        }
    }

    /// The indices of all listeners in the table.
    pub(super) fn indices(&self) -> impl Iterator<Item = u32> {
        self.0.values().flatten().copied()
    }

    /// The listener for a SYN to this address; of several, the hash selects one.
    pub(super) fn find(&self, local: (IpAddr, u16), hash: u64) -> Option<u32> {
        let (address, port) = local;
        let all: IpAddr = match address {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let group = self.0.get(&(port, address)).or_else(|| self.0.get(&(port, all)))?;
        match group.as_slice() {
            [single] => Some(*single),
            // The lower half of the hash already selects the core and the place in the flow table.
            several => several.get((hash >> 32) as usize % several.len().max(1)).copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_closest_listener_of_the_family_is_found() {
        let mut listeners = Listeners::default();
        listeners.insert(end("0.0.0.0:80"), 1);
        listeners.insert(end("10.0.0.1:80"), 2);
        listeners.insert(end("[::]:80"), 3);
        assert_eq!(listeners.of_name(end("10.0.0.1:80")), [2]);
        let find = |text: &str| listeners.find((end(text).ip(), end(text).port()), 7 << 32);
        assert_eq!(find("10.0.0.1:80"), Some(2));
        assert_eq!(find("10.0.0.2:80"), Some(1));
        assert_eq!(find("[fd00::1]:80"), Some(3));
        assert_eq!(find("10.0.0.1:81"), None);
        listeners.remove(end("10.0.0.1:80"), 2);
        assert_eq!(listeners.find(([10, 0, 0, 1].into(), 80), 0), Some(1));
        assert_eq!(listeners.of_name(end("[::]:80")), [3]);
        assert!(listeners.of_name(end("10.0.0.1:80")).is_empty());
    }

    #[test]
    fn listeners_of_one_name_share_its_connections() {
        let mut listeners = Listeners::default();
        for index in [4, 5, 6] {
            listeners.insert(end("10.0.0.1:80"), index);
        }
        let found = |listeners: &Listeners, hash: u64| {
            listeners.find(([10, 0, 0, 1].into(), 80), hash << 32)
        };
        let all: Vec<_> = (0..6).map(|hash| found(&listeners, hash)).collect();
        assert_eq!(all, [4, 5, 6, 4, 5, 6].map(Some));
        listeners.remove(end("10.0.0.1:80"), 5);
        let all: Vec<_> = (0..3).map(|hash| found(&listeners, hash)).collect();
        assert_eq!(all, [4, 6, 4].map(Some));
        assert_eq!(listeners.indices().count(), 2);
    }

    #[test]
    fn deferred_connections_count_for_the_backlog() {
        let options = ListenOptions { backlog: 2, ..ListenOptions::default() };
        let mut listener = Listener::new(end("0.0.0.0:80"), &options);
        let mut links = super::super::lists::Links::default();
        links.push_back(&mut listener.waiting, 1);
        assert!(!listener.is_full());
        links.push_back(&mut listener.deferred, 2);
        assert!(listener.is_full());
    }
}
