//! Tests descriptors and memory: what a channel uses, releases, and does when there is no more.

mod common;

use common::process::{
    descriptors, expect_child, expect_descriptors, fork, isolated, set_descriptor_limit,
};
use common::{Rig, accepted, client, expect_end, listener, outcome, received, silent, unix_pair};
use megapipe::{
    Accept, Channel, Config, DriverChoice, Error, Event, Handle, Repeat, Signals, Timer,
    TooManyLightweight, wake_pair,
};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;
use testkit::raise_descriptor_limit;

conformance!(
    connections_leave_no_descriptors,
    dropped_channels_leave_no_descriptors,
    dropped_channels_leave_no_memory,
    refused_sources_leave_no_descriptors,
    undelivered_connections_leave_no_descriptors,
    accepts_without_descriptors_go_on_later,
    accepts_go_on_when_a_connection_is_closed,
    lightweight_sockets_beyond_their_limit,
    no_connection_is_lost_to_a_full_table,
    ten_thousand_connections,
);

/// Serves one client: accepts, echoes a message, and ends the connection in one of three ways.
fn serve(rig: &mut Rig, listening: Handle, address: SocketAddr, round: usize) {
    let mut ours = client(address);
    let socket = accepted(rig.another(listening)).socket;
    let handle = rig.join(socket);
    rig.receive(handle, Repeat::UntilCancelled).unwrap();
    ours.write_all(b"message").unwrap();
    let lease = received(rig.another(handle));
    rig.write(handle, lease).unwrap();
    assert_eq!(outcome(&rig.last(handle)), Ok(7));
    let mut found = [0; 7];
    ours.read_exact(&mut found).unwrap();
    match round % 3 {
        0 => {
            rig.close(handle).unwrap();
            assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
        }
        1 => drop(rig.unregister(handle).unwrap()),
        _ => {
            drop(ours);
            assert!(received(rig.last(handle)).is_empty());
            drop(rig.descriptor(handle).unwrap());
            drop(rig.unregister(handle).unwrap());
        }
    }
}

fn connections_leave_no_descriptors(driver: DriverChoice) {
    isolated(driver, "connections_leave_no_descriptors", || {
        for accept in [Accept::descriptors(), Accept::lightweight()] {
            let outside = descriptors();
            let mut rig = Rig::new(driver);
            let (listener, address) = listener();
            let listening = rig.join(listener);
            rig.accept(listening, accept).unwrap();
            // What the driver opens at its first use stays until the end.
            serve(&mut rig, listening, address, 0);
            rig.drain_to(1);
            let before = descriptors();
            for round in 0..2000 {
                serve(&mut rig, listening, address, round);
            }
            rig.drain_to(1);
            expect_descriptors(&before);
            drop(rig);
            expect_descriptors(&outside);
        }
    });
}

/// Returns a channel with requests of every kind in flight, and the test's ends.
fn busy_channel(driver: DriverChoice) -> (Rig, Vec<OwnedFd>) {
    let mut rig = Rig::new(driver);
    let mut ends: Vec<OwnedFd> = Vec::new();
    let (listener, address) = listener();
    let listening = rig.join(listener);
    rig.accept(listening, Accept::lightweight()).unwrap();
    for number in 0..5 {
        ends.push(client(address).into());
        let socket = accepted(rig.another(listening)).socket;
        if number > 0 {
            let handle = rig.join(socket);
            rig.receive(handle, Repeat::UntilCancelled).unwrap();
        }
    }
    // These connections wait to be accepted or delivered.
    ends.extend((0..3).map(|_| client(address).into()));
    for repeat in [Repeat::Once, Repeat::UntilCancelled] {
        let (ours, theirs) = unix_pair();
        let handle = rig.join(theirs);
        rig.write(handle, vec![1; 1 << 20]).unwrap();
        rig.receive(handle, repeat).unwrap();
        ends.push(ours.into());
        let timer = rig.join(Timer::after(Duration::from_secs(3600)).unwrap());
        rig.watch(timer, repeat).unwrap();
        let signals = rig.join(Signals::new(&[libc::SIGUSR2]).unwrap());
        rig.watch(signals, repeat).unwrap();
        let (_, source) = wake_pair().unwrap();
        let waking = rig.join(source);
        rig.watch(waking, repeat).unwrap();
        let datagrams = rig.join(common::udp("127.0.0.1").0);
        rig.receive_from(datagrams, repeat).unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        let pipe = rig.join(OwnedFd::from(reader));
        rig.receive(pipe, repeat).unwrap();
        ends.push(writer.into());
        let file = rig.join(common::memory_file());
        rig.write_at(file, vec![1; 100_000], 0).unwrap();
        rig.sync(file).unwrap();
    }
    let closing = rig.join(silent().0);
    rig.close(closing).unwrap();
    rig.flush().unwrap();
    (rig, ends)
}

