//! Tests much data, many handles, and few resources: no data is lost or out of order.

use crate::common::{
    Pattern, Rig, accepted, client, expect_end, listener, outcome, received, unix_pair, written,
};
use megapipe::{
    Accept, Buffer, BufferClass, Completion, Config, DriverChoice, Error, Event, Handle, Lease,
    Repeat, Timer, wake_pair,
};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Reads to the end in a thread of its own, in steps that differ from the writer's.
fn slow_reader(mut stream: impl Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut found = Vec::new();
        let mut step = vec![0; 70_001];
        for round in 0.. {
            let room = 1 + round * 7919 % step.len();
            match stream.read(&mut step[..room]) {
                Ok(0) => break,
                Ok(bytes) => found.extend_from_slice(&step[..bytes]),
                Err(error) => panic!("read: {error}"),
            }
        }
        found
    })
}

pub(crate) fn queued_writes_to_a_slow_reader(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let pattern = Pattern::new(1);
    let (ours, handle) = rig.tcp_pair();
    let reader = slow_reader(ours);
    let sizes = [5 << 20, 1, 9 << 20, 100, 3 << 20, 12 << 20, 65_536, 4_096];
    let mut at = 0;
    for bytes in sizes {
        rig.write(handle, pattern.bytes(at, bytes)).unwrap();
        at += bytes;
    }
    rig.disconnect(handle, Shutdown::Write).unwrap();
    for bytes in sizes {
        assert_eq!(written(rig.last(handle)).len(), bytes);
    }
    assert!(matches!(rig.last(handle), Event::Disconnect(Ok(()))));
    let found = reader.join().unwrap();
    assert_eq!(found.len(), at);
    pattern.check(0, &found);
}

pub(crate) fn short_writes_of_every_kind(driver: DriverChoice) {
    let pattern = Pattern::new(2);
    for target in 0..3 {
        let mut rig = Rig::new(driver);
        let (reader, handle) = match target {
            0 => {
                let (ours, handle) = rig.tcp_pair();
                (slow_reader(ours), handle)
            }
            1 => {
                let (ours, theirs) = unix_pair();
                (slow_reader(ours), rig.join(theirs))
            }
            _ => {
                let (ours, theirs) = std::io::pipe().unwrap();
                (slow_reader(ours), rig.join(OwnedFd::from(theirs)))
            }
        };
        let mut at = 0;
        for round in 1..4 {
            let bytes = round << 20;
            rig.write(handle, pattern.bytes(at, bytes)).unwrap();
            at += bytes;
            // Buffers of odd sizes, which short writes break anywhere.
            let parts: Vec<Buffer> = (0..1000)
                .map(|part| {
                    let bytes = part * 31 % 5000;
                    at += bytes;
                    pattern.bytes(at - bytes, bytes).into()
                })
                .collect();
            rig.write_vectored(handle, parts).unwrap();
        }
        let mut total = 0;
        for _ in 0..6 {
            total += outcome(&rig.last(handle)).unwrap() as usize;
        }
        assert_eq!(total, at);
        drop(rig.unregister(handle).unwrap());
        rig.flush().unwrap();
        let found = reader.join().unwrap();
        assert_eq!(found.len(), at);
        pattern.check(0, &found);
    }
}

/// Echoes what arrives on `handle` until `bytes` bytes were sent back.
fn echo(rig: &mut Rig, handle: Handle, bytes: usize) {
    let mut echoed = 0;
    while echoed < bytes {
        match rig.next().event {
            Event::Receive(Ok(lease)) => {
                assert!(!lease.is_empty(), "the stream ended after {echoed} bytes");
                rig.write(handle, lease).unwrap();
            }
            event => echoed += written(event).len(),
        }
    }
}

