//! Stores the routes of one interface, and finds the next hop by the longest prefix.

use std::net::{IpAddr, Ipv6Addr};

/// Most routes that are stored: a machine with more is a router and not a host.
pub(super) const ROUTES_MAX: usize = 4096;

/// A route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The prefix of the destinations.
    pub prefix: IpAddr,
    /// The number of bits of the prefix: at most 32 or 128.
    pub length: u8,
    /// The neighbour that forwards packets; `None` if the destinations are neighbours themselves.
    pub gateway: Option<IpAddr>,
    /// Of routes with the same prefix, the one with the lowest metric is used.
    pub metric: u32,
}

impl Route {
    fn leads_to(&self, address: IpAddr) -> bool {
        self.prefix.is_ipv6() == address.is_ipv6()
            && differing_bits(self.prefix, address) <= width(address) - u32::from(self.length)
    }

    fn is_same_way(&self, other: &Route) -> bool {
        (self.length, self.metric) == (other.length, other.metric)
            && self.prefix.is_ipv6() == other.prefix.is_ipv6()
            && self.leads_to(other.prefix)
    }
}

/// Bits of an address.
pub(super) fn width(address: IpAddr) -> u32 {
    if address.is_ipv6() { 128 } else { 32 }
}

/// The number of last bits that are needed to distinguish two addresses of one family.
pub(super) fn differing_bits(one: IpAddr, other: IpAddr) -> u32 {
    let bits = |address| match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => Ipv6Addr::to_bits(address),
    };
    128 - (bits(one) ^ bits(other)).leading_zeros()
}

/// The routes of one interface; the longest prefix wins (RFC 1812, section 5.2.4.3).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes {
    /// Sorted: longer prefixes first, then lower metrics.
    routes: Vec<Route>,
}

impl Routes {
    /// Adds a route, or replaces one with the same prefix and metric. Returns false and does
    /// nothing if the length exceeds the address's or there are already 4,096 routes.
    pub fn add(&mut self, route: Route) -> bool {
        if u32::from(route.length) > width(route.prefix) {
            return false;
        }
        if let Some(old) = self.routes.iter_mut().find(|old| old.is_same_way(&route)) {
            *old = route;
            return true;
        }
        if self.routes.len() == ROUTES_MAX {
            return false;
        }
        let key = |route: &Route| (u8::MAX - route.length, route.metric);
        let at = self.routes.partition_point(|old| key(old) <= key(&route));
        self.routes.insert(at, route);
        true
    }

    /// Removes a route; true if it was there.
    pub fn remove(&mut self, route: &Route) -> bool {
        let before = self.routes.len();
        self.routes.retain(|old| !(old.is_same_way(route) && old.gateway == route.gateway));
        self.routes.len() < before
    }

    /// Removes the route with this prefix and metric, whatever its gateway.
    pub fn remove_any(&mut self, route: &Route) {
        self.routes.retain(|old| !old.is_same_way(route));
    }

    /// Removes all routes.
    pub fn clear(&mut self) {
        self.routes.clear();
    }

    /// The neighbour for a packet to this address; `None` if there is no route.
    pub fn next_hop(&self, destination: IpAddr) -> Option<IpAddr> {
        let route = self.routes.iter().find(|route| route.leads_to(destination))?;
        Some(route.gateway.unwrap_or(destination))
    }

    /// All routes.
    pub fn iter(&self) -> impl Iterator<Item = &Route> {
        self.routes.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(text: &str, gateway: Option<&str>, metric: u32) -> Route {
        let (prefix, length) = text.split_once('/').unwrap();
        Route {
            prefix: prefix.parse().unwrap(),
            length: length.parse().unwrap(),
            gateway: gateway.map(|gateway| gateway.parse().unwrap()),
            metric,
        }
    }

    fn hop(routes: &Routes, to: &str) -> Option<String> {
        routes.next_hop(to.parse().unwrap()).map(|hop| hop.to_string())
    }

    #[test]
    fn the_longest_prefix_wins_in_each_family() {
        let mut routes = Routes::default();
        assert!(routes.add(route("0.0.0.0/0", Some("10.0.0.1"), 100)));
        assert!(routes.add(route("10.0.0.0/24", None, 0)));
        assert!(routes.add(route("10.0.0.128/25", Some("10.0.0.2"), 500)));
        assert!(routes.add(route("::/0", Some("fe80::1"), 0)));
        assert!(routes.add(route("fd00::/64", None, 0)));
        assert_eq!(hop(&routes, "10.0.0.5").unwrap(), "10.0.0.5");
        assert_eq!(hop(&routes, "10.0.0.200").unwrap(), "10.0.0.2");
        assert_eq!(hop(&routes, "192.0.2.1").unwrap(), "10.0.0.1");
        assert_eq!(hop(&routes, "fd00::9").unwrap(), "fd00::9");
        assert_eq!(hop(&routes, "2001:db8::1").unwrap(), "fe80::1");
        assert!(routes.remove(&route("0.0.0.0/0", Some("10.0.0.1"), 100)));
        assert_eq!(hop(&routes, "192.0.2.1"), None);
        assert!(!routes.remove(&route("0.0.0.0/0", Some("10.0.0.1"), 100)));
    }

    #[test]
    fn the_lower_metric_wins_and_a_second_route_replaces_the_first() {
        let mut routes = Routes::default();
        routes.add(route("0.0.0.0/0", Some("10.0.0.1"), 100));
        routes.add(route("0.0.0.0/0", Some("10.0.0.2"), 50));
        assert_eq!(hop(&routes, "1.1.1.1").unwrap(), "10.0.0.2");
        routes.add(route("0.0.0.0/0", Some("10.0.0.3"), 50));
        assert_eq!(routes.iter().count(), 2);
        assert_eq!(hop(&routes, "1.1.1.1").unwrap(), "10.0.0.3");
        assert!(!routes.add(route("1.2.3.4/33", None, 0)));
    }

    #[test]
    fn their_number_is_bounded() {
        let mut routes = Routes::default();
        let nth =
            |n: u32| Route { prefix: IpAddr::V4(n.into()), length: 32, gateway: None, metric: 0 };
        assert!((0..ROUTES_MAX as u32).all(|n| routes.add(nth(n))));
        assert!(!routes.add(nth(ROUTES_MAX as u32)));
        assert!(routes.add(nth(7)), "one that is there can be replaced");
    }
}
