use super::network::{CLIENT, Network, SERVER, end, packet, parse, v4, v6};
use crate::config::{Config, ListenOptions, Options};
use crate::error::Error;
use crate::sequence::Sequence;
use crate::socket::{Readiness, State};
use crate::wire::tcp::{Flags, TcpHeader};
use std::time::Duration;

#[test]
fn connect_accept_echo_and_close_over_both_families() {
    for address in [v4(SERVER), v6(SERVER)] {
        let mut network = Network::simple();
        let listener = network.listen(end(address, 80), 10);
        let (client, server) = network.pair(listener, end(address, 80));
        for _ in 0..10 {
            network.echo(client, server);
        }
        network.close(CLIENT, client);
        network.run();
        let ready = network.readiness(SERVER, server);
        assert!(ready.contains(Readiness::PEER_CLOSED.with(Readiness::READABLE)));
        assert_eq!(network.receive(SERVER, server), Ok(Vec::new()));
        network.close(SERVER, server);
        network.run();
        network.assert_empty();
        assert_eq!(network.stacks[CLIENT].time_wait.len(), 1);
        assert_eq!(network.stacks[SERVER].time_wait.len(), 0);
        network.pass(Duration::from_secs(61));
        assert_eq!(network.stacks[CLIENT].time_wait.len(), 0);
        assert_eq!(network.stacks[CLIENT].deadline(), None);
        for host in [CLIENT, SERVER] {
            let counters = network.stacks[host].counters();
            assert_eq!(counters.retransmissions, 0);
            assert_eq!(counters.resets_sent, 0);
            for (name, count) in counters.entries().filter(|(name, _)| name.starts_with("drop")) {
                assert_eq!(count, 0, "{name}");
            }
        }
    }
}

#[test]
fn a_short_exchange_takes_few_packets() {
    let mut network = Network::simple();
    let listener = network.listen(end(v4(SERVER), 80), 10);
    let client = network.connect(end(v4(SERVER), 80)).unwrap();
    network.run();
    let server = network.stacks[SERVER].accept(listener).unwrap();
    network.echo(client, server);
    network.close(CLIENT, client);
    network.run();
    network.close(SERVER, server);
    network.run();
    network.assert_empty();
    let sent: u64 = network.stacks.iter().map(|stack| stack.counters().packets_sent).sum();
    let received: u64 = network.stacks.iter().map(|stack| stack.counters().packets_received).sum();
    assert_eq!(sent, received);
    assert!(sent <= 10, "{sent} packets");
}

#[test]
fn nobody_there_means_refused() {
    for address in [v4(SERVER), v6(SERVER)] {
        let mut network = Network::simple();
        let client = network.connect(end(address, 81)).unwrap();
        network.run();
        assert!(network.readiness(CLIENT, client).contains(Readiness::ERROR));
        assert_eq!(network.events(CLIENT).len(), 1);
        assert_eq!(network.stacks[CLIENT].take_error(client), Some(Error::Refused));
        assert_eq!(network.stacks[CLIENT].take_error(client), None);
        network.close(CLIENT, client);
        network.assert_empty();
        assert_eq!(network.stacks[CLIENT].readiness(client), Err(Error::UnknownSocket));
        assert_eq!(network.stacks[SERVER].counters().resets_sent, 1);
    }
}

#[test]
fn listeners_exclude_each_other_and_need_an_own_address() {
    let mut network = Network::simple();
    let stack = &mut network.stacks[SERVER];
    let options = ListenOptions::default();
    let all = stack.listen("0.0.0.0:80".parse().unwrap(), &options).unwrap();
    assert_eq!(stack.listen("0.0.0.0:80".parse().unwrap(), &options), Err(Error::AddressInUse));
    assert!(stack.listen(end(v4(SERVER), 80), &options).is_ok());
    assert!(stack.listen("[::]:80".parse().unwrap(), &options).is_ok());
    let foreign = stack.listen(end(v4(CLIENT), 80), &options);
    assert_eq!(foreign, Err(Error::AddressNotAvailable));
    assert_eq!(stack.accept(all), Err(Error::WouldBlock));
    let info = stack.info(all).unwrap();
    assert_eq!((info.state, info.remote), (State::Closed, None));
    stack.close(network.now, all);
    assert_eq!(stack.accept(all), Err(Error::UnknownSocket));
    assert!(stack.listen("0.0.0.0:80".parse().unwrap(), &options).is_ok());
}

#[test]
fn connecting_checks_its_addresses() {
    let mut network = Network::simple();
    let now = network.now;
    let stack = &mut network.stacks[CLIENT];
    let options = Options::default();
    let mut connect = |local: Option<&str>, remote: &str| {
        let local = local.map(|local| local.parse().unwrap());
        stack.connect(now, local, remote.parse().unwrap(), &options).map(drop)
    };
    assert_eq!(connect(Some("10.0.0.9:0"), "10.0.0.2:80"), Err(Error::AddressNotAvailable));
    assert_eq!(connect(Some("10.0.0.1:0"), "[fd00::2]:80"), Err(Error::AddressNotAvailable));
    assert_eq!(connect(None, "224.0.0.1:80"), Err(Error::Unreachable));
    assert_eq!(connect(None, "10.0.0.2:0"), Err(Error::AddressNotAvailable));
    assert_eq!(connect(Some("10.0.0.1:777"), "10.0.0.2:80"), Ok(()));
    assert_eq!(connect(Some("0.0.0.0:777"), "10.0.0.2:80"), Err(Error::AddressInUse));
    assert_eq!(connect(Some("10.0.0.1:777"), "10.0.0.2:81"), Ok(()));
}