/// Starts a peer that sends the messages and checks the echo.
fn talker(stream: UnixStream, pattern: Pattern, sizes: Vec<usize>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let mut writing = stream.try_clone().unwrap();
        let messages = sizes.clone();
        let source = pattern.clone();
        let writer = std::thread::spawn(move || {
            let mut at = 0;
            for bytes in messages {
                writing.write_all(&source.bytes(at, bytes)).unwrap();
                at += bytes;
            }
        });
        let (mut reading, mut at) = (stream, 0);
        for bytes in sizes {
            let mut found = vec![0; bytes];
            reading.read_exact(&mut found).unwrap();
            pattern.check(at, &found);
            at += bytes;
        }
        writer.join().unwrap();
    })
}

pub(crate) fn an_echo_of_all_sizes(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (ours, theirs) = unix_pair();
    let handle = rig.join(theirs);
    rig.receive(handle, Repeat::UntilCancelled).unwrap();
    let sizes: Vec<usize> = (6..21).map(|power| 1 << power).collect();
    let total = sizes.iter().sum();
    let talker = talker(ours, Pattern::new(3), sizes);
    echo(&mut rig, handle, total);
    talker.join().unwrap();
}

pub(crate) fn messages_grow_and_shrink(driver: DriverChoice) {
    // The channel changes to large buffers and back, many times and within a message.
    let config = Config {
        small_buffers: BufferClass { count: 32, bytes: 512 },
        large_buffers: BufferClass { count: 16, bytes: 16_384 },
        ..Config::default()
    };
    for repeat in [Repeat::Once, Repeat::UntilCancelled] {
        let mut rig = Rig::with(driver, config.clone());
        let pattern = Pattern::new(4);
        let (mut ours, theirs) = unix_pair();
        let handle = rig.join(theirs);
        let (mut at, mut largest) = (0, 0);
        rig.receive(handle, repeat).unwrap();
        for round in 0..12 {
            let (bytes, count) = if round % 2 == 0 { (64, 80) } else { (100_000, 3) };
            for _ in 0..count {
                ours.write_all(&pattern.bytes(at, bytes)).unwrap();
                let mut left = bytes;
                while left > 0 {
                    let lease = received(rig.next().event);
                    pattern.check(at, &lease);
                    largest = largest.max(lease.len());
                    at += lease.len();
                    left -= lease.len();
                    if repeat == Repeat::Once {
                        rig.receive(handle, repeat).unwrap();
                    }
                }
            }
        }
        assert!(largest > 512, "large buffers are never used: {largest}");
        drop(ours);
        assert!(received(rig.last(handle)).is_empty());
    }
}

pub(crate) fn a_flood_into_few_buffers(driver: DriverChoice) {
    let config = Config {
        small_buffers: BufferClass { count: 2, bytes: 256 },
        large_buffers: BufferClass { count: 2, bytes: 1024 },
        ..Config::default()
    };
    let mut rig = Rig::with(driver, config);
    let count = 20;
    let bytes = 100_000;
    let mut totals = HashMap::new();
    let mut writers = Vec::new();
    for number in 0..count {
        let (mut ours, theirs) = unix_pair();
        let handle = rig.channel.register(theirs, number).unwrap();
        rig.receive(handle, Repeat::UntilCancelled).unwrap();
        totals.insert(handle, 0);
        writers.push(std::thread::spawn(move || {
            ours.write_all(&Pattern::new(number).bytes(0, bytes)).unwrap();
        }));
    }
    let patterns: Vec<Pattern> = (0..count).map(Pattern::new).collect();
    let mut ended = 0;
    while ended < count {
        let done = rig.next();
        let number = *rig.cookie(done.handle).unwrap();
        let lease = received(done.event);
        let total = totals.get_mut(&done.handle).unwrap();
        assert_eq!(done.more, !lease.is_empty());
        patterns[number as usize].check(*total, &lease);
        *total += lease.len();
        ended += u64::from(lease.is_empty());
    }
    assert!(totals.values().all(|total| *total == bytes), "{totals:?}");
    writers.into_iter().for_each(|writer| writer.join().unwrap());
}

fn few_buffers(count: u16) -> Config {
    let class = BufferClass { count, bytes: 1024 };
    Config { small_buffers: class, large_buffers: class, ..Config::default() }
}

