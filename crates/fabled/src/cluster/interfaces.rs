//! Lists the addresses at which other hosts may reach this host.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Returns every address of an interface that is up, with this port. Leaves out loopback and
/// link-local addresses; if no other remains, the result is 127.0.0.1.
pub(super) fn addresses(port: u16) -> Vec<SocketAddr> {
    let all = all();
    let reachable = |address: &&IpAddr| {
        let link_local = match address {
            IpAddr::V4(address) => address.is_link_local(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        };
        !address.is_loopback() && !link_local
    };
    let mut chosen: Vec<IpAddr> = all.iter().filter(reachable).copied().collect();
    if chosen.is_empty() {
        chosen.push(Ipv4Addr::LOCALHOST.into());
    }
    chosen.sort_by_key(|address| (address.is_ipv6(), *address));
    chosen.dedup();
    chosen.into_iter().map(|address| SocketAddr::new(address, port)).collect()
}

fn all() -> Vec<IpAddr> {
    let mut list = std::ptr::null_mut();
    // SAFETY: `list` has room for one pointer.
    if unsafe { libc::getifaddrs(&raw mut list) } < 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut next = list;
    while !next.is_null() {
        // SAFETY: getifaddrs made the list, which stays valid until it is freed; an entry's address
        // is null or as long as its family says.
        unsafe {
            let entry = &*next;
            let is_up = entry.ifa_flags & libc::IFF_UP as libc::c_uint != 0;
            if is_up && !entry.ifa_addr.is_null() {
                found.extend(address(entry.ifa_addr));
            }
            next = entry.ifa_next;
        }
    }
    // SAFETY: the list came from getifaddrs, and nothing points into it any more.
    unsafe { libc::freeifaddrs(list) };
    found
}

/// # Safety
/// `pointer` is a socket address that is as long as its family says.
unsafe fn address(pointer: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller guarantees the length; addresses are read by value, whatever their
    // alignment.
    unsafe {
        match i32::from((*pointer).sa_family) {
            libc::AF_INET => {
                let address = pointer.cast::<libc::sockaddr_in>().read_unaligned();
                Some(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)).into())
            }
            libc::AF_INET6 => {
                let address = pointer.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_always_an_address_and_loopback_only_alone() {
        let addresses = addresses(7);
        assert!(!addresses.is_empty());
        assert!(addresses.iter().all(|address| address.port() == 7));
        let loopback = addresses.iter().filter(|address| address.ip().is_loopback()).count();
        assert!(loopback == 0 || addresses.len() == 1, "{addresses:?}");
        assert!(all().iter().any(IpAddr::is_loopback));
    }
}
