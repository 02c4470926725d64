//! Checks properties of netlink's parsers that hold for all bytes; a fuzz target calls it.

use std::net::IpAddr;

use sys::netlink;

use super::messages;
use super::routes::{ROUTES_MAX, width};
use super::watch::{ADDRESSES_MAX, View};

/// The shortest message, which is a header.
const HEADER_BYTES: usize = 16;
/// The interface has every index below this: a few are enough to be about another interface.
const INDEX_END: i32 = 8;

/// Parses the bytes as a datagram of netlink, and processes its messages as those of an interface.
///
/// # Panics
/// If a property does not hold.
pub fn datagram(bytes: &[u8]) {
    let count = netlink::messages(bytes).count();
    assert!(count <= bytes.len() / HEADER_BYTES + 1, "{count} messages");
    for message in netlink::messages(bytes).map_while(Result::ok) {
        // Nested attributes begin anywhere.
        let attributes = netlink::attributes(message.body).chain(netlink::attributes(bytes));
        for (_, value) in attributes {
            assert!(value.len() <= bytes.len());
            netlink::attributes(value).for_each(drop);
            assert_eq!(netlink::address(value).is_some(), matches!(value.len(), 4 | 16));
        }
        // Some(Err) for every errno, and never a panic.
        let _ = message.outcome();
    }
    let mut view = View::default();
    for (_, message) in messages::parse(bytes) {
        if let messages::Message::Fact(index, fact) = message {
            view.hear((1..INDEX_END).contains(&index), fact);
        }
    }
    assert!(view.addresses.len() <= ADDRESSES_MAX);
    for (address, length) in &view.addresses {
        assert!(u32::from(*length) <= width(*address), "{address}/{length}");
    }
    assert!(view.routes.iter().count() <= ROUTES_MAX);
    for route in view.routes.iter() {
        assert!(u32::from(route.length) <= width(route.prefix), "{route:?}");
        assert!(view.routes.next_hop(route.prefix).is_some(), "{route:?} leads nowhere");
    }
    let elsewhere: [IpAddr; 2] = [IpAddr::from([192, 0, 2, 1]), IpAddr::from([1; 16])];
    for address in elsewhere {
        let _ = view.routes.next_hop(address);
    }
}
