//! Tests dispatching, and how memberships and channels end.

use crate::common;
use crate::common::process::isolated;
use crate::common::{
    Pattern, Rig, TIME_LIMIT, accepted, client, expect_gone, listener, read_of, received, silent,
    tcp_pair, udp, unix_pair, written,
};
use megapipe::{
    Accept, Channel, Completion, Config, DriverChoice, Error, Event, Handle, Repeat, Timer,
    wake_pair,
};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub(crate) fn dispatch_returns_in_time(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    // Without any request, and with one that does not complete.
    for round in 0..2 {
        assert!(rig.dispatch(Duration::ZERO).unwrap().is_none());
        let begin = Instant::now();
        let short = Duration::from_millis(20);
        assert!(rig.dispatch(short).unwrap().is_none());
        assert!(begin.elapsed() >= short, "{:?}", begin.elapsed());
        assert!(begin.elapsed() < TIME_LIMIT, "{:?}", begin.elapsed());
        let mut batch = Vec::new();
        assert_eq!(rig.dispatch_batch(&mut batch, 10, Duration::ZERO).unwrap(), 0);
        if round == 0 {
            let (a, b) = silent();
            let handle = rig.join(a);
            rig.join(b);
            rig.receive(handle, Repeat::UntilCancelled).unwrap();
        }
    }
    // The longest time-outs that a caller can pass.
    for forever in [None, Some(Duration::MAX), Some(Duration::from_secs(1 << 40))] {
        let handle = rig.join(Timer::after(Duration::from_millis(1)).unwrap());
        rig.watch(handle, Repeat::Once).unwrap();
        let done = rig.dispatch(forever).unwrap().expect("a completion");
        assert_eq!(done.handle, handle);
    }
}

extern "C" fn handle_signal(_: libc::c_int) {}

pub(crate) fn a_signal_handler_ends_a_wait(driver: DriverChoice) {
    let handler = handle_signal as extern "C" fn(libc::c_int);
    // SAFETY: all-zero bytes are a valid `sigaction`: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as usize;
    // SAFETY: the handler does nothing, which is safe at any time; the old one is not asked for.
    let set = unsafe { libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()) };
    assert_eq!(set, 0);
    let mut rig = Rig::new(driver);
    let (a, _b) = silent();
    let handle = rig.join(a);
    rig.receive(handle, Repeat::UntilCancelled).unwrap();
    // SAFETY: the call has no preconditions.
    let waiting = unsafe { libc::pthread_self() };
    let returned = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Until one of the signals arrives while the channel waits.
            while !returned.load(Ordering::Relaxed) {
                // SAFETY: the thread lives until this one has been joined.
                unsafe { libc::pthread_kill(waiting, libc::SIGUSR1) };
                std::thread::yield_now();
            }
        });
        let came = rig.dispatch(None);
        returned.store(true, Ordering::Relaxed);
        assert!(came.unwrap().is_none());
    });
    assert_eq!(rig.outstanding(), 1);
}

/// Returns the line about the calling thread's mask in proc_pid_status(5).
fn blocked_signals() -> Option<String> {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    status.lines().find(|line| line.starts_with("SigBlk")).map(str::to_owned)
}

pub(crate) fn broken_pipes_raise_no_signal(driver: DriverChoice) {
    isolated(driver, "broken_pipes_raise_no_signal", || {
        // SAFETY: the default action replaces Rust's, which is to ignore the signal.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        let blocked = blocked_signals();
        let mut rig = Rig::new(driver);
        let is_broken = |done: Event| match done {
            Event::Write(Err(error), _) | Event::WriteVectored(Err(error), _) => {
                error.raw_os_error() == Some(libc::EPIPE)
            }
            _ => false,
        };
        let (reader, writer) = std::io::pipe().unwrap();
        let handle = rig.join(OwnedFd::from(writer));
        // The first write waits for room when the reader leaves; the others find it gone.
        rig.write(handle, vec![0; 1 << 20]).unwrap();
        rig.flush().unwrap();
        assert!(rig.dispatch(Some(Duration::ZERO)).unwrap().is_none());
        drop(reader);
        assert!(is_broken(rig.last(handle)));
        rig.write(handle, b"x").unwrap();
        assert!(is_broken(rig.last(handle)));
        rig.write_vectored(handle, vec!["y".into(), "z".into()]).unwrap();
        assert!(is_broken(rig.last(handle)));
        assert_eq!(blocked_signals(), blocked, "the thread's mask is as before");
    });
}

