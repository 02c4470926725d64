//! Tests a channel with ten thousand connections.

use crate::common::process::{descriptors, expect_child, expect_descriptors, fork, isolated};
use crate::common::{client, listener};
use megapipe::{Accept, Channel, Config, DriverChoice, Event, Repeat};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use testkit::raise_descriptor_limit;

const MANY: usize = 10_000;
const ROUNDS: usize = 2;

/// Runs many clients in one process: connects all, then exchanges a message with each, twice.
fn many_clients(address: SocketAddr) {
    let mut clients: Vec<TcpStream> = (0..MANY).map(|_| client(address)).collect();
    for round in 0..ROUNDS {
        for (number, client) in clients.iter_mut().enumerate() {
            client.write_all(&(number * ROUNDS + round).to_ne_bytes()).unwrap();
        }
        for (number, client) in clients.iter_mut().enumerate() {
            let mut found = [0; 8];
            client.read_exact(&mut found).unwrap();
            assert_eq!(usize::from_ne_bytes(found), number * ROUNDS + round);
        }
    }
}

pub(crate) fn ten_thousand_connections(driver: DriverChoice) {
    isolated(driver, "ten_thousand_connections", || {
        raise_descriptor_limit(MANY as u64 + 200);
        let before = descriptors();
        let (listener, address) = listener();
        // The process has no channel yet, so the child consists only of clients.
        let child = fork(|| many_clients(address));
        let mut channel: Channel<usize> =
            Channel::with_config(Config { driver, ..Config::default() }).unwrap();
        let listening = channel.register(listener, 0).unwrap();
        channel.accept(listening, Accept::lightweight()).unwrap();
        let (mut open, mut ended, mut echoed, mut most) = (0, 0, 0, 0);
        while ended < MANY {
            let done = channel.dispatch(crate::common::TIME_LIMIT).unwrap().expect("a completion");
            match done.event {
                Event::Accept(accepted) => {
                    let handle = channel.register(accepted.unwrap().socket, 0).unwrap();
                    channel.receive(handle, Repeat::UntilCancelled).unwrap();
                    open += 1;
                    most = most.max(open);
                }
                Event::Receive(Ok(lease)) if !lease.is_empty() => {
                    *channel.cookie_mut(done.handle).unwrap() += lease.len();
                    channel.write(done.handle, lease).unwrap();
                }
                Event::Write(Ok(8), _) => echoed += 1,
                Event::Receive(Ok(_)) => {
                    let bytes = channel.unregister(done.handle).unwrap().cookie;
                    assert_eq!(bytes, 8 * ROUNDS);
                    open -= 1;
                    ended += 1;
                }
                other => panic!("unexpected {other:?}"),
            }
        }
        expect_child(child);
        assert_eq!((open, most, echoed), (0, MANY, MANY * ROUNDS));
        assert_eq!(channel.outstanding(), 1);
        drop(channel);
        expect_descriptors(&before);
    });
}
