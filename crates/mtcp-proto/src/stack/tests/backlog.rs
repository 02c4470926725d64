use super::network::{CLIENT, DELAYED_ACK, Network, SERVER, end, v4, v6};
use crate::config::{Config, ListenOptions, Options, SynCookies};
use crate::error::Error;
use crate::socket::Readiness;
use std::time::Duration;

fn flood(syn_cookies: SynCookies) -> (Network, Vec<crate::stack::SocketId>) {
    let config = Config { syn_cookies, max_half_open: 4, ..Config::default() };
    let mut network = Network::new(Config::default(), config);
    network.listen(end(v4(SERVER), 80), 100);
    let clients = (0..10).map(|_| network.connect(end(v4(SERVER), 80)).unwrap()).collect();
    network.output(CLIENT);
    network.deliver(CLIENT);
    (network, clients)
}

#[test]
fn without_cookies_syns_beyond_the_bound_are_dropped_and_come_again() {
    let (mut network, clients) = flood(SynCookies::Never);
    assert_eq!(network.stacks[SERVER].half_open, 4);
    assert_eq!(network.stacks[SERVER].counters().drop_backlog, 6);
    network.run();
    assert_eq!(network.stacks[SERVER].half_open, 0);
    network.pass(Duration::from_secs(8));
    for client in clients {
        assert_eq!(network.readiness(CLIENT, client), Readiness::WRITABLE);
    }
    assert_eq!(network.stacks[SERVER].counters().cookies_sent, 0);
}

#[test]
fn cookies_take_over_when_the_backlog_is_full() {
    let (mut network, clients) = flood(SynCookies::WhenFull);
    assert_eq!(network.stacks[SERVER].half_open, 4);
    assert_eq!(network.stacks[SERVER].counters().cookies_sent, 6);
    network.run();
    for client in clients {
        assert_eq!(network.readiness(CLIENT, client), Readiness::WRITABLE);
    }
    assert_eq!(network.stacks[SERVER].counters().cookies_accepted, 6);
    assert_eq!(network.stacks[SERVER].counters().drop_backlog, 0);
}

#[test]
fn a_listener_of_both_families_takes_both_and_leaves_nothing() {
    let mut network = Network::simple();
    let options = ListenOptions { both_families: true, ..ListenOptions::default() };
    let all = end(std::net::Ipv6Addr::UNSPECIFIED.into(), 80);
    let all_v4 = end(std::net::Ipv4Addr::UNSPECIFIED.into(), 80);
    let taken = network.listen(all_v4, 1);
    let server = &mut network.stacks[SERVER];
    assert_eq!(server.listen(all, &options), Err(Error::AddressInUse));
    server.close(network.now, taken);
    let listener = server.listen(all, &options).unwrap();
    assert_eq!(server.listen(all_v4, &options), Err(Error::AddressInUse));
    for address in [v4(SERVER), v6(SERVER)] {
        let (client, server) = network.pair(listener, end(address, 80));
        network.echo(client, server);
        let info = network.stacks[SERVER].info(server).unwrap();
        assert_eq!(info.local, end(address, 80));
    }
    network.close(SERVER, listener);
    for free in [all_v4, all] {
        network.listen(free, 1);
    }
}

#[test]
fn a_connection_from_a_cookie_is_like_any_other() {
    for (timestamps, address) in [(true, v4(SERVER)), (false, v4(SERVER)), (true, v6(SERVER))] {
        let config = Config { syn_cookies: SynCookies::Always, ..Config::default() };
        let mut network = Network::new(Config { timestamps, ..Config::default() }, config);
        let listener = network.listen(end(address, 80), 10);
        let client = network.connect(end(address, 80)).unwrap();
        network.output(CLIENT);
        network.deliver(CLIENT);
        assert_eq!(network.stacks[SERVER].sockets().count(), 1, "only the listener");
        network.run();
        let server = network.stacks[SERVER].accept(listener).unwrap();
        for _ in 0..5 {
            network.echo(client, server);
        }
        // More data than fits into an unscaled window shows that both sides use the same scale.
        let data: Vec<u8> = (0..300_000u32).map(|at| (at % 251) as u8).collect();
        let mut received = Vec::new();
        let mut sent = 0;
        while received.len() < data.len() {
            let offered = network.stacks[CLIENT].send(network.now, client, &data[sent..]);
            sent += offered.unwrap_or(0);
            network.pass(Duration::from_millis(50));
            while let Ok(part) = network.receive(SERVER, server) {
                received.extend(part);
            }
        }
        assert!(received == data);
        network.close(CLIENT, client);
        network.run();
        network.close(SERVER, server);
        network.run();
        network.assert_empty();
        assert_eq!(network.stacks[SERVER].counters().cookies_accepted, 1);
    }
}