pub(crate) fn broken_sockets_raise_no_signal(driver: DriverChoice) {
    isolated(driver, "broken_sockets_raise_no_signal", || {
        // SAFETY: the default action replaces Rust's, which is to ignore the signal.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        let mut rig = Rig::new(driver);
        let (light_client, light) = rig.lightweight_pair();
        let ((tcp, tcp_handle), unix) = (rig.tcp_pair(), unix_pair());
        let unix_handle = rig.join(unix.1);
        drop((light_client, tcp, unix.0));
        for handle in [light, tcp_handle, unix_handle] {
            // The kernel may take the first write, which the peer answers with a reset.
            for _ in 0..2 {
                rig.write(handle, b"x").unwrap();
                rig.last(handle);
                rig.write_vectored(handle, vec!["y".into(), "z".into()]).unwrap();
                rig.last(handle);
                common::await_delivery();
            }
            rig.write(handle, b"x").unwrap();
            let Event::Write(Err(error), _) = rig.last(handle) else { panic!("it is broken") };
            assert_eq!(error.raw_os_error(), Some(libc::EPIPE));
        }
    });
}

pub(crate) fn a_batch_has_its_limit(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let count = 100;
    let pairs: Vec<(UnixStream, Handle)> = (0..count)
        .map(|_| {
            let (mut ours, theirs) = unix_pair();
            let handle = rig.join(theirs);
            rig.read(handle, Vec::with_capacity(1)).unwrap();
            ours.write_all(b"x").unwrap();
            (ours, handle)
        })
        .collect();
    let mut batch: Vec<Completion> = Vec::new();
    assert_eq!(rig.dispatch_batch(&mut batch, 0, TIME_LIMIT).unwrap(), 0);
    let mut rounds = 0;
    while batch.len() < count {
        let before = batch.len();
        let came = rig.dispatch_batch(&mut batch, 7, TIME_LIMIT).unwrap();
        assert_eq!(batch.len(), before + came);
        assert!((1..=7).contains(&came), "{came} completions");
        rounds += 1;
    }
    assert!(rounds >= count / 7);
    let mut handles: Vec<Handle> = batch.iter().map(|done| done.handle).collect();
    for (_, handle) in &pairs {
        let at = handles.iter().position(|known| known == handle).expect("one for each");
        handles.swap_remove(at);
    }
    assert_eq!(rig.outstanding(), 0);
}

pub(crate) fn a_batch_is_not_withdrawn(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (a, b) = silent();
    let (a, b) = (rig.join(a), rig.join(b));
    rig.write(a, b"from a").unwrap();
    rig.write(b, b"from b").unwrap();
    let mut batch = Vec::new();
    while batch.len() < 2 {
        assert!(rig.dispatch_batch(&mut batch, 10, TIME_LIMIT).unwrap() > 0);
    }
    rig.unregister(a).unwrap();
    assert_eq!(rig.cookie(a), None);
    assert_eq!(batch.len(), 2);
    assert!(batch.iter().any(|done| done.handle == a));
}

pub(crate) fn flush_starts_requests(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (mut ours, handle) = rig.tcp_pair();
    rig.flush().unwrap();
    rig.write(handle, b"on its way").unwrap();
    rig.flush().unwrap();
    let mut found = [0; 10];
    ours.read_exact(&mut found).unwrap();
    assert_eq!(&found, b"on its way");
    assert_eq!(rig.outstanding(), 1);
    assert_eq!(written(rig.last(handle)).len(), 10);
}

