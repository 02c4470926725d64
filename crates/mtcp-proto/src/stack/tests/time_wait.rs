use super::network::{CLIENT, Network, SERVER, end, packet, parse, secret, v4};
use crate::config::{Config, Options, SynCookies};
use crate::error::Error;
use crate::sequence::Sequence;
use crate::socket::SocketId;
use crate::stack::Stack;
use crate::wire::tcp::{Flags, TcpHeader};
use std::net::SocketAddr;
use std::time::Duration;

const REMOTE: u16 = 80;
const LOCAL: u16 = 7777;

fn connect(network: &mut Network) -> Result<SocketId, Error> {
    let local = Some(end(v4(CLIENT), LOCAL));
    let remote = end(v4(SERVER), REMOTE);
    network.stacks[CLIENT].connect(network.now, local, remote, &Options::default())
}

/// Opens and closes a connection; this host closes first.
fn closed_by(first: usize, network: &mut Network, listener: SocketId) {
    let client = connect(network).unwrap();
    network.run();
    let server = network.stacks[SERVER].accept(listener).unwrap();
    let sockets = [client, server];
    for host in [first, 1 - first] {
        network.close(host, sockets[host]);
        network.run();
    }
    network.assert_empty();
    assert_eq!(network.stacks[first].time_wait.len(), 1);
    assert_eq!(network.stacks[1 - first].time_wait.len(), 0);
}

fn ends() -> (SocketAddr, SocketAddr) {
    (end(v4(CLIENT), LOCAL), end(v4(SERVER), REMOTE))
}

#[test]
fn our_own_connection_may_follow_after_a_second_if_timestamps_tell_them_apart() {
    for timestamps in [true, false] {
        let config = Config { timestamps, ..Config::default() };
        let mut network = Network::new(config.clone(), config);
        let listener = network.listen(end(v4(SERVER), REMOTE), 10);
        closed_by(CLIENT, &mut network, listener);
        assert_eq!(connect(&mut network), Err(Error::AddressInUse));
        network.pass(Duration::from_millis(1001));
        if !timestamps {
            assert_eq!(connect(&mut network), Err(Error::AddressInUse));
            network.pass(Duration::from_secs(60));
        }
        let client = connect(&mut network).unwrap();
        network.run();
        let server = network.stacks[SERVER].accept(listener).unwrap();
        network.echo(client, server);
        let reused = network.stacks[CLIENT].counters().time_wait_reused;
        assert_eq!(reused, u64::from(timestamps));
    }
}

#[test]
fn a_newer_syn_ends_time_wait() {
    for timestamps in [true, false] {
        let config = Config { timestamps, ..Config::default() };
        let mut network = Network::new(config.clone(), config);
        let listener = network.listen(end(v4(SERVER), REMOTE), 10);
        closed_by(SERVER, &mut network, listener);
        network.pass(Duration::from_millis(5));
        let client = connect(&mut network).unwrap();
        network.run();
        let server = network.stacks[SERVER].accept(listener).unwrap();
        network.echo(client, server);
        assert_eq!(network.stacks[SERVER].counters().time_wait_reused, 1);
        assert_eq!(network.stacks[SERVER].time_wait.len(), 0);
    }
}

#[test]
fn a_newer_syn_gets_no_cookie_which_could_begin_too_early() {
    for syn_cookies in [SynCookies::Always, SynCookies::WhenFull, SynCookies::Never] {
        let config = Config { syn_cookies, max_half_open: 1, ..Config::default() };
        let mut network = Network::new(Config::default(), config);
        let listener = network.listen(end(v4(SERVER), REMOTE), 10);
        closed_by(SERVER, &mut network, listener);
        let cookies = u64::from(syn_cookies == SynCookies::Always);
        network.pass(Duration::from_millis(5));
        // Another connection fills the backlog.
        network.connect(end(v4(SERVER), REMOTE)).unwrap();
        let client = connect(&mut network).unwrap();
        network.run();
        let counters = network.stacks[SERVER].counters();
        assert_eq!(counters.cookies_sent, 2 * cookies);
        assert_eq!((counters.time_wait_reused, counters.drop_backlog), (1, 0));
        let accepted = [(); 2].map(|()| network.stacks[SERVER].accept(listener).unwrap());
        let remote = |server| network.stacks[SERVER].info(server).unwrap().remote;
        let server = accepted.into_iter().find(|&server| remote(server) == Some(ends().0));
        network.echo(client, server.unwrap());
    }
}