#[test]
fn a_cookie_outlives_what_a_copy_of_its_syn_begins() {
    let config = Config { max_half_open: 1, ..Config::default() };
    let mut network = Network::new(Config::default(), config);
    let listener = network.listen(end(v4(SERVER), 80), 10);
    let first = network.connect(end(v4(SERVER), 80)).unwrap();
    let second = network.connect(end(v4(SERVER), 80)).unwrap();
    network.output(CLIENT);
    let copy = network.wires[CLIENT].packets[1].clone();
    network.deliver(CLIENT);
    assert_eq!(network.stacks[SERVER].counters().cookies_sent, 1);
    network.output(SERVER);
    network.deliver(SERVER);
    network.send(CLIENT, second, b"request");
    network.output(CLIENT);
    // The ACK with the cookie is late: the listener has room again when a copy of the SYN arrives.
    let late = network.wires[CLIENT].packets.split_off(1);
    network.deliver(CLIENT);
    network.forge(SERVER, &copy);
    assert_eq!(network.stacks[SERVER].half_open, 1);
    network.run();
    assert_eq!(network.readiness(CLIENT, second), Readiness::WRITABLE, "it is not reset");
    for packet in late {
        network.forge(SERVER, &packet);
    }
    network.run();
    assert_eq!(network.stacks[SERVER].half_open, 0);
    assert_eq!(network.stacks[SERVER].counters().cookies_accepted, 1);
    let accepted = [(); 2].map(|()| network.stacks[SERVER].accept(listener).unwrap());
    assert_eq!(network.receive(SERVER, accepted[1]).as_deref(), Ok(&b"request"[..]));
    network.pass(DELAYED_ACK);
    network.echo(second, accepted[1]);
    network.echo(first, accepted[0]);
}

#[test]
fn a_full_accept_queue_lets_nobody_in_until_somebody_accepts() {
    let mut network = Network::simple();
    let listener = network.listen(end(v4(SERVER), 80), 2);
    let clients: Vec<_> = (0..5).map(|_| network.connect(end(v4(SERVER), 80)).unwrap()).collect();
    network.run();
    let info = network.stacks[SERVER].info(listener).unwrap();
    assert_eq!(info.receive_queue, 2);
    assert_eq!(network.stacks[SERVER].half_open, 3);
    assert!(network.stacks[SERVER].counters().drop_backlog >= 3);
    let mut accepted = Vec::new();
    for _ in 0..10 {
        while let Ok(server) = network.stacks[SERVER].accept(listener) {
            accepted.push(server);
        }
        network.pass(Duration::from_secs(2));
    }
    assert_eq!(accepted.len(), 5);
    for (client, server) in clients.into_iter().zip(accepted) {
        network.close(CLIENT, client);
        network.close(SERVER, server);
    }
    network.pass(Duration::from_secs(5));
    network.assert_empty();
}

#[test]
fn deferred_connections_wait_for_data_or_long_enough() {
    let mut network = Network::simple();
    let options =
        ListenOptions { defer_accept: Some(Duration::from_secs(3)), ..ListenOptions::default() };
    let listener = network.stacks[SERVER].listen(end(v4(SERVER), 80), &options).unwrap();
    let talking = network.connect(end(v4(SERVER), 80)).unwrap();
    let silent = network.connect(end(v4(SERVER), 80)).unwrap();
    network.run();
    assert!(network.events(SERVER).is_empty());
    assert!(network.stacks[SERVER].accept(listener).is_err());
    network.send(CLIENT, talking, b"hello");
    network.run();
    assert_eq!(network.events(SERVER), [(listener, Readiness::READABLE)]);
    let server = network.stacks[SERVER].accept(listener).unwrap();
    assert_eq!(network.receive(SERVER, server).as_deref(), Ok(&b"hello"[..]));
    assert!(network.stacks[SERVER].accept(listener).is_err());
    network.pass(Duration::from_secs(3));
    let late = network.stacks[SERVER].accept(listener).unwrap();
    network.echo(silent, late);
}

#[test]
fn closing_a_listener_resets_what_waits() {
    let mut network = Network::simple();
    let listener = network.listen(end(v4(SERVER), 80), 10);
    let waiting = network.connect(end(v4(SERVER), 80)).unwrap();
    network.run();
    let half_open = network.connect(end(v4(SERVER), 80)).unwrap();
    network.output(CLIENT);
    network.deliver(CLIENT);
    network.close(SERVER, listener);
    // A client that has not received our SYN-ACK cannot believe a reset before it has sent its SYN
    // again.
    network.pass(Duration::from_secs(2));
    for client in [waiting, half_open] {
        assert!(network.readiness(CLIENT, client).contains(Readiness::ERROR));
        network.close(CLIENT, client);
    }
    network.assert_empty();
    assert_eq!(network.stacks[SERVER].sockets().count(), 0);
}

#[test]
fn a_connection_that_is_reset_while_it_waits_is_gone() {
    let mut network = Network::simple();
    let listener = network.listen(end(v4(SERVER), 80), 10);
    let options = Options { linger_reset: true, ..Options::default() };
    let now = network.now;
    let client = network.stacks[CLIENT].connect(now, None, end(v4(SERVER), 80), &options).unwrap();
    network.run();
    assert_eq!(network.readiness(SERVER, listener), Readiness::READABLE);
    network.close(CLIENT, client);
    network.run();
    assert_eq!(network.readiness(SERVER, listener), Readiness::default());
    assert!(network.events(SERVER).is_empty(), "nothing is there any more");
    network.assert_empty();
}