fn dropped_channels_leave_no_descriptors(driver: DriverChoice) {
    isolated(driver, "dropped_channels_leave_no_descriptors", || {
        drop(busy_channel(driver));
        let mut before = descriptors();
        let mut given_up = 0;
        for round in 0..20 {
            let (mut rig, ends) = busy_channel(driver);
            // Dropped at once, after some completions, or after the peers.
            if round % 2 == 0 {
                drop(rig.dispatch(Duration::ZERO).unwrap());
            }
            let has_given_up = if round % 3 == 0 {
                drop(ends);
                common::drop_gives_up(rig)
            } else {
                let has_given_up = common::drop_gives_up(rig);
                drop(ends);
                has_given_up
            };
            if has_given_up {
                given_up += 1;
                assert!(given_up < 5, "channels are not done with their files");
                // The late thread still closes its descriptors.
                std::thread::sleep(Duration::from_secs(3));
                before = descriptors();
            }
            expect_descriptors(&before);
        }
    });
}

/// Returns the address space of this process in bytes.
fn mapped_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmSize:")).expect("VmSize");
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

fn dropped_channels_leave_no_memory(driver: DriverChoice) {
    isolated(driver, "dropped_channels_leave_no_memory", || {
        drop(busy_channel(driver));
        let before = mapped_bytes();
        // The buffers of each have eight megabytes.
        for _ in 0..50 {
            drop(busy_channel(driver));
        }
        let grown = mapped_bytes().saturating_sub(before);
        assert!(grown < 100 << 20, "{grown} bytes are still mapped");
    });
}

fn refused_sources_leave_no_descriptors(driver: DriverChoice) {
    isolated(driver, "refused_sources_leave_no_descriptors", || {
        let mut rig = Rig::with(driver, Config { max_handles: 1, ..Config::default() });
        let (a, mut b) = unix_pair();
        rig.join(b.try_clone().unwrap());
        let before = descriptors();
        for _ in 0..100 {
            let error = rig.channel.register(a.try_clone().unwrap(), 0).unwrap_err();
            assert!(matches!(error, Error::TooManyHandles { .. }), "{error}");
        }
        let mut other = Rig::new(driver);
        let between = descriptors();
        for _ in 0..100 {
            let directory = std::fs::File::open("/").unwrap();
            assert!(other.channel.register(directory, 0).is_err());
        }
        expect_descriptors(&between);
        drop(other);
        expect_descriptors(&before);
        drop(a);
        expect_end(&mut b);
    });
}

fn undelivered_connections_leave_no_descriptors(driver: DriverChoice) {
    isolated(driver, "undelivered_connections_leave_no_descriptors", || {
        let mut rig = Rig::new(driver);
        let before = descriptors();
        for round in 0..60 {
            let (listener, address) = listener();
            let listening = rig.join(listener);
            let accept = if round % 2 == 0 { Accept::descriptors() } else { Accept::lightweight() };
            let clients: Vec<TcpStream> = (0..10).map(|_| client(address)).collect();
            rig.accept(listening, accept).unwrap();
            drop(accepted(rig.another(listening)));
            match round % 3 {
                0 => drop(rig.unregister(listening).unwrap()),
                1 => {
                    rig.close(listening).unwrap();
                    assert!(matches!(rig.last(listening), Event::Close(Ok(()))));
                }
                _ => {
                    rig.cancel(listening).unwrap();
                    while rig.next().more {}
                    drop(rig.unregister(listening).unwrap());
                }
            }
            assert!(rig.drain().is_empty());
            for mut client in clients {
                common::expect_gone(&mut client);
            }
            expect_descriptors(&before);
        }
    });
}

fn accepts_without_descriptors_go_on_later(driver: DriverChoice) {
    isolated(driver, "accepts_without_descriptors_go_on_later", || {
        for accept in [Accept::descriptors(), Accept::descriptors().count(20)] {
            let mut rig = Rig::new(driver);
            let (listener, address) = listener();
            let listening = rig.join(listener);
            let clients: Vec<TcpStream> = (0..20).map(|_| client(address)).collect();
            let room = 5;
            let highest = clients.iter().map(std::os::fd::AsRawFd::as_raw_fd).max().unwrap();
            set_descriptor_limit(highest as u64 + 1 + room);
            rig.accept(listening, accept).unwrap();
            let mut sockets = Vec::new();
            let errno = loop {
                let done = rig.next();
                match done.event {
                    Event::Accept(Ok(accepted)) => sockets.push(accepted.socket),
                    event => {
                        assert!(done.more, "the request goes on after an error");
                        break outcome(&event).unwrap_err();
                    }
                }
            };
            assert_eq!(errno, libc::EMFILE);
            assert!(sockets.len() <= room as usize, "{}", sockets.len());
            // The others are still queued, and are accepted without a further request.
            set_descriptor_limit(20_000);
            while sockets.len() < 20 {
                match rig.next().event {
                    Event::Accept(Ok(accepted)) => sockets.push(accepted.socket),
                    event => assert_eq!(outcome(&event), Err(libc::EMFILE)),
                }
            }
            for (mut client, socket) in clients.into_iter().zip(sockets) {
                let mut theirs = TcpStream::from(socket.into_descriptor().unwrap());
                theirs.write_all(b"x").unwrap();
                client.read_exact(&mut [0; 1]).unwrap();
            }
        }
    });
}