pub(crate) fn unregister_withdraws_what_is_pending(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (mut ours, theirs) = unix_pair();
    let handle = rig.channel.register(theirs, 4711).unwrap();
    rig.receive(handle, Repeat::UntilCancelled).unwrap();
    rig.read(handle, Vec::with_capacity(10)).unwrap();
    rig.receive(handle, Repeat::Once).unwrap();
    rig.flush().unwrap();
    let remains = rig.unregister(handle).unwrap();
    assert_eq!((remains.cookie, remains.connections.len()), (4711, 0));
    let mut theirs = UnixStream::from(remains.descriptor.unwrap());
    ours.write_all(b"not for the channel").unwrap();
    assert!(rig.drain().is_empty());
    assert_eq!(rig.counters().cancelled, 3);
    let mut found = [0; 19];
    theirs.read_exact(&mut found).unwrap();
    assert_eq!(&found, b"not for the channel");
}

pub(crate) fn unregister_withdraws_what_has_completed(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let mut others = Vec::new();
    for _ in 0..10 {
        let (mut ours, theirs) = unix_pair();
        let handle = rig.join(theirs);
        rig.receive(handle, Repeat::UntilCancelled).unwrap();
        ours.write_all(b"x").unwrap();
        others.push((ours, handle));
    }
    // Most of them have completed by the time the first is delivered.
    let first = rig.next().handle;
    for (_, handle) in others.iter().filter(|(_, handle)| *handle != first) {
        rig.unregister(*handle).unwrap();
    }
    assert!(rig.drain_to(1).is_empty());
    rig.unregister(first).unwrap();
    assert!(rig.drain().is_empty());
    // Their buffers are free again: all buffers of the channel can be leased.
    assert_eq!(rig.counters().buffer_waits, 0);
}

pub(crate) fn an_unregistered_stream_goes_on_without_the_channel(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let pattern = Pattern::new(1);
    let (mut ours, theirs) = tcp_pair();
    let mut theirs = OwnedFd::from(theirs);
    let mut at = 0;
    // The stream enters and leaves the channel, and no byte is lost.
    for round in 0..50 {
        ours.write_all(&pattern.bytes(at, 100)).unwrap();
        let handle = rig.join(theirs);
        rig.read(handle, Vec::with_capacity(100)).unwrap();
        let bytes = read_of(rig.last(handle));
        pattern.check(at, &bytes);
        at += bytes.len();
        if round % 2 == 0 {
            rig.receive(handle, Repeat::UntilCancelled).unwrap();
            rig.flush().unwrap();
        }
        theirs = rig.unregister(handle).unwrap().descriptor.unwrap();
        let mut stream = TcpStream::from(theirs);
        stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        ours.write_all(&pattern.bytes(at, 50)).unwrap();
        let mut found = vec![0; 50];
        stream.read_exact(&mut found).unwrap();
        pattern.check(at, &found);
        at += 50;
        theirs = stream.into();
    }
}

pub(crate) fn unregister_drops_the_writes_not_begun(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let pattern = Pattern::new(2);
    let (mut ours, theirs) = unix_pair();
    let handle = rig.join(theirs);
    // The first write fills the socket; those behind it have not begun.
    let shared: std::sync::Arc<[u8]> = std::sync::Arc::from(pattern.bytes(0, 8 << 20));
    for _ in 0..5 {
        rig.write(handle, std::sync::Arc::clone(&shared)).unwrap();
    }
    rig.flush().unwrap();
    drop(rig.unregister(handle).unwrap());
    assert!(rig.drain().is_empty());
    assert_eq!(std::sync::Arc::strong_count(&shared), 1, "a buffer is kept");
    let mut found = Vec::new();
    ours.read_to_end(&mut found).unwrap();
    assert!(found.len() < 8 << 20);
    pattern.check(0, &found);
}

