//! Tests descriptors and memory: what a channel uses, releases, and does when there is no more.

use crate::common::process::{descriptors, expect_descriptors, isolated, set_descriptor_limit};
use crate::common::{
    Rig, accepted, client, expect_end, listener, outcome, received, silent, unix_pair,
};
use megapipe::{
    Accept, Config, DriverChoice, Error, Event, Handle, Repeat, Signals, Timer, TooManyLightweight,
    wake_pair,
};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

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

/// The kernel adds threads to a process for requests that it cannot complete at once. A new channel
/// makes none, and a wake-up neither.
pub(crate) fn a_channel_takes_no_thread_of_the_kernel(driver: DriverChoice) {
    isolated(driver, "a_channel_takes_no_thread_of_the_kernel", || {
        let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
        let before = threads();
        let mut rig = Rig::new(driver);
        let (waker, source) = wake_pair().unwrap();
        let handle = rig.join(source);
        rig.watch(handle, Repeat::UntilCancelled).unwrap();
        for _ in 0..2 {
            waker.wake();
            assert!(matches!(rig.another(handle), Event::Wake(Ok(1))));
        }
        assert_eq!(threads(), before);
    });
}

pub(crate) fn connections_leave_no_descriptors(driver: DriverChoice) {
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
        let datagrams = rig.join(crate::common::udp("127.0.0.1").0);
        rig.receive_from(datagrams, repeat).unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        let pipe = rig.join(OwnedFd::from(reader));
        rig.receive(pipe, repeat).unwrap();
        ends.push(writer.into());
        let file = rig.join(crate::common::memory_file());
        rig.write_at(file, vec![1; 100_000], 0).unwrap();
        rig.sync(file).unwrap();
    }
    let closing = rig.join(silent().0);
    rig.close(closing).unwrap();
    rig.flush().unwrap();
    (rig, ends)
}

pub(crate) fn dropped_channels_leave_no_descriptors(driver: DriverChoice) {
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
                crate::common::drop_gives_up(rig)
            } else {
                let has_given_up = crate::common::drop_gives_up(rig);
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

pub(crate) fn dropped_channels_leave_no_memory(driver: DriverChoice) {
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

pub(crate) fn refused_sources_leave_no_descriptors(driver: DriverChoice) {
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

pub(crate) fn undelivered_connections_leave_no_descriptors(driver: DriverChoice) {
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
                crate::common::expect_gone(&mut client);
            }
            expect_descriptors(&before);
        }
    });
}

pub(crate) fn accepts_without_descriptors_go_on_later(driver: DriverChoice) {
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

pub(crate) fn accepts_go_on_when_a_connection_is_closed(driver: DriverChoice) {
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

pub(crate) fn lightweight_sockets_beyond_their_limit(driver: DriverChoice) {
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

pub(crate) fn no_connection_is_lost_to_a_full_table(driver: DriverChoice) {
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

pub(crate) fn a_refused_accept_is_not_tried_again_at_once(driver: DriverChoice) {
    let mut rig = Rig::with(driver, Config::default());
    let (listener, _) = listener();
    let same = listener.try_clone().unwrap();
    let listening = rig.join(listener);
    // The kernel refuses accepts from now on.
    TcpStream::from(OwnedFd::from(same)).shutdown(Shutdown::Both).unwrap();
    let start = Instant::now();
    for _ in 0..3 {
        rig.accept(listening, Accept::lightweight()).unwrap();
        assert!(matches!(rig.last(listening), Event::Accept(Err(_))));
    }
    // The pauses are of 20 ms and 40 ms.
    assert!(start.elapsed() >= Duration::from_millis(60), "{:?}", start.elapsed());
}