fn accepts_go_on_when_a_connection_is_closed(driver: DriverChoice) {
    isolated(driver, "accepts_go_on_when_a_connection_is_closed", || {
        let mut rig = Rig::new(driver);
        let (listener, address) = listener();
        let listening = rig.join(listener);
        let mut clients: Vec<TcpStream> = (0..20).map(|_| client(address)).collect();
        let highest = clients.iter().map(std::os::fd::AsRawFd::as_raw_fd).max().unwrap();
        set_descriptor_limit(highest as u64 + 4);
        rig.accept(listening, Accept::descriptors()).unwrap();
        let (mut served, mut open) = (0, Vec::new());
        // Each connection is closed only when there is no room for the next.
        while served < 20 {
            let done = rig.next();
            match done.event {
                Event::Accept(Ok(accepted)) => {
                    open.push(rig.join(accepted.socket));
                    served += 1;
                }
                Event::Close(Ok(())) => {}
                event => {
                    assert_eq!(outcome(&event), Err(libc::EMFILE));
                    assert!(done.more, "the request goes on after an error");
                    for handle in open.drain(..) {
                        rig.close(handle).unwrap();
                    }
                }
            }
        }
        assert!(open.len() < 20, "the limit was never reached");
        let closed = 20 - open.len();
        let mut ended = 0;
        for client in &mut clients {
            client.set_nonblocking(true).unwrap();
            ended += usize::from(matches!(client.read(&mut [0; 1]), Ok(0)));
        }
        assert!(ended <= closed, "{ended} clients see an end, {closed} were closed");
    });
}

fn lightweight_sockets_beyond_their_limit(driver: DriverChoice) {
    let mut rig = Rig::with(driver, Config { max_lightweight: 2, ..Config::default() });
    let (listener, address) = listener();
    let listening = rig.join(listener);
    rig.accept(listening, Accept::lightweight()).unwrap();
    let mut clients: Vec<TcpStream> = Vec::new();
    let mut handles = Vec::new();
    for _ in 0..2 {
        clients.push(client(address));
        let socket = accepted(rig.another(listening)).socket;
        handles.push(rig.join(socket));
    }
    let mut third = client(address);
    let done = rig.next();
    if !rig.has_file_table() {
        // Descriptors have no limit in the channel.
        assert!(matches!(done.event, Event::Accept(Ok(_))) && done.more);
        return;
    }
    assert!(done.more);
    let Event::Accept(Err(error)) = done.event else { panic!("unexpected {:?}", done.event) };
    let full = error.get_ref().and_then(|error| error.downcast_ref::<TooManyLightweight>());
    assert_eq!(full, Some(&TooManyLightweight { limit: 2 }));
    // It waits in the queue until an entry is free.
    rig.close(handles.remove(0)).unwrap();
    assert!(matches!(rig.next().event, Event::Close(Ok(()))));
    expect_end(&mut clients[0]);
    let socket = accepted(rig.another(listening)).socket;
    let handle = rig.join(socket);
    rig.write(handle, b"x").unwrap();
    assert_eq!(outcome(&rig.last(handle)), Ok(1));
    third.read_exact(&mut [0; 1]).unwrap();
}

fn no_connection_is_lost_to_a_full_table(driver: DriverChoice) {
    for places in [1, 3, 40] {
        let mut rig = Rig::with(driver, Config { max_lightweight: places, ..Config::default() });
        let listeners = [listener(), listener()];
        let addresses = listeners.each_ref().map(|(_, address)| *address);
        for (listener, _) in listeners {
            let listening = rig.join(listener);
            rig.accept(listening, Accept::lightweight()).unwrap();
        }
        let mut clients: Vec<TcpStream> = (0..100).map(|at| client(addresses[at % 2])).collect();
        let (mut served, mut full) = (0, 0);
        while served < clients.len() {
            let done = rig.next();
            match done.event {
                Event::Accept(Ok(accepted)) => {
                    let handle = rig.join(accepted.socket);
                    rig.write(handle, b"x").unwrap();
                    rig.close(handle).unwrap();
                }
                Event::Accept(Err(_)) => full += 1,
                Event::Close(result) => {
                    result.unwrap();
                    served += 1;
                }
                other => panic!("unexpected {other:?}"),
            }
        }
        for client in &mut clients {
            client.read_exact(&mut [0; 1]).unwrap();
            expect_end(client);
        }
        assert!(rig.has_file_table() || full == 0);
    }
}

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

fn ten_thousand_connections(driver: DriverChoice) {
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
            let done = channel.dispatch(common::TIME_LIMIT).unwrap().expect("a completion");
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
