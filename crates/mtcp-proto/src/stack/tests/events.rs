use super::network::{CLIENT, Network, SERVER, end, v4};
use crate::socket::Readiness;
use std::time::Duration;

const READABLE: Readiness = Readiness::READABLE;
const WRITABLE: Readiness = Readiness::WRITABLE;

#[test]
fn each_growth_is_told_once() {
    let mut network = Network::simple();
    let listener = network.listen(end(v4(SERVER), 80), 10);
    let client = network.connect(end(v4(SERVER), 80)).unwrap();
    assert!(network.events(CLIENT).is_empty());
    network.run();
    assert_eq!(network.events(CLIENT), [(client, WRITABLE)]);
    assert_eq!(network.events(SERVER), [(listener, READABLE)]);
    let server = network.stacks[SERVER].accept(listener).unwrap();
    assert_eq!(network.events(SERVER), [(server, WRITABLE)]);
    network.send(CLIENT, client, b"one");
    network.run();
    assert_eq!(network.events(SERVER), [(server, WRITABLE.with(READABLE))]);
    assert!(network.events(SERVER).is_empty());
    network.send(CLIENT, client, b"two");
    // Nagle's algorithm delays the data until the delayed acknowledgement.
    network.pass(Duration::from_millis(50));
    assert_eq!(network.events(SERVER), [(server, WRITABLE.with(READABLE))], "further data");
    assert_eq!(network.receive(SERVER, server).unwrap().len(), 6);
    assert!(network.events(SERVER).is_empty());
    network.close(CLIENT, client);
    network.run();
    let events = network.events(SERVER);
    assert_eq!(events.len(), 1);
    assert!(events[0].1.contains(READABLE.with(Readiness::PEER_CLOSED)));
}

#[test]
fn readiness_that_is_gone_is_not_told() {
    let mut network = Network::simple();
    let listener = network.listen(end(v4(SERVER), 80), 10);
    let (client, server) = network.pair(listener, end(v4(SERVER), 80));
    network.events(SERVER);
    network.send(CLIENT, client, b"one");
    network.run();
    network.receive(SERVER, server).unwrap();
    assert!(network.events(SERVER).is_empty());
    network.send(CLIENT, client, b"two");
    network.run();
    network.close(SERVER, server);
    assert!(network.events(SERVER).is_empty(), "nor that of sockets which are gone");
}

#[test]
fn writable_is_told_again_after_a_full_buffer() {
    let mut network = Network::simple();
    let listener = network.listen(end(v4(SERVER), 80), 10);
    let (client, server) = network.pair(listener, end(v4(SERVER), 80));
    network.events(CLIENT);
    let data = vec![1; 4 << 20];
    let mut sent = network.stacks[CLIENT].send(network.now, client, &data).unwrap();
    assert!(sent < data.len());
    assert!(!network.readiness(CLIENT, client).contains(WRITABLE));
    assert!(network.stacks[CLIENT].send(network.now, client, &data).is_err());
    let mut received = 0;
    let mut told = 0;
    for _ in 0..10_000 {
        network.pass(Duration::from_millis(50));
        while let Ok(part) = network.receive(SERVER, server) {
            received += part.len();
        }
        for (socket, readiness) in network.events(CLIENT) {
            assert!(socket == client && readiness.contains(WRITABLE));
            told += 1;
            if sent < data.len() {
                sent += network.stacks[CLIENT].send(network.now, client, &data[sent..]).unwrap();
            }
        }
        if received == data.len() {
            break;
        }
    }
    assert_eq!((sent, received), (data.len(), data.len()));
    assert!(told >= 2);
}

#[test]
fn a_listener_tells_of_each_connection() {
    let mut network = Network::simple();
    let listener = network.listen(end(v4(SERVER), 80), 10);
    for _ in 0..3 {
        network.connect(end(v4(SERVER), 80)).unwrap();
        network.run();
        assert_eq!(network.events(SERVER), [(listener, READABLE)]);
    }
    for _ in 0..3 {
        network.stacks[SERVER].accept(listener).unwrap();
    }
    assert_eq!(network.readiness(SERVER, listener), Readiness::default());
    assert!(network.events(SERVER).iter().all(|&(socket, _)| socket != listener));
}