pub(crate) fn the_peer_of_an_unregistered_lightweight_socket_sees_the_end(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    for busy in [false, true] {
        let (mut ours, handle) = rig.lightweight_pair();
        rig.write(handle, b"the last words").unwrap();
        assert_eq!(written(rig.last(handle)).len(), 14);
        if busy {
            rig.receive(handle, Repeat::UntilCancelled).unwrap();
            rig.flush().unwrap();
        }
        let remains = rig.unregister(handle).unwrap();
        assert!(remains.descriptor.is_none());
        drop(remains);
        assert!(rig.drain().is_empty());
        rig.flush().unwrap();
        let mut found = Vec::new();
        ours.read_to_end(&mut found).unwrap();
        assert_eq!(found, b"the last words");
    }
}

pub(crate) fn close_tells_its_result(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (light_client, light) = rig.lightweight_pair();
    let (ours, regular) = rig.tcp_pair();
    for (handle, mut client) in [(light, light_client), (regular, ours)] {
        rig.receive(handle, Repeat::UntilCancelled).unwrap();
        rig.read(handle, Vec::with_capacity(1)).unwrap();
        rig.flush().unwrap();
        assert_eq!(rig.close(handle).unwrap(), 0);
        assert!(matches!(rig.close(handle), Err(Error::UnknownHandle)));
        // Only the close itself completes.
        assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
        common::expect_end(&mut client);
    }
    assert!(rig.drain().is_empty());
}

pub(crate) fn close_at_once_after_a_write(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    for _ in 0..20 {
        let (mut ours, handle) = rig.lightweight_pair();
        rig.write(handle, b"response").unwrap();
        assert_eq!(written(rig.last(handle)).len(), 8);
        rig.close(handle).unwrap();
        assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
        let mut found = Vec::new();
        ours.read_to_end(&mut found).unwrap();
        assert_eq!(found, b"response");
    }
}

pub(crate) fn a_descriptor_outlives_its_handle(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (mut ours, theirs) = unix_pair();
    let handle = rig.join(theirs);
    let mut second = UnixStream::from(rig.descriptor(handle).unwrap());
    rig.close(handle).unwrap();
    assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
    second.write_all(b"open still").unwrap();
    let mut found = [0; 10];
    ours.read_exact(&mut found).unwrap();
    assert_eq!(&found, b"open still");
    drop(second);
    common::expect_end(&mut ours);
}

pub(crate) fn a_dropped_socket_is_closed(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (listener, address) = listener();
    let listening = rig.join(listener);
    rig.accept(listening, Accept::lightweight()).unwrap();
    for _ in 0..5 {
        let mut ours = client(address);
        drop(accepted(rig.another(listening)));
        rig.flush().unwrap();
        // The next dispatch closes it at the latest.
        assert!(rig.dispatch(Duration::ZERO).unwrap().is_none());
        common::expect_end(&mut ours);
    }
}

pub(crate) fn lightweight_sockets_of_another_channel_are_refused(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let mut other = Rig::other(driver);
    let (listener, address) = listener();
    let listening = rig.join(listener);
    rig.accept(listening, Accept::lightweight().count(1)).unwrap();
    let mut ours = client(address);
    let socket = accepted(rig.last(listening)).socket;
    let socket = match socket.into_descriptor() {
        Err(socket) => socket,
        // If the lightweight socket is a descriptor, any channel can use it.
        Ok(descriptor) => {
            let handle = other.join(descriptor);
            other.write(handle, b"hello").unwrap();
            assert_eq!(written(other.last(handle)).len(), 5);
            return;
        }
    };
    match other.channel.register(socket, 0).unwrap_err() {
        Error::System { source, .. } => assert_eq!(source.raw_os_error(), Some(libc::EXDEV)),
        error => panic!("unexpected {error}"),
    }
    // It is closed by its own channel.
    assert!(rig.dispatch(Duration::ZERO).unwrap().is_none());
    common::expect_end(&mut ours);
    // Its entry in the file table is free for other sockets.
    let next = if common::is_installed(driver) { &mut rig } else { &mut other };
    let (_ours, handle) = next.lightweight_pair();
    assert_eq!(next.kind(handle).unwrap(), megapipe::Kind::Stream);
}

