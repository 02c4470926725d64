//! Parses and writes messages of rtnetlink(7), with every length checked.

use super::routes::{Route, width};
use std::net::IpAddr;
use sys::netlink::{self, Request, address as ip, attribute, u16_at, u32_at};

const LINK_BYTES: usize = 16;
const ADDRESS_BYTES: usize = 8;
const ROUTE_BYTES: usize = 12;
const NEIGHBOUR_BYTES: usize = 12;
const NEXT_HOP_BYTES: usize = 8;

/// The entry has a hardware address: reachable, stale, delay, probe, permanent (NUD_*).
const NEIGHBOUR_USABLE: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x80;
/// The kernel treats the entry as used, and probes it if it is stale or missing.
const NTF_USE: u8 = 0x01;
/// The place where the program runs, one byte; 0: no program (linux/if_link.h).
const IFLA_XDP_ATTACHED: u16 = 2;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;

/// The state of a link as the kernel reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkState {
    /// Whether it is up and has a carrier.
    pub running: bool,
    /// The longest packet, in bytes.
    pub mtu: u32,
    /// Its hardware address, if it has one of six bytes.
    pub hardware_address: Option<[u8; 6]>,
    /// Whether an XDP program is attached.
    pub has_xdp_program: bool,
}

/// The content of a message about an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fact {
    Link(LinkState),
    LinkGone,
    Address(IpAddr, u8),
    AddressGone(IpAddr, u8),
    Route(Route),
    /// Replaces the route with the same prefix and metric, on any interface.
    RouteReplaced(Route),
    RouteGone(Route),
    /// A neighbour, with its hardware address if the kernel has one.
    Neighbour(IpAddr, Option<[u8; 6]>),
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// The end of a dump.
    Done,
    /// The kernel's answer to a request: zero or a negative errno.
    Error(i32),
    /// A fact about the interface with this index.
    Fact(i32, Fact),
    /// A message that is not relevant here.
    Other,
}

fn i32_at(bytes: &[u8], at: usize) -> Option<i32> {
    u32_at(bytes, at).map(u32::cast_signed)
}

/// Parses the messages of a datagram, each with the number of the request that it answers.
pub(super) fn parse(datagram: &[u8]) -> impl Iterator<Item = (u32, Message)> {
    netlink::messages(datagram).map_while(Result::ok).map(|found| {
        let mut message = interpret(&found).unwrap_or(Message::Other);
        if let Message::Fact(index, Fact::Route(route)) = message
            && i32::from(found.flags) & libc::NLM_F_REPLACE != 0
        {
            message = Message::Fact(index, Fact::RouteReplaced(route));
        }
        (found.sequence, message)
    })
}

/// Parses one message; `None` if it is cut off or about something else.
fn interpret(found: &netlink::Message<'_>) -> Option<Message> {
    if found.is_done() {
        return Some(Message::Done);
    } else if let Some(code) = found.error() {
        return Some(Message::Error(code));
    }
    let (kind, message) = (found.kind, found.body);
    let (index, fact) = match kind {
        libc::RTM_NEWLINK => (i32_at(message, 4)?, Fact::Link(link(message)?)),
        libc::RTM_DELLINK => (i32_at(message, 4)?, Fact::LinkGone),
        libc::RTM_NEWADDR | libc::RTM_DELADDR => address(kind, message)?,
        libc::RTM_NEWROUTE | libc::RTM_DELROUTE => route(kind, message)?,
        libc::RTM_NEWNEIGH | libc::RTM_DELNEIGH => neighbour(kind, message)?,
        _ => return None,
    };
    Some(Message::Fact(index, fact))
}