pub(crate) fn leases_that_are_held_stop_the_flow(driver: DriverChoice) {
    let pattern = Pattern::new(5);
    for repeat in [Repeat::Once, Repeat::UntilCancelled] {
        let mut rig = Rig::with(driver, few_buffers(4));
        let (mut ours, theirs) = unix_pair();
        let handle = rig.join(theirs);
        let bytes = 50_000;
        ours.write_all(&pattern.bytes(0, bytes)).unwrap();
        rig.receive(handle, repeat).unwrap();
        let mut held: Vec<Lease> = Vec::new();
        let mut total = 0;
        while total < bytes {
            let mut next = Some(rig.next());
            while let Some(done) = next {
                held.push(received(done.event));
                if repeat == Repeat::Once {
                    rig.receive(handle, repeat).unwrap();
                }
                next = rig.dispatch(Duration::from_millis(1)).unwrap();
            }
            assert!(held.len() <= 8, "{} leases of 8 buffers", held.len());
            for lease in held.drain(..) {
                pattern.check(total, &lease);
                total += lease.len();
            }
        }
        assert!(rig.counters().buffer_waits > 0, "{:?}", rig.counters());
        drop(ours);
        assert!(received(rig.last(handle)).is_empty());
    }
}

pub(crate) fn leases_held_by_one_stop_all_until_they_return(driver: DriverChoice) {
    let mut rig = Rig::with(driver, few_buffers(4));
    let (mut greedy, theirs) = unix_pair();
    let handle = rig.join(theirs);
    rig.receive(handle, Repeat::UntilCancelled).unwrap();
    let mut held = Vec::new();
    for _ in 0..4 {
        greedy.write_all(b"keep me").unwrap();
        held.push(received(rig.another(handle)));
    }
    let mut others = Vec::new();
    for number in 0..30u8 {
        let (mut ours, theirs) = unix_pair();
        let handle = rig.join(theirs);
        let repeat = if number % 2 == 0 { Repeat::Once } else { Repeat::UntilCancelled };
        rig.receive(handle, repeat).unwrap();
        ours.write_all(&[number; 10]).unwrap();
        others.push((ours, handle));
    }
    let (waker, source) = wake_pair().unwrap();
    let waking = rig.join(source);
    rig.watch(waking, Repeat::UntilCancelled).unwrap();
    // All other handles continue meanwhile.
    for _ in 0..5 {
        waker.wake();
        assert!(matches!(rig.another(waking), Event::Wake(Ok(1))));
    }
    assert!(rig.counters().buffer_waits > 0, "{:?}", rig.counters());
    assert!(held.iter().all(|lease| &**lease == b"keep me"));
    drop(held);
    let mut missing: Vec<Handle> = others.iter().map(|(_, handle)| *handle).collect();
    while !missing.is_empty() {
        let done = rig.next();
        let at = missing.iter().position(|handle| *handle == done.handle).expect("one message");
        missing.swap_remove(at);
        let number = others.iter().position(|(_, handle)| *handle == done.handle).unwrap();
        assert_eq!(*received(done.event), [number as u8; 10]);
    }
}

/// Submits a request; if the channel is full, dispatches first, as the error advises.
fn file(
    rig: &mut Rig,
    done: &mut Vec<Completion>,
    mut request: impl FnMut(&mut Rig) -> Result<(), Error>,
) {
    while let Err(error) = request(rig) {
        assert!(matches!(error, Error::QueueFull), "{error}");
        done.push(rig.next());
    }
}