pub(crate) fn leases_outlive_their_channel(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (mut ours, theirs) = unix_pair();
    let handle = rig.join(theirs);
    rig.receive(handle, Repeat::UntilCancelled).unwrap();
    let mut leases = Vec::new();
    for number in 0..10u8 {
        ours.write_all(&[number; 100]).unwrap();
        leases.push(received(rig.another(handle)));
    }
    drop(rig);
    for (number, lease) in leases.iter().enumerate() {
        assert_eq!(**lease, [number as u8; 100]);
    }
    // Another channel sends the leases.
    let mut rig = Rig::new(driver);
    let (mut ours, theirs) = unix_pair();
    let handle = rig.join(theirs);
    for lease in leases {
        rig.write(handle, lease).unwrap();
        assert_eq!(written(rig.last(handle)).len(), 100);
    }
    let mut found = [0; 1000];
    ours.read_exact(&mut found).unwrap();
    assert!(found.chunks(100).zip(0u8..).all(|(chunk, number)| chunk == [number; 100]));
}

pub(crate) fn dropping_with_everything_in_flight(driver: DriverChoice) {
    let is_freed = (0..5).any(|_| drop_with_everything_in_flight(driver));
    assert!(is_freed, "memory is leaked");
}

/// Returns whether all memory was released. It is not if a thread that works on the file gets no
/// CPU for so long that the channel gives up, which then is correct.
fn drop_with_everything_in_flight(driver: DriverChoice) -> bool {
    let shared: std::sync::Arc<[u8]> = std::sync::Arc::from(vec![7; 4 << 20]);
    let mut rig = Rig::new(driver);
    let (mut light, handle) = rig.lightweight_pair();
    rig.receive(handle, Repeat::UntilCancelled).unwrap();
    let (tcp, stream) = rig.tcp_pair();
    rig.read(stream, Vec::with_capacity(1 << 20)).unwrap();
    rig.read_vectored(stream, vec![Vec::with_capacity(10)]).unwrap();
    rig.receive(stream, Repeat::Once).unwrap();
    for _ in 0..3 {
        rig.write(stream, std::sync::Arc::clone(&shared)).unwrap();
    }
    rig.write_vectored(stream, vec![std::sync::Arc::clone(&shared).into()]).unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    let pipe = rig.join(OwnedFd::from(reader));
    rig.receive(pipe, Repeat::UntilCancelled).unwrap();
    let (full_reader, full_writer) = std::io::pipe().unwrap();
    let full = rig.join(OwnedFd::from(full_writer));
    rig.write(full, std::sync::Arc::clone(&shared)).unwrap();
    let (listener, address) = listener();
    let listening = rig.join(listener);
    rig.accept(listening, Accept::lightweight()).unwrap();
    let mut waiting = client(address);
    for repeat in [Repeat::Once, Repeat::UntilCancelled] {
        let datagrams = rig.join(udp("127.0.0.1").0);
        rig.receive_from(datagrams, repeat).unwrap();
        let timer = rig.join(Timer::after(Duration::from_secs(3600)).unwrap());
        rig.watch(timer, repeat).unwrap();
    }
    let (waker, source) = wake_pair().unwrap();
    let waking = rig.join(source);
    rig.watch(waking, Repeat::UntilCancelled).unwrap();
    let file = rig.join(common::memory_file());
    rig.write_at(file, std::sync::Arc::clone(&shared), 0).unwrap();
    rig.sync(file).unwrap();
    let closing = rig.join(unix_pair().1);
    rig.close(closing).unwrap();
    rig.flush().unwrap();
    let has_given_up = common::drop_gives_up(rig);
    if has_given_up && std::sync::Arc::strong_count(&shared) > 1 {
        return false;
    }
    assert_eq!(std::sync::Arc::strong_count(&shared), 1, "memory is leaked");
    waker.wake();
    drop((writer, full_reader));
    common::expect_end(&mut light);
    expect_gone(&mut waiting);
    let mut found = Vec::new();
    // What is queued is not written, and the peer must not take a part for the whole.
    let end = { tcp }.read_to_end(&mut found).map_err(|error| error.kind());
    assert_eq!(end, Err(std::io::ErrorKind::ConnectionReset));
    assert!(found.len() < 4 * shared.len() && found.iter().all(|byte| *byte == 7));
    true
}

