//! Tests IPv6 sockets that also accept IPv4 (RFC 3493, section 3.7; ipv6(7)).

use crate::pair::{Pair, address, config, set};
use mtcp::Family;
use mtcp::config::Mode;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

const IPV6_ONLY: (i32, i32) = (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY);
const ALL: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

fn pair() -> Pair {
    let both = |last: u8| {
        let mut config = config(&format!("10.0.0.{last}"), Mode::Complete);
        config.addresses.push((format!("fd00::{last}").parse().expect("an address"), 64));
        config
    };
    Pair::with(both(1), both(2))
}

fn errno<T: std::fmt::Debug>(outcome: std::io::Result<T>) -> i32 {
    outcome.expect_err("an error").raw_os_error().expect("an errno")
}

#[test]
fn a_wildcard_listener_takes_both_and_tells_mapped_addresses() {
    let mut pair = pair();
    let listener = pair.server.socket(Family::V6).expect("a socket");
    pair.server.set_nonblocking(listener, true).expect("open");
    pair.server.bind(listener, SocketAddr::new(ALL, 80)).expect("free");
    pair.server.listen(listener, 8).expect("free");
    for (family, remote, told) in [
        (Family::V4, "10.0.0.1:80", ("[::ffff:10.0.0.1]:80", "::ffff:10.0.0.2")),
        (Family::V6, "[::ffff:10.0.0.1]:80", ("[::ffff:10.0.0.1]:80", "::ffff:10.0.0.2")),
        (Family::V6, "[fd00::1]:80", ("[fd00::1]:80", "fd00::2")),
    ] {
        let remote: SocketAddr = remote.parse().expect("an address");
        let client = pair.client.socket(family).expect("a socket");
        pair.client.set_nonblocking(client, true).expect("open");
        assert_eq!(errno(pair.client.connect(client, remote)), libc::EINPROGRESS);
        let server = pair.retry(|pair| pair.server.accept(listener)).expect("a connection");
        let local = pair.server.getsockname(server).expect("connected");
        let peer = pair.server.getpeername(server).expect("connected");
        assert_eq!((local.to_string().as_str(), peer.ip().to_string().as_str()), told);
        assert_eq!(pair.client.getpeername(client).expect("connected"), remote);
    }
}

#[test]
fn with_ipv6_only_it_takes_one_and_leaves_the_other() {
    let mut pair = pair();
    let six = pair.server.socket(Family::V6).expect("a socket");
    set(&mut pair.server, six, IPV6_ONLY, 1).expect("open");
    pair.server.bind(six, SocketAddr::new(ALL, 80)).expect("free");
    pair.server.listen(six, 8).expect("free");
    let four = pair.server.socket(Family::V4).expect("a socket");
    pair.server.bind(four, address(80)).expect("free");
    pair.server.listen(four, 8).expect("free");
    let mapped: SocketAddr = "[::ffff:10.0.0.1]:81".parse().expect("an address");
    let other = pair.server.socket(Family::V6).expect("a socket");
    set(&mut pair.server, other, IPV6_ONLY, 1).expect("open");
    assert_eq!(errno(pair.server.bind(other, mapped)), libc::EINVAL);
    set(&mut pair.server, other, IPV6_ONLY, 0).expect("open");
    pair.server.bind(other, mapped).expect("free");
    assert_eq!(pair.server.getsockname(other).expect("bound"), mapped);
    // An address that a socket without the option would use is in use.
    let both = pair.server.socket(Family::V6).expect("a socket");
    pair.server.bind(both, SocketAddr::new(ALL, 90)).expect("free");
    pair.server.listen(both, 8).expect("free");
    let second = pair.server.socket(Family::V4).expect("a socket");
    pair.server.bind(second, "0.0.0.0:90".parse().expect("an address")).expect("so far");
    assert_eq!(errno(pair.server.listen(second, 8)), libc::EADDRINUSE);
}