pub(crate) fn a_short_completion_queue(driver: DriverChoice) {
    let config = Config { completions: 64, ..Config::default() };
    let mut rig = Rig::with(driver, config);
    let count = 700u64;
    let (mut peers, mut done) = (Vec::new(), Vec::new());
    for number in 0..count {
        let (ours, theirs) = unix_pair();
        let handle = rig.channel.register(theirs, number).unwrap();
        let repeat = if number % 2 == 0 { Repeat::Once } else { Repeat::UntilCancelled };
        file(&mut rig, &mut done, |rig| rig.receive(handle, repeat));
        let message = number.to_ne_bytes().to_vec();
        file(&mut rig, &mut done, |rig| Ok(rig.write(handle, message.clone())?));
        peers.push(ours);
    }
    rig.flush().unwrap();
    for (number, ours) in peers.iter_mut().enumerate() {
        ours.write_all(&number.to_ne_bytes()).unwrap();
    }
    while done.len() < 2 * count as usize {
        done.push(rig.next());
    }
    let (mut received_from, mut wrote) = (vec![0; count as usize], vec![0; count as usize]);
    for done in done {
        let number = *rig.cookie(done.handle).unwrap();
        match done.event {
            Event::Receive(Ok(lease)) => {
                assert_eq!(*lease, number.to_ne_bytes());
                assert_eq!(done.more, number % 2 == 1);
                received_from[number as usize] += 1;
            }
            event => {
                assert_eq!(*written(event), number.to_ne_bytes());
                wrote[number as usize] += 1;
            }
        }
    }
    assert!(received_from.iter().chain(&wrote).all(|times| *times == 1));
    for (number, ours) in peers.iter_mut().enumerate() {
        let mut found = [0; 8];
        ours.read_exact(&mut found).unwrap();
        assert_eq!(found, number.to_ne_bytes());
    }
}

pub(crate) fn a_short_completion_queue_of_connections(driver: DriverChoice) {
    let config = Config { completions: 64, ..Config::default() };
    for accept in [Accept::descriptors(), Accept::lightweight()] {
        let mut rig = Rig::with(driver, config.clone());
        let (listener, address) = listener();
        let listening = rig.join(listener);
        let count = 300;
        let mut clients: Vec<_> = (0..count).map(|_| client(address)).collect();
        rig.accept(listening, accept).unwrap();
        let mut handles = Vec::new();
        while handles.len() < count {
            let socket = accepted(rig.another(listening)).socket;
            handles.push(rig.join(socket));
        }
        for (client, handle) in clients.iter_mut().zip(&handles) {
            rig.receive(*handle, Repeat::UntilCancelled).unwrap();
            client.write_all(&client.local_addr().unwrap().port().to_ne_bytes()).unwrap();
        }
        for _ in 0..count {
            let done = rig.next();
            let peer = rig.peer_address(done.handle).unwrap().inet().unwrap();
            assert_eq!(*received(done.event), peer.port().to_ne_bytes());
        }
        for handle in handles {
            rig.close(handle).unwrap();
        }
        rig.unregister(listening).unwrap();
        let closed = rig.drain();
        assert_eq!(closed.len(), count);
        assert!(closed.iter().all(|done| matches!(done.event, Event::Close(Ok(())))));
        clients.iter_mut().for_each(expect_end);
    }
}

pub(crate) fn idle_connections_do_not_hide_a_busy_one(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let idle: Vec<UnixStream> = (0..1000)
        .map(|_| {
            let (ours, theirs) = unix_pair();
            let handle = rig.join(theirs);
            rig.receive(handle, Repeat::UntilCancelled).unwrap();
            ours
        })
        .collect();
    let (mut ours, busy) = rig.tcp_pair();
    rig.receive(busy, Repeat::UntilCancelled).unwrap();
    for round in 0..500u32 {
        ours.write_all(&round.to_ne_bytes()).unwrap();
        let lease = received(rig.another(busy));
        assert_eq!(*lease, round.to_ne_bytes());
        rig.write(busy, lease).unwrap();
        written(rig.last(busy));
        let mut found = [0; 4];
        ours.read_exact(&mut found).unwrap();
        assert_eq!(found, round.to_ne_bytes());
    }
    assert_eq!(rig.outstanding(), idle.len() + 1);
}