/// A client that has restarted does not know the old connection. Its numbers and clock may be
/// behind those of the old one.
#[test]
fn a_client_that_starts_anew_is_not_kept_waiting() {
    let mut asked = 0;
    for number in 20..40 {
        let mut network = Network::simple();
        let listener = network.listen(end(v4(SERVER), REMOTE), 10);
        closed_by(SERVER, &mut network, listener);
        let mut anew = Stack::new(Config::default(), secret(number), network.now).unwrap();
        anew.set_addresses(network.now, &[v4(CLIENT)]);
        network.stacks[CLIENT] = anew;
        let client = connect(&mut network).unwrap();
        network.pass(Duration::from_secs(2));
        let server = network.stacks[SERVER].accept(listener).unwrap();
        network.echo(client, server);
        assert_eq!(network.stacks[SERVER].time_wait.len(), 0);
        asked += network.stacks[SERVER].counters().challenge_acks_sent;
    }
    assert!(asked > 0, "no client began behind the old numbers");
}

#[test]
fn time_wait_survives_resets_and_answers_a_repeated_fin() {
    let config = Config { timestamps: false, ..Config::default() };
    let mut network = Network::new(config.clone(), config);
    let listener = network.listen(end(v4(SERVER), REMOTE), 10);
    let client = connect(&mut network).unwrap();
    network.run();
    let server = network.stacks[SERVER].accept(listener).unwrap();
    network.close(CLIENT, client);
    network.run();
    network.close(SERVER, server);
    network.output(SERVER);
    let fin = network.wires[SERVER].packets.last().unwrap().clone();
    network.run();
    network.assert_empty();
    network.pass(Duration::from_secs(30));
    let (_, header, _) = parse(&fin);
    let (local, remote) = ends();
    let reset = TcpHeader { flags: Flags::RST, sequence: header.sequence + 1, ..header };
    network.forge(CLIENT, &packet(remote, local, &reset, b""));
    assert_eq!(network.stacks[CLIENT].time_wait.len(), 1);
    network.forge(CLIENT, &fin);
    network.output(CLIENT);
    let (_, answer, _) = parse(&network.wires[CLIENT].packets[0]);
    assert_eq!(answer.flags, Flags::ACK);
    assert_eq!(answer.acknowledgement, header.sequence + 1);
    network.wires[CLIENT].packets.clear();
    network.pass(Duration::from_secs(59));
    assert_eq!(network.stacks[CLIENT].time_wait.len(), 1, "its time has started again");
    network.pass(Duration::from_secs(2));
    assert_eq!(network.stacks[CLIENT].time_wait.len(), 0);
}

#[test]
fn two_ends_that_disagree_do_not_talk_forever() {
    let limit = 50;
    let config = Config { challenge_acks_per_second: limit, ..Config::default() };
    let mut network = Network::new(config.clone(), config);
    let listener = network.listen(end(v4(SERVER), REMOTE), 10);
    closed_by(CLIENT, &mut network, listener);
    let (local, remote) = ends();
    let stray = TcpHeader { sequence: Sequence(1), flags: Flags::ACK, ..TcpHeader::default() };
    for _ in 0..1000 {
        network.forge(CLIENT, &packet(remote, local, &stray, b""));
    }
    network.output(CLIENT);
    let answers = network.wires[CLIENT].packets.len() as u32;
    assert!((limit / 2..=limit * 3 / 2).contains(&answers), "{answers}");
}

#[test]
fn the_oldest_record_makes_way() {
    let config = Config { max_time_wait: 3, ..Config::default() };
    let mut network = Network::new(config.clone(), config);
    let listener = network.listen(end(v4(SERVER), REMOTE), 10);
    for _ in 0..10 {
        let (client, server) = network.pair(listener, end(v4(SERVER), REMOTE));
        network.close(CLIENT, client);
        network.run();
        network.close(SERVER, server);
        network.run();
    }
    assert_eq!(network.stacks[CLIENT].time_wait.len(), 3);
    network.assert_empty();
    let config = Config { max_time_wait: 0, ..Config::default() };
    let mut network = Network::new(config.clone(), config);
    let listener = network.listen(end(v4(SERVER), REMOTE), 10);
    let (client, server) = network.pair(listener, end(v4(SERVER), REMOTE));
    network.close(CLIENT, client);
    network.run();
    network.close(SERVER, server);
    network.run();
    network.assert_empty();
    assert_eq!(network.stacks[CLIENT].time_wait.len(), 0);
}

#[test]
fn both_closing_at_once_leaves_both_in_time_wait() {
    let mut network = Network::simple();
    let listener = network.listen(end(v4(SERVER), REMOTE), 10);
    let (client, server) = network.pair(listener, end(v4(SERVER), REMOTE));
    network.close(CLIENT, client);
    network.close(SERVER, server);
    network.run();
    network.assert_empty();
    for host in [CLIENT, SERVER] {
        assert_eq!(network.stacks[host].time_wait.len(), 1);
    }
    network.pass(Duration::from_secs(61));
    assert!(network.stacks.iter().all(|stack| stack.flows.len() == 0));
}