fn link(message: &[u8]) -> Option<LinkState> {
    let flags = u32_at(message, 8)?;
    let rest = message.get(LINK_BYTES..)?;
    let needed = (libc::IFF_UP | libc::IFF_RUNNING) as u32;
    Some(LinkState {
        running: flags & needed == needed,
        mtu: attribute(rest, libc::IFLA_MTU).and_then(|value| u32_at(value, 0)).unwrap_or(0),
        hardware_address: attribute(rest, libc::IFLA_ADDRESS)
            .and_then(|value| value.try_into().ok()),
        has_xdp_program: attribute(rest, libc::IFLA_XDP)
            .and_then(|program| attribute(program, IFLA_XDP_ATTACHED))
            .is_some_and(|mode| mode != [0]),
    })
}

fn address(kind: u16, message: &[u8]) -> Option<(i32, Fact)> {
    let length = *message.get(1)?;
    let index = i32_at(message, 4)?;
    let rest = message.get(ADDRESS_BYTES..)?;
    // On a point-to-point link IFA_ADDRESS is the address of the other end.
    let local = attribute(rest, libc::IFA_LOCAL).or_else(|| attribute(rest, libc::IFA_ADDRESS))?;
    let local = ip(local).filter(|local| u32::from(length) <= width(*local))?;
    let fact = if kind == libc::RTM_NEWADDR {
        Fact::Address(local, length)
    } else {
        Fact::AddressGone(local, length)
    };
    Some((index, fact))
}

/// Parses unicast routes of the main table, for packets from any source.
fn route(kind: u16, message: &[u8]) -> Option<(i32, Fact)> {
    let &[family, length, source_length, service, table, _, _, route_kind, ..] =
        message.first_chunk::<ROUTE_BYTES>()?;
    let rest = message.get(ROUTE_BYTES..)?;
    let table = attribute(rest, libc::RTA_TABLE).and_then(|v| u32_at(v, 0)).unwrap_or(table.into());
    let ordinary = (source_length, service, route_kind) == (0, 0, libc::RTN_UNICAST);
    if !ordinary || table != u32::from(libc::RT_TABLE_MAIN) {
        return None;
    }
    let prefix = match (attribute(rest, libc::RTA_DST), i32::from(family)) {
        (Some(value), _) => ip(value)?,
        (None, libc::AF_INET) => IpAddr::from([0_u8; 4]),
        (None, libc::AF_INET6) => IpAddr::from([0_u8; 16]),
        (None, _) => return None,
    };
    if u32::from(length) > width(prefix) {
        return None;
    }
    let metric = attribute(rest, libc::RTA_PRIORITY).and_then(|v| u32_at(v, 0)).unwrap_or(0);
    let (index, gateway) = match attribute(rest, libc::RTA_OIF) {
        Some(value) => (i32_at(value, 0)?, gateway(rest)),
        // Of several next hops the first one is used.
        None => {
            let hop = attribute(rest, libc::RTA_MULTIPATH)?;
            let bytes = usize::from(u16_at(hop, 0)?);
            (i32_at(hop, 4)?, gateway(hop.get(NEXT_HOP_BYTES..bytes)?))
        }
    };
    let route = Route { prefix, length, gateway, metric };
    let fact = if kind == libc::RTM_NEWROUTE { Fact::Route(route) } else { Fact::RouteGone(route) };
    Some((index, fact))
}

fn gateway(attributes: &[u8]) -> Option<IpAddr> {
    let other_family = || {
        const FAMILY_BYTES: usize = 2;
        attribute(attributes, libc::RTA_VIA)?.get(FAMILY_BYTES..)
    };
    attribute(attributes, libc::RTA_GATEWAY).or_else(other_family).and_then(ip)
}

fn neighbour(kind: u16, message: &[u8]) -> Option<(i32, Fact)> {
    let index = i32_at(message, 4)?;
    let state = u16_at(message, 8)?;
    let rest = message.get(NEIGHBOUR_BYTES..)?;
    let address = ip(attribute(rest, NDA_DST)?)?;
    let usable = kind == libc::RTM_NEWNEIGH && state & NEIGHBOUR_USABLE != 0;
    let hardware =
        attribute(rest, NDA_LLADDR).filter(|_| usable).and_then(|value| value.try_into().ok());
    Some((index, Fact::Neighbour(address, hardware)))
}