pub(crate) fn many_requests_on_one_handle(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let pattern = Pattern::new(6);
    let (ours, theirs) = unix_pair();
    let (left, right) = (rig.join(ours), rig.join(theirs));
    let (count, bytes) = (20_000, 50);
    for number in 0..count {
        rig.write(left, pattern.bytes(number * bytes, bytes)).unwrap();
        rig.read(right, Vec::with_capacity(bytes)).unwrap();
    }
    let (mut sent, mut at) = (0, 0);
    while at < count * bytes || sent < count {
        let done = rig.next();
        match done.event {
            Event::Read(Ok(_), found) => {
                assert_eq!(done.handle, right);
                pattern.check(at, &found);
                at += found.len();
                // A read may return fewer bytes than its room; the rest needs one more read.
                if found.len() < bytes {
                    rig.read(right, Vec::with_capacity(bytes)).unwrap();
                }
            }
            event => {
                pattern.check(sent * bytes, &written(event));
                sent += 1;
            }
        }
    }
    rig.unregister(right).unwrap();
    rig.drain();
}

pub(crate) fn connections_that_come_and_go(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (listener, address) = listener();
    let listening = rig.join(listener);
    rig.accept(listening, Accept::lightweight()).unwrap();
    let rounds = 600u32;
    let clients = std::thread::spawn(move || {
        for round in 0..rounds {
            let mut client = client(address);
            client.write_all(&round.to_ne_bytes()).unwrap();
            let mut found = Vec::new();
            client.read_to_end(&mut found).unwrap();
            assert_eq!(found, round.to_ne_bytes());
        }
    });
    let mut closed = 0;
    while closed < rounds {
        let done = rig.next();
        match done.event {
            Event::Accept(accepted) => {
                let handle = rig.join(accepted.unwrap().socket);
                rig.receive(handle, Repeat::UntilCancelled).unwrap();
            }
            Event::Receive(lease) => rig.write(done.handle, lease.unwrap()).unwrap(),
            Event::Write(result, _) => {
                assert_eq!(result.unwrap(), 4);
                rig.close(done.handle).unwrap();
            }
            Event::Close(Ok(())) => closed += 1,
            other => panic!("unexpected {other:?}"),
        }
    }
    clients.join().unwrap();
    assert!(rig.drain_to(1).is_empty());
}

pub(crate) fn everything_at_once(driver: DriverChoice) {
    let mut rig = Rig::with(driver, Config { completions: 64, batch: 3, ..Config::default() });
    let (count, bytes) = (8, 300_000);
    let mut talkers = Vec::new();
    let mut echoed = HashMap::new();
    for number in 0..count {
        let (ours, theirs) = unix_pair();
        let handle = rig.join(theirs);
        rig.receive(handle, Repeat::UntilCancelled).unwrap();
        talkers.push(talker(ours, Pattern::new(100 + number), vec![bytes / 100; 100]));
        echoed.insert(handle, 0);
    }
    let ticking = rig.join(Timer::every(Duration::from_millis(1)).unwrap());
    rig.watch(ticking, Repeat::UntilCancelled).unwrap();
    let file = rig.join(tempfile::tempfile().unwrap());
    let (mut ticks, mut file_bytes, mut file_at) = (0, 0, 0);
    rig.write_at(file, vec![1; 1000], 0).unwrap();
    while echoed.values().any(|total| *total < bytes) || ticks == 0 || file_bytes < 20_000 {
        let done = rig.next();
        match done.event {
            Event::Receive(Ok(lease)) if !lease.is_empty() => {
                rig.write(done.handle, lease).unwrap()
            }
            Event::Write(Ok(bytes), _) => *echoed.get_mut(&done.handle).unwrap() += bytes,
            Event::Timer(Ok(expired)) => ticks += expired,
            Event::WriteAt(Ok(1000), buffer, offset) => {
                assert_eq!(offset, file_at);
                file_at += 1000;
                file_bytes += 1000;
                rig.write_at(file, buffer, file_at).unwrap();
            }
            Event::Receive(Ok(_)) => assert!(echoed[&done.handle] == bytes, "an early end"),
            other => panic!("unexpected {other:?}"),
        }
    }
    talkers.into_iter().for_each(|talker| talker.join().unwrap());
}