pub(crate) fn a_peer_of_a_dropped_channel_sees_the_end(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (listener, address, _port) = common::lasting_listener();
    let listening = rig.join(listener);
    rig.accept(listening, Accept::lightweight()).unwrap();
    let mut clients = Vec::new();
    // Connections in four states: registered and busy, registered and idle, accepted and not
    // registered, not accepted.
    let mut unregistered = Vec::new();
    for number in 0..30 {
        clients.push(client(address));
        let socket = accepted(rig.another(listening)).socket;
        if number % 3 == 0 {
            unregistered.push(socket);
        } else {
            let handle = rig.join(socket);
            if number % 3 == 1 {
                rig.receive(handle, Repeat::UntilCancelled).unwrap();
            }
        }
    }
    clients.extend((0..5).map(|_| client(address)));
    rig.flush().unwrap();
    drop(rig);
    for client in clients.iter_mut().skip(30) {
        expect_gone(client);
    }
    for (number, client) in clients.iter_mut().take(30).enumerate() {
        if number % 3 != 0 {
            expect_gone(client);
        }
    }
    // Descriptors belong to the application until it drops them.
    drop(unregistered);
    clients.iter_mut().take(30).step_by(3).for_each(expect_gone);
    assert!(TcpStream::connect(address).is_err());
}

pub(crate) fn channels_come_and_go(driver: DriverChoice) {
    for round in 0..50u8 {
        let config = Config { completions: 64, ..Config::default() };
        let mut channel: Channel<u8> =
            Channel::with_config(Config { driver, ..config }).expect("a channel");
        let (mut ours, theirs) = unix_pair();
        let handle = channel.register(theirs, round).unwrap();
        channel.receive(handle, Repeat::UntilCancelled).unwrap();
        ours.write_all(&[round]).unwrap();
        let done = channel.dispatch(TIME_LIMIT).unwrap().expect("a completion");
        assert_eq!(*received(done.event), [round]);
        drop(channel);
        common::expect_end(&mut ours);
    }
}

pub(crate) fn counters_count(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    assert_eq!(rig.counters().requests, 0);
    let (mut ours, theirs) = unix_pair();
    let handle = rig.join(theirs);
    rig.receive(handle, Repeat::UntilCancelled).unwrap();
    for _ in 0..5 {
        ours.write_all(b"x").unwrap();
        received(rig.another(handle));
    }
    rig.write(handle, b"y").unwrap();
    written(rig.last(handle));
    let counters = rig.counters();
    assert_eq!((counters.requests, counters.completions), (2, 6));
    assert!(counters.operations >= 2, "{counters:?}");
    assert!(counters.system_calls >= 1 && counters.waits >= 1, "{counters:?}");
    assert!(counters.batched >= 1 && counters.largest_batch >= 1, "{counters:?}");
    rig.unregister(handle).unwrap();
    rig.drain();
    assert_eq!(rig.counters().cancelled, 1);
}