/// A request for all objects of a kind: RTM_GETLINK, RTM_GETADDR, RTM_GETROUTE, RTM_GETNEIGH.
pub(super) fn dump(kind: u16, sequence: u32) -> Vec<u8> {
    let mut request = Request::all(kind);
    request.number(sequence);
    request.into_bytes()
}

/// A request that the kernel resolves a neighbour's hardware address, or confirms it.
pub(super) fn use_neighbour(index: i32, address: IpAddr, sequence: u32) -> Vec<u8> {
    let (family, octets) = match address {
        IpAddr::V4(address) => (libc::AF_INET, address.octets().to_vec()),
        IpAddr::V6(address) => (libc::AF_INET6, address.octets().to_vec()),
    };
    let mut request = Request::new(libc::RTM_NEWNEIGH, libc::NLM_F_CREATE | libc::NLM_F_ACK);
    request.number(sequence);
    request.body(&[[family as u8, 0, 0, 0], index.to_ne_bytes(), [0, 0, NTF_USE, 0]].concat());
    request.attribute(NDA_DST, &octets);
    request.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_attributes(fixed: &[u8], attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = fixed.to_vec();
        for (kind, value) in attributes {
            body.extend((4 + value.len() as u16).to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.extend(*value);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        body
    }

    fn only(kind: u16, body: &[u8]) -> Message {
        let mut request = Request::new(kind, 0);
        request.number(7);
        request.body(body);
        let found: Vec<_> = parse(&request.into_bytes()).collect();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, 7);
        found[0].1
    }

    #[test]
    fn links_and_addresses_are_read() {
        let mut fixed = [0; 16];
        fixed[4..8].copy_from_slice(&5_i32.to_ne_bytes());
        fixed[8..12].copy_from_slice(&0x41_u32.to_ne_bytes());
        let mac = [2, 0, 0, 0, 0, 9];
        let mtu = 1500_u32.to_ne_bytes();
        let attributes = [(libc::IFLA_ADDRESS, &mac[..]), (libc::IFLA_MTU, &mtu[..])];
        let mut state = LinkState {
            running: true,
            mtu: 1500,
            hardware_address: Some(mac),
            ..LinkState::default()
        };
        let body = with_attributes(&fixed, &attributes);
        assert_eq!(only(libc::RTM_NEWLINK, &body), Message::Fact(5, Fact::Link(state)));
        assert_eq!(only(libc::RTM_DELLINK, &body), Message::Fact(5, Fact::LinkGone));
        let program = with_attributes(&[], &[(IFLA_XDP_ATTACHED, &[2])]);
        state.has_xdp_program = true;
        let body =
            with_attributes(&fixed, &[&attributes[..], &[(libc::IFLA_XDP, &program)]].concat());
        assert_eq!(only(libc::RTM_NEWLINK, &body), Message::Fact(5, Fact::Link(state)));
        let mut fixed = [2, 24, 0, 0, 0, 0, 0, 0];
        fixed[4..8].copy_from_slice(&5_i32.to_ne_bytes());
        let peer: (u16, &[u8]) = (libc::IFA_ADDRESS, &[10, 0, 0, 2]);
        let body = with_attributes(&fixed, &[peer, (libc::IFA_LOCAL, &[10, 0, 0, 1])]);
        let address = "10.0.0.1".parse().unwrap();
        assert_eq!(only(libc::RTM_NEWADDR, &body), Message::Fact(5, Fact::Address(address, 24)),);
    }

    #[test]
    fn routes_are_read_with_one_way_or_several() {
        let fixed = [2, 16, 0, 0, libc::RT_TABLE_MAIN, 0, 0, libc::RTN_UNICAST, 0, 0, 0, 0];
        let index = 3_i32.to_ne_bytes();
        let destination: (u16, &[u8]) = (libc::RTA_DST, &[10, 1, 0, 0]);
        let gateway: (u16, &[u8]) = (libc::RTA_GATEWAY, &[10, 0, 0, 1]);
        let expected = Route {
            prefix: "10.1.0.0".parse().unwrap(),
            length: 16,
            gateway: Some("10.0.0.1".parse().unwrap()),
            metric: 0,
        };
        let expected = Message::Fact(3, Fact::Route(expected));
        let body = with_attributes(&fixed, &[destination, gateway, (libc::RTA_OIF, &index)]);
        assert_eq!(only(libc::RTM_NEWROUTE, &body), expected);
        let mut hop = with_attributes(&[0, 0, 0, 0, 3, 0, 0, 0], &[gateway]);
        hop[4..8].copy_from_slice(&index);
        let bytes = hop.len() as u16;
        hop[..2].copy_from_slice(&bytes.to_ne_bytes());
        let body = with_attributes(&fixed, &[destination, (libc::RTA_MULTIPATH, &hop)]);
        assert_eq!(only(libc::RTM_NEWROUTE, &body), expected);
        let mut local = body;
        local[4] = libc::RT_TABLE_LOCAL;
        assert_eq!(only(libc::RTM_NEWROUTE, &local), Message::Other);
    }

    #[test]
    fn prefixes_are_no_longer_than_an_address() {
        for (length, fits) in [(32, true), (33, false), (255, false)] {
            let address: (u16, &[u8]) = (libc::IFA_LOCAL, &[10, 0, 0, 1]);
            let body = with_attributes(&[2, length, 0, 0, 5, 0, 0, 0], &[address]);
            assert_eq!(only(libc::RTM_NEWADDR, &body) != Message::Other, fits, "{length}");
            let fixed = [2, length, 0, 0, libc::RT_TABLE_MAIN, 0, 0, libc::RTN_UNICAST, 0, 0, 0, 0];
            let index = 3_i32.to_ne_bytes();
            let way = [(libc::RTA_DST, &[10, 1, 0, 0][..]), (libc::RTA_OIF, &index)];
            let body = with_attributes(&fixed, &way);
            assert_eq!(only(libc::RTM_DELROUTE, &body) != Message::Other, fits, "{length}");
        }
    }

    #[test]
    fn neighbours_are_read_and_asked_for() {
        let request = use_neighbour(4, "fd00::1".parse().unwrap(), 8);
        let fact = Fact::Neighbour("fd00::1".parse().unwrap(), None);
        assert_eq!(parse(&request).next(), Some((8, Message::Fact(4, fact))));
        let mut fixed = [0; 12];
        fixed[8] = 0x04;
        let mac = [2, 0, 0, 0, 0, 9];
        let body = with_attributes(&fixed, &[(NDA_DST, &[10, 0, 0, 1]), (NDA_LLADDR, &mac)]);
        let address = "10.0.0.1".parse().unwrap();
        let known = Message::Fact(0, Fact::Neighbour(address, Some(mac)));
        assert_eq!(only(libc::RTM_NEWNEIGH, &body), known);
        let gone = Message::Fact(0, Fact::Neighbour(address, None));
        assert_eq!(only(libc::RTM_DELNEIGH, &body), gone);
    }

    #[test]
    fn whatever_the_bytes_reading_ends() {
        let seed = 0x5eed_u64;
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        let sample = use_neighbour(4, "fd00::1".parse().unwrap(), 8);
        for round in 0..20_000 {
            let mut bytes = if round % 2 == 0 { sample.repeat(2) } else { vec![0; 90] };
            for _ in 0..6 {
                let at = usize::from(next()) % bytes.len();
                bytes[at] = next();
            }
            bytes[4] = 16 + next() % 16;
            const HEADER_BYTES: usize = 16;
            let count = parse(&bytes).count();
            assert!(count <= bytes.len() / HEADER_BYTES, "seed {seed} round {round}");
        }
    }
}
