use super::network::{CLIENT, DELAYED_ACK, Network, SERVER, end, v4, v6};
use crate::error::Error;
use crate::socket::Readiness;
use crate::wire::icmp::{Echo, IcmpCause, IcmpMessage};
use crate::wire::ip::{Ecn, IpHeader};
use crate::wire::{PROTOCOL_ICMP, PROTOCOL_ICMPV6};
use std::net::IpAddr;
use std::time::Duration;

fn icmp(source: IpAddr, destination: IpAddr, message: &IcmpMessage<'_>) -> Vec<u8> {
    let protocol = if source.is_ipv4() { PROTOCOL_ICMP } else { PROTOCOL_ICMPV6 };
    let ip = IpHeader { source, destination, protocol, ecn: Ecn::NotCapable, hop_limit: 9 };
    let mut packet = vec![0; ip.bytes() + message.bytes(&ip)];
    ip.write(message.bytes(&ip), &mut packet);
    message.write(&ip, &mut packet[ip.bytes()..]);
    packet
}

fn error(about: &[u8], cause: IcmpCause) -> Vec<u8> {
    let (ip, _) = IpHeader::parse(about).unwrap();
    let router = if ip.source.is_ipv4() { v4(100) } else { v6(100) };
    icmp(router, ip.source, &IcmpMessage::Error { cause, quoted: about })
}

#[test]
fn an_error_ends_a_connection_only_before_it_is_established() {
    for (address, cause, reason) in [
        (v4(SERVER), IcmpCause::PortUnreachable, Error::Refused),
        (v6(SERVER), IcmpCause::HostUnreachable, Error::Unreachable),
    ] {
        let mut network = Network::simple();
        let listener = network.listen(end(address, 80), 10);
        let client = network.connect(end(address, 80)).unwrap();
        network.output(CLIENT);
        let syn = network.wires[CLIENT].packets.remove(0);
        network.forge(CLIENT, &error(&syn, cause));
        assert!(network.readiness(CLIENT, client).contains(Readiness::ERROR));
        assert_eq!(network.stacks[CLIENT].take_error(client), Some(reason));
        let (client, server) = network.pair(listener, end(address, 80));
        network.send(CLIENT, client, b"data");
        network.output(CLIENT);
        let data = network.wires[CLIENT].packets.last().unwrap().clone();
        network.forge(CLIENT, &error(&data, cause));
        network.run();
        network.receive(SERVER, server).unwrap();
        network.pass(DELAYED_ACK);
        network.echo(client, server);
    }
}

#[test]
fn errors_that_fit_nothing_are_dropped() {
    let mut network = Network::simple();
    let client = network.connect(end(v4(SERVER), 80)).unwrap();
    network.output(CLIENT);
    let mut syn = network.wires[CLIENT].packets.remove(0);
    syn[20] ^= 1;
    network.forge(CLIENT, &error(&syn, IcmpCause::PortUnreachable));
    assert_eq!(network.stacks[CLIENT].counters().drop_icmp, 1);
    syn[20] ^= 1;
    syn[24] ^= 1;
    network.forge(CLIENT, &error(&syn, IcmpCause::PortUnreachable));
    assert_eq!(network.readiness(CLIENT, client), Readiness::default(), "a guessed sequence");
}

#[test]
fn a_narrow_path_is_remembered_for_its_destination() {
    for (address, headers) in [(v4(SERVER), 40), (v6(SERVER), 60)] {
        let mut network = Network::simple();
        let listener = network.listen(end(address, 80), 10);
        let (client, server) = network.pair(listener, end(address, 80));
        let before = network.stacks[CLIENT].info(client).unwrap().maximum_segment;
        network.send(CLIENT, client, &[3; 5000]);
        network.output(CLIENT);
        let wire = std::mem::take(&mut network.wires[CLIENT].packets);
        let large = wire.iter().find(|packet| packet.len() > 1300).unwrap();
        network.forge(CLIENT, &error(large, IcmpCause::PacketTooBig { mtu: 1300 }));
        let after = network.stacks[CLIENT].info(client).unwrap().maximum_segment;
        assert!(after < before && after <= 1300 - headers, "{before} to {after}");
        network.pass(Duration::from_secs(5));
        let mut bytes = 0;
        while let Ok(part) = network.receive(SERVER, server) {
            bytes += part.len();
        }
        assert_eq!(bytes, 5000);
        let (next, _) = network.pair(listener, end(address, 80));
        assert_eq!(network.stacks[CLIENT].info(next).unwrap().maximum_segment, after);
    }
}

#[test]
fn echo_requests_for_our_addresses_are_answered() {
    for (own, peer) in [(v4(SERVER), v4(CLIENT)), (v6(SERVER), v6(CLIENT))] {
        let mut network = Network::simple();
        let echo = Echo { identifier: 3, sequence: 4, data: b"abc" };
        network.forge(SERVER, &icmp(peer, own, &IcmpMessage::EchoRequest(echo)));
        network.output(SERVER);
        let answer = network.wires[SERVER].packets.remove(0);
        let (ip, payload) = IpHeader::parse(&answer).unwrap();
        assert_eq!((ip.source, ip.destination), (own, peer));
        assert_eq!(IcmpMessage::parse(&ip, payload), Ok(IcmpMessage::EchoReply(echo)));
        for _ in 0..100 {
            network.forge(SERVER, &icmp(peer, own, &IcmpMessage::EchoRequest(echo)));
        }
        network.output(SERVER);
        assert_eq!(network.wires[SERVER].packets.len(), 32);
    }
}

#[test]
fn a_smaller_interface_cuts_segments_and_sends_what_was_too_long_again() {
    let mut network = Network::simple();
    let listener = network.listen(end(v4(SERVER), 80), 10);
    let (client, server) = network.pair(listener, end(v4(SERVER), 80));
    let data = vec![7; 4000];
    network.send(CLIENT, client, &data);
    network.output(CLIENT);
    network.wires[CLIENT].packets.clear();
    network.stacks[CLIENT].set_mtu(network.now, 1000);
    network.output(CLIENT);
    let longest = |network: &Network| {
        network.wires[CLIENT].packets.iter().map(Vec::len).max().expect("packets are sent")
    };
    assert_eq!(longest(&network), 1000);
    network.run();
    assert_eq!(network.receive(SERVER, server).unwrap(), data);
    assert_eq!(network.stacks[CLIENT].counters().timeouts, 0, "at once");
    // A larger MTU applies only to new connections.
    network.stacks[CLIENT].set_mtu(network.now, 1500);
    let (client, server) = network.pair(listener, end(v4(SERVER), 80));
    network.send(CLIENT, client, &data);
    network.output(CLIENT);
    assert_eq!(longest(&network), 1500);
    network.run();
    assert_eq!(network.receive(SERVER, server).unwrap(), data);
}