#[test]
fn ports_run_out_and_come_back() {
    let config = Config { ephemeral_ports: 5000..=5003, ..Config::default() };
    let mut network = Network::new(config, Config::default());
    let listener = network.listen(end(v4(SERVER), 80), 10);
    network.listen(end(v4(SERVER), 81), 10);
    let remote = end(v4(SERVER), 80);
    let pairs: Vec<_> = (0..4).map(|_| network.pair(listener, remote)).collect();
    assert_eq!(network.connect(remote), Err(Error::NoPorts));
    assert!(network.connect(end(v4(SERVER), 81)).is_ok(), "ports are per destination");
    for &(client, server) in &pairs {
        network.close(SERVER, server);
        network.run();
        network.close(CLIENT, client);
        network.run();
    }
    // The server has the connections in TIME_WAIT and accepts the same four-tuples, because the
    // timestamps are newer.
    network.pass(Duration::from_millis(1500));
    assert_eq!(network.stacks[SERVER].time_wait.len(), 4);
    let (client, server) = network.pair(listener, remote);
    network.echo(client, server);
    assert_eq!(network.stacks[SERVER].counters().time_wait_reused, 1);
}

#[test]
fn the_table_is_bounded() {
    let config = Config { max_sockets: 3, ..Config::default() };
    let mut network = Network::new(config.clone(), config);
    network.listen(end(v4(SERVER), 80), 10);
    for _ in 0..3 {
        network.connect(end(v4(SERVER), 80)).unwrap();
    }
    assert_eq!(network.connect(end(v4(SERVER), 80)), Err(Error::TooMany));
    network.run();
    assert_eq!(network.stacks[SERVER].counters().drop_table_full, 1);
    assert_eq!(network.stacks[SERVER].sockets().count(), 3);
}

#[test]
fn resets_are_sent_only_where_they_help() {
    let mut network = Network::simple();
    let (peer, own) = (end(v4(CLIENT), 1234), end(v4(SERVER), 99));
    let with = |flags| TcpHeader { sequence: Sequence(7), flags, ..TcpHeader::default() };
    network.forge(SERVER, &packet(peer, own, &with(Flags::ACK), b"abc"));
    network.output(SERVER);
    let (ip, header, _) = parse(&network.wires[SERVER].packets[0]);
    assert_eq!((ip.destination, header.flags), (peer.ip(), Flags::RST));
    network.wires[SERVER].packets.clear();
    network.forge(SERVER, &packet(peer, own, &with(Flags::RST), b""));
    let multicast = end([224, 0, 0, 1].into(), 1234);
    let broadcast = end([255, 255, 255, 255].into(), 1234);
    for source in [multicast, broadcast, end([0, 0, 0, 0].into(), 1), own] {
        network.forge(SERVER, &packet(source, own, &with(Flags::SYN), b""));
    }
    network.forge(SERVER, &packet(peer, multicast, &with(Flags::SYN), b""));
    network.forge(SERVER, &packet(peer, end(v4(7), 99), &with(Flags::SYN), b""));
    network.output(SERVER);
    assert!(network.wires[SERVER].packets.is_empty());
    let counters = network.stacks[SERVER].counters();
    assert_eq!((counters.drop_malformed, counters.drop_not_ours), (4, 2));
}

#[test]
fn malformed_packets_are_counted_by_their_kind() {
    let mut network = Network::simple();
    let header = TcpHeader { flags: Flags::SYN, ..TcpHeader::default() };
    let good = packet(end(v4(CLIENT), 1234), end(v4(SERVER), 99), &header, b"abc");
    network.forge(SERVER, &[]);
    network.forge(SERVER, &good[..15]);
    let mut wrong = good.clone();
    wrong[42] ^= 1;
    network.forge(SERVER, &wrong);
    let mut other = good.clone();
    (other[9], other[10], other[11]) = (17, 0, 0);
    let sum = crate::wire::checksum::of(&other[..20]);
    other[10..12].copy_from_slice(&sum);
    network.forge(SERVER, &other);
    let mapped = end("::ffff:10.0.0.1".parse().unwrap(), 5);
    network.forge(SERVER, &packet(mapped, end(v6(SERVER), 99), &header, b""));
    let counters = network.stacks[SERVER].counters();
    assert_eq!(counters.packets_received, 5);
    assert_eq!(counters.drop_malformed, 3);
    assert_eq!((counters.drop_checksum, counters.drop_unsupported), (1, 1));
}
