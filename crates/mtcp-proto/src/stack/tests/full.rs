//! Tests which connection is removed when the table is full (RFC 4987).

use super::network::{CLIENT, Network, SERVER, end, packet, v4};
use crate::config::{Config, Options, SynCookies};
use crate::error::Error;
use crate::sequence::Sequence;
use crate::socket::{Shutdown, SocketId, State};
use crate::wire::tcp::{self, Flags, TcpHeader};
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

const MAX_SOCKETS: u32 = 8;
const MESSAGE: [u8; 3000] = [7; 3000];

fn forger(number: u16) -> SocketAddr {
    end([172, 16, (number >> 8) as u8, number as u8].into(), 1000 + number)
}

/// Delivers forged SYNs to the server.
fn flood(network: &mut Network, numbers: Range<u16>) {
    for number in numbers {
        let syn = TcpHeader {
            sequence: Sequence(u32::from(number)),
            flags: Flags::SYN,
            window: 1000,
            options: tcp::Options { maximum_segment: Some(1460), ..tcp::Options::default() },
            ..TcpHeader::default()
        };
        network.forge(SERVER, &packet(forger(number), end(v4(SERVER), 80), &syn, b""));
    }
}

/// Drops all packets of the server for a while, so that its SYN-ACKs stay unanswered.
fn let_answers_grow_old(network: &mut Network) {
    for _ in 0..2 {
        network.now = network.now + Duration::from_millis(1100);
        network.output(SERVER);
    }
    network.wires[SERVER].packets.clear();
}

/// Creates a server with room for `MAX_SOCKETS` sockets, and an orphan in each of these states:
/// FIN-WAIT-2, FIN-WAIT-1 with data to send, LAST-ACK with data to send. Returns the listener and
/// the clients of the last two.
fn with_orphans(syn_cookies: SynCookies) -> (Network, SocketId, [SocketId; 2]) {
    let config = Config { max_sockets: MAX_SOCKETS, syn_cookies, ..Config::default() };
    let mut network = Network::new(Config::default(), config);
    let listener = network.listen(end(v4(SERVER), 80), 100);
    let [finished, waiting, ended] = [(); 3].map(|()| network.pair(listener, end(v4(SERVER), 80)));
    network.close(SERVER, finished.1);
    network.stacks[CLIENT].shutdown(network.now, ended.0, Shutdown::Send).unwrap();
    network.run();
    for (_, server) in [waiting, ended] {
        network.send(SERVER, server, &MESSAGE);
        network.close(SERVER, server);
    }
    assert_eq!(orphans(&network), [State::FinWait1, State::FinWait2, State::LastAck]);
    (network, listener, [waiting.0, ended.0])
}

/// The states of the connections that are past the handshake, sorted by name.
fn orphans(network: &Network) -> Vec<State> {
    let connections = network.stacks[SERVER].sockets().filter(|info| info.remote.is_some());
    let states = connections.map(|info| info.state);
    let mut states: Vec<State> =
        states.filter(|state| !matches!(state, State::SynReceived | State::SynSent)).collect();
    states.sort_by_key(|state| format!("{state:?}"));
    states
}

fn assert_delivered(network: &mut Network, clients: [SocketId; 2]) {
    network.pass(Duration::from_secs(5));
    for client in clients {
        assert_eq!(network.receive(CLIENT, client).as_deref(), Ok(&MESSAGE[..]));
        assert_eq!(network.receive(CLIENT, client), Ok(Vec::new()), "its end has come too");
    }
}

#[test]
fn syns_displace_nobody_who_has_something_to_say() {
    for syn_cookies in [SynCookies::WhenFull, SynCookies::Never] {
        let (mut network, _, clients) = with_orphans(syn_cookies);
        flood(&mut network, 0..50);
        assert_eq!(orphans(&network), [State::FinWait1, State::LastAck]);
        assert_eq!(network.stacks[SERVER].half_open, 5);
        // The five half-open connections may still be genuine, so the table stays full.
        assert_eq!(network.stacks[SERVER].counters().drop_table_full, 45);
        assert_eq!(network.stacks[SERVER].counters().cookies_sent, 0);
        let_answers_grow_old(&mut network);
        flood(&mut network, 50..100);
        let counters = network.stacks[SERVER].counters();
        let (cookies, dropped) = (counters.cookies_sent, counters.drop_table_full);
        let with_cookies = syn_cookies == SynCookies::WhenFull;
        assert_eq!((cookies, dropped), if with_cookies { (50, 45) } else { (0, 95) });
        assert_eq!(network.stacks[SERVER].half_open, 5);
        assert_delivered(&mut network, clients);
    }
}

#[test]
fn a_cookie_that_comes_back_displaces_the_oldest_that_has_proven_nothing() {
    let (mut network, listener, clients) = with_orphans(SynCookies::WhenFull);
    flood(&mut network, 0..5);
    let_answers_grow_old(&mut network);
    let (client, server) = network.pair(listener, end(v4(SERVER), 80));
    network.echo(client, server);
    assert_eq!(network.stacks[SERVER].counters().cookies_accepted, 1);
    let is_left = |number| {
        let mut sockets = network.stacks[SERVER].sockets();
        sockets.any(|info| info.remote == Some(forger(number)))
    };
    assert_eq!([0, 1, 2, 3, 4].map(is_left), [false, true, true, true, true]);
    assert_delivered(&mut network, clients);
}

#[test]
fn a_cookie_is_not_sent_where_it_could_not_come_back() {
    for syn_cookies in [SynCookies::WhenFull, SynCookies::Always] {
        let config = Config { max_sockets: 3, syn_cookies, ..Config::default() };
        let mut network = Network::new(Config::default(), config);
        let listener = network.listen(end(v4(SERVER), 80), 100);
        let pairs = [(); 2].map(|()| network.pair(listener, end(v4(SERVER), 80)));
        let before = network.stacks[SERVER].counters().cookies_sent;
        flood(&mut network, 0..10);
        let counters = network.stacks[SERVER].counters();
        assert_eq!((counters.cookies_sent, counters.drop_table_full), (before, 10));
        for (client, server) in pairs {
            network.echo(client, server);
        }
    }
}

#[test]
fn an_application_displaces_whoever_is_no_ones_and_his_own_last() {
    let (mut network, _, _) = with_orphans(SynCookies::WhenFull);
    flood(&mut network, 0..4);
    let mut left = Vec::new();
    for _ in 0..MAX_SOCKETS {
        let now = network.now;
        let remote = end(v4(CLIENT), 81);
        let result = network.stacks[SERVER].connect(now, None, remote, &Options::default());
        if let Err(error) = result {
            assert_eq!(error, Error::TooMany);
            break;
        }
        left.push((orphans(&network).len(), network.stacks[SERVER].half_open));
    }
    let expected = [(2, 4), (2, 3), (2, 2), (2, 1), (2, 0), (1, 0), (0, 0)];
    assert_eq!(left, expected);
}
