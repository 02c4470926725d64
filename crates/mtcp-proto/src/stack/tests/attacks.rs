use super::network::{CLIENT, Network, SERVER, end, packet, v4};
use crate::config::{Config, SynCookies};
use crate::packet::Checksum;
use crate::sequence::Sequence;
use crate::wire::tcp::{Flags, TcpHeader};
use std::time::Duration;

const SYNS: u32 = 1_000_000;

#[test]
fn a_flood_of_syns_costs_bounded_memory_and_no_established_connection() {
    for syn_cookies in [SynCookies::WhenFull, SynCookies::Never] {
        let config = Config { syn_cookies, max_half_open: 256, ..Config::default() };
        let mut network = Network::new(Config::default(), config);
        let listener = network.listen(end(v4(SERVER), 80), 100);
        let (client, server) = network.pair(listener, end(v4(SERVER), 80));
        let syn = TcpHeader { flags: Flags::SYN, window: 1000, ..TcpHeader::default() };
        let template = packet(end([172, 16, 0, 1].into(), 1), end(v4(SERVER), 80), &syn, b"");
        let mut forged = template.clone();
        let per_mode = SYNS / 2;
        for number in 0..per_mode {
            forged[20..22].copy_from_slice(&(1 + (number % 60_000) as u16).to_be_bytes());
            forged[24..28].copy_from_slice(&number.wrapping_mul(2_654_435_761).to_be_bytes());
            // Marked as verified by the device, because the test computes only one checksum in
            // 60,000.
            network.stacks[SERVER].input(network.now, &forged, Checksum::Verified);
            if number % 20_000 == 0 {
                network.now = network.now + Duration::from_millis(20);
                network.output(SERVER);
                let from_server = std::mem::take(&mut network.wires[SERVER].packets);
                for answer in from_server {
                    network.stacks[CLIENT].input(network.now, &answer, Checksum::Unverified);
                }
                network.echo(client, server);
            }
        }
        let stack = &network.stacks[SERVER];
        assert_eq!(stack.half_open, 256);
        assert_eq!(stack.sockets().count(), 258);
        assert_eq!(stack.flows.len(), 257);
        let counters = stack.counters();
        if syn_cookies == SynCookies::WhenFull {
            assert!(counters.cookies_sent > 0 && counters.cookies_accepted == 0);
        } else {
            assert!(counters.drop_backlog > u64::from(per_mode) / 2 && counters.cookies_sent == 0);
        }
        network.echo(client, server);
        network.stacks[CLIENT].abort(network.now, client);
        network.run();
        network.close(SERVER, server);
        network.pass(Duration::from_secs(300));
        network.assert_empty();
    }
}

#[test]
fn guessed_cookies_open_nothing() {
    let config = Config { syn_cookies: SynCookies::Always, ..Config::default() };
    let mut network = Network::new(Config::default(), config);
    let listener = network.listen(end(v4(SERVER), 80), 100);
    // One genuine cookie, so that the stack checks returned cookies.
    network.pair(listener, end(v4(SERVER), 80));
    for number in 0..20_000u32 {
        let ack = TcpHeader {
            sequence: Sequence(1000),
            acknowledgement: Sequence(number.wrapping_mul(2_654_435_761)),
            flags: Flags::ACK,
            ..TcpHeader::default()
        };
        let guess = packet(end(v4(9), 1000), end(v4(SERVER), 80), &ack, b"GET /");
        network.forge(SERVER, &guess);
    }
    assert_eq!(network.stacks[SERVER].counters().cookies_accepted, 1);
    assert_eq!(network.stacks[SERVER].sockets().count(), 2);
    assert_eq!(network.stacks[CLIENT].sockets().count(), 1);
}

/// Only looped packets can have an own address as their source. A SYN from the device with such a
/// source is dropped, and no answer to it loops.
#[test]
fn own_addresses_are_sources_of_looped_packets_only() {
    let mut network = Network::simple();
    network.listen(end(v4(SERVER), 80), 100);
    let syn = TcpHeader { flags: Flags::SYN, window: 1000, ..TcpHeader::default() };
    for port in [80, 81] {
        let forged = packet(end(v4(SERVER), 1000), end(v4(SERVER), port), &syn, b"");
        network.forge(SERVER, &forged);
        assert_eq!(network.stacks[SERVER].half_open, 0);
    }
    assert_eq!(network.stacks[SERVER].counters().drop_malformed, 2);
    network.output(SERVER);
    assert!(network.wires[SERVER].packets.is_empty());
    let foreign = packet(end(v4(CLIENT), 1000), end(v4(SERVER), 80), &syn, b"");
    network.stacks[SERVER].input(network.now, &foreign, Checksum::Looped);
    assert_eq!(network.stacks[SERVER].half_open, 0);
    let looped = packet(end(v4(SERVER), 1000), end(v4(SERVER), 80), &syn, b"");
    network.stacks[SERVER].input(network.now, &looped, Checksum::Looped);
    assert_eq!(network.stacks[SERVER].half_open, 1);
}
