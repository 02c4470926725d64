//! Tests of waiting for flows, listeners and descriptors together: with xpoll, and with channels of
//! both drivers.

use std::collections::HashMap;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use fable::{Endpoint, Error, Flow, Interest, Kind, xpoll};
use megapipe::{Channel, Config, DriverChoice, Event};

use crate::endpoints::rig::{GUARD, TestDaemon};

fn send(flow: &Flow, bytes: &[u8]) {
    let mut buffer = flow.write(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    buffer.commit().unwrap();
}

fn ready(interests: &[Interest<'_>]) -> Vec<usize> {
    xpoll(interests, GUARD).unwrap().iter().map(|ready| ready.index).collect()
}

/// Transports whose readiness comes from different sources: a notification socket, stream
/// sockets.
const TRANSPORTS: [&str; 3] = ["mempipe-futex-safe", "unix", "tcp-nodelay"];

#[test]
fn flows_of_all_kinds_and_a_socket_are_waited_for_together() {
    let daemon = TestDaemon::start();
    for transport in TRANSPORTS {
        let kind: Kind = transport.parse().unwrap();
        let kv = daemon.options().transport(kind).register("fable://kv").unwrap();
        let listener = kv.listen().unwrap();
        let foreign = Endpoint::register("tcp://127.0.0.1:0").unwrap();
        let foreign_listener = foreign.listen().unwrap();
        let (mut near, far) = UnixStream::pair().unwrap();
        let socket = Interest::Descriptor(far.as_fd(), libc::POLLIN);

        let listeners =
            [Interest::Listener(&listener), Interest::Listener(&foreign_listener), socket];
        assert!(xpoll(&listeners, Duration::ZERO).unwrap().is_empty());
        let client = kv.connect("fable://kv").unwrap();
        assert_eq!(ready(&listeners), [0], "{transport}");
        let server = listener.try_accept().unwrap();
        assert_eq!(client.transport(), kind);
        let outside = Endpoint::anonymous().connect(&foreign.name().unwrap().to_string()).unwrap();
        assert_eq!(ready(&listeners), [1], "{transport}");
        let inside = foreign_listener.try_accept().unwrap();

        let all = [Interest::Flow(&server), Interest::Flow(&inside), socket];
        near.write_all(b"!").unwrap();
        // `xpoll` may report a flow too early until it was tried once.
        assert!(ready(&all).contains(&2), "{transport}");
        for flow in [&server, &inside] {
            assert!(matches!(flow.try_read(), Err(Error::WouldBlock)), "{transport}");
        }
        assert_eq!(ready(&all), [2], "{transport}");
        for _ in 0..3 {
            send(&client, b"one");
            send(&client, b"two");
            assert!(ready(&all).contains(&0), "{transport}");
            assert_eq!(&server.try_read().unwrap().unwrap()[..], b"one");
            assert!(ready(&all).contains(&0), "{transport}: a second message is told, too");
            assert_eq!(&server.try_read().unwrap().unwrap()[..], b"two");
            assert!(matches!(server.try_read(), Err(Error::WouldBlock)));
            send(&outside, b"raw");
            assert!(ready(&all).contains(&1), "{transport}");
            assert_eq!(&inside.try_read().unwrap().unwrap()[..], b"raw");
        }
        drop(client);
        let end = loop {
            assert!(ready(&all).contains(&0), "{transport}: the end is told");
            match server.try_read() {
                Err(Error::WouldBlock) => {}
                end => break end,
            }
        };
        assert!(matches!(end, Ok(None) | Err(Error::PeerDied)), "{transport}: {end:?}");
    }
}

#[test]
fn back_pressure_is_waited_for() {
    let daemon = TestDaemon::start();
    for transport in TRANSPORTS {
        let kind: Kind = transport.parse().unwrap();
        let kv = daemon.options().transport(kind);
        let kv = kv.register("fable://kv").unwrap();
        let listener = kv.listen().unwrap();
        let client = kv.connect("fable://kv").unwrap();
        let reader = std::thread::spawn(move || {
            let server = listener.accept_timeout(GUARD).unwrap();
            let mut count = 0;
            while let Some(message) = server.read_timeout(GUARD).unwrap() {
                assert_eq!(message[..8], u64::to_le_bytes(count));
                count += 1;
            }
            count
        });
        let mut waits = 0;
        for number in 0..5_000_u64 {
            let mut buffer = loop {
                match client.try_write(1000) {
                    Ok(buffer) => break buffer,
                    Err(Error::WouldBlock) => {
                        waits += 1;
                        assert_eq!(ready(&[Interest::Flow(&client)]), [0], "{transport}");
                    }
                    Err(error) => panic!("{transport}: {error}"),
                }
            };
            buffer[..8].copy_from_slice(&number.to_le_bytes());
            buffer.commit().unwrap();
        }
        client.finish().unwrap();
        drop(client);
        assert_eq!(reader.join().unwrap(), 5_000, "{transport}");
        println!("{transport}: {waits} waits for room");
    }
}

#[test]
fn flows_and_listeners_lie_in_a_channel() {
    for driver in [DriverChoice::Uring, DriverChoice::Epoll] {
        for transport in TRANSPORTS {
            flows_in_a_channel(driver, transport);
        }
    }
}

fn flows_in_a_channel(driver: DriverChoice, transport: &str) {
    const CLIENTS: usize = 4;
    const MESSAGES: u32 = 200;
    let what = format!("{driver:?} {transport}");
    let daemon = TestDaemon::start();
    let kind: Kind = transport.parse().unwrap();
    let options = daemon.options().transport(kind);
    let kv = options.clone().register("fable://kv").unwrap();
    let foreign = Endpoint::register("tcp://127.0.0.1:0").unwrap();
    let foreign_name = foreign.name().unwrap().to_string();
    let listeners = [kv.listen().unwrap(), foreign.listen().unwrap()];

    let clients: Vec<_> = (0..CLIENTS)
        .map(|index| {
            let name = if index == 0 { foreign_name.clone() } else { "fable://kv".to_owned() };
            let options = options.clone();
            std::thread::spawn(move || {
                let flow = options.anonymous().connect(&name).unwrap();
                for number in 0..MESSAGES {
                    send(&flow, &number.to_le_bytes());
                    let answer = flow.read_timeout(GUARD).unwrap().unwrap();
                    assert_eq!(answer[..], number.to_le_bytes());
                }
                flow.finish().unwrap();
                assert!(flow.read_timeout(GUARD).unwrap().is_none());
            })
        })
        .collect();

    let config = Config { driver, ..Config::default() };
    let mut channel = Channel::with_config(config).unwrap();
    let listening = [0, 1].map(|index| listeners[index].watch(&mut channel, "listener").unwrap());
    let mut flows = HashMap::new();
    let mut ended = 0;
    let deadline = Instant::now() + GUARD;
    while ended < CLIENTS {
        assert!(Instant::now() < deadline, "{what}: no news");
        let Some(done) = channel.dispatch(GUARD).unwrap() else { continue };
        assert!(matches!(done.event, Event::Poll(Ok(_))), "{what}: {done:?}");
        if let Some(index) = listening.iter().position(|handle| *handle == done.handle) {
            while let Ok(flow) = listeners[index].try_accept() {
                flows.insert(flow.watch(&mut channel, "flow").unwrap(), flow);
            }
            continue;
        }
        let Some(flow) = flows.get(&done.handle) else { continue };
        loop {
            match flow.try_read() {
                Ok(Some(message)) => send(flow, &message),
                Ok(None) => {
                    flow.finish().unwrap();
                    assert_eq!(channel.unregister(done.handle).unwrap().cookie, "flow");
                    flows.remove(&done.handle);
                    ended += 1;
                    break;
                }
                Err(Error::WouldBlock) => break,
                Err(error) => panic!("{what}: {error}"),
            }
        }
    }
    for client in clients {
        client.join().unwrap();
    }
}
