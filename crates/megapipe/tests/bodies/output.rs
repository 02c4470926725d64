//! Tests bounds on queued output, when a peer does not read.

use crate::common::{Pattern, Rig, outcome, received, unix_pair, written};
use megapipe::{
    Buffer, BufferClass, Config, Direction, DriverChoice, Error, Event, Handle, Repeat,
};
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::time::Duration;
use testkit::raise_descriptor_limit;

/// More bytes than the kernel takes for a peer that does not read.
const STUCK_BYTES: usize = 4 << 20;

const PAUSE: usize = 64 << 10;

/// Bytes of all buffers of the channel, which may be in flight when a receive pauses.
const BUFFERED: usize = 16 * 4096 + 4 * 16_384;

fn config() -> Config {
    Config {
        small_buffers: BufferClass { count: 16, bytes: 4096 },
        large_buffers: BufferClass { count: 4, bytes: 16_384 },
        output_pause: PAUSE,
        ..Config::default()
    }
}

/// Sends from `at` on what the peer's socket takes; returns the new offset.
fn push(ours: &mut UnixStream, pattern: &Pattern, mut at: usize, total: usize) -> usize {
    while at < total {
        match ours.write(&pattern.bytes(at, 3000.min(total - at))) {
            Ok(bytes) => at += bytes,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("write: {error}"),
        }
    }
    at
}

/// Echoes until no data has arrived for a while; returns how many bytes were written.
fn echo_until_still(rig: &mut Rig, handle: Handle) -> usize {
    let mut echoed = 0;
    while let Some(done) = rig.dispatch(Duration::from_millis(20)).unwrap() {
        match done.event {
            Event::Receive(Ok(lease)) => rig.write(handle, lease).unwrap(),
            event => echoed += written(event).len(),
        }
    }
    echoed
}

pub(crate) fn a_receive_pauses_while_output_waits(driver: DriverChoice) {
    let mut rig = Rig::with(driver, config());
    let pattern = Pattern::new(1);
    let (mut ours, theirs) = unix_pair();
    let handle = rig.join(theirs);
    rig.receive(handle, Repeat::UntilCancelled).unwrap();
    ours.set_nonblocking(true).unwrap();
    let (total, mut sent, mut echoed) = (8 << 20, 0, 0);
    loop {
        let before = sent;
        sent = push(&mut ours, &pattern, sent, total);
        echoed += echo_until_still(&mut rig, handle);
        if sent == before {
            break;
        }
    }
    assert!(sent < total, "the channel took {total} bytes for a peer that reads nothing");
    let queued = rig.queued_bytes(handle).unwrap();
    assert!((PAUSE..PAUSE + 2 * BUFFERED).contains(&queued), "{queued} bytes wait");
    // The receive resumes while the kernel still takes some bytes.
    let paused = rig.counters().paused;
    assert!((1..100).contains(&paused), "paused {paused} times");
    // As soon as the peer reads, the echo continues by itself.
    let reader = std::thread::spawn(move || {
        ours.set_nonblocking(false).unwrap();
        let mut writing = ours.try_clone().unwrap();
        let source = pattern.clone();
        let writer = std::thread::spawn(move || {
            writing.write_all(&source.bytes(sent, total - sent)).unwrap();
        });
        let mut found = vec![0; total];
        ours.read_exact(&mut found).unwrap();
        pattern.check(0, &found);
        writer.join().unwrap();
    });
    while echoed < total {
        match rig.next().event {
            Event::Receive(Ok(lease)) => rig.write(handle, lease).unwrap(),
            event => echoed += written(event).len(),
        }
    }
    reader.join().unwrap();
    assert_eq!(rig.queued_bytes(handle).unwrap(), 0);
    assert_eq!(rig.outstanding(), 1);
    // Cancelling and closing a paused receive works as for any other.
    rig.cancel(handle).unwrap();
    let Event::Receive(Err(error)) = rig.last(handle) else { panic!("it was cancelled") };
    assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
}

/// Returns a channel whose receive pauses because its peer does not read two long writes, although
/// the peer has sent "received later"; with the peer and the handle.
fn paused(driver: DriverChoice) -> (Rig, UnixStream, Handle) {
    let mut rig = Rig::with(driver, config());
    let (mut ours, theirs) = unix_pair();
    let handle = rig.join(theirs);
    rig.receive(handle, Repeat::UntilCancelled).unwrap();
    for _ in 0..2 {
        rig.write(handle, vec![0; STUCK_BYTES]).unwrap();
    }
    assert!(rig.dispatch(Duration::from_millis(1)).unwrap().is_none());
    assert_eq!(rig.counters().paused, 1);
    ours.write_all(b"received later").unwrap();
    assert!(rig.dispatch(Duration::from_millis(1)).unwrap().is_none());
    (rig, ours, handle)
}

pub(crate) fn a_receive_resumes_when_the_output_is_cancelled(driver: DriverChoice) {
    let (mut rig, _ours, handle) = paused(driver);
    rig.cancel_direction(handle, Direction::Outbound).unwrap();
    let mut events: Vec<Event> = (0..3).map(|_| rig.next().event).collect();
    events
        .retain(|event| matches!(event, Event::Receive(Ok(data)) if **data == *b"received later"));
    assert_eq!(events.len(), 1);
}

pub(crate) fn a_paused_receive_ends_with_its_handle(driver: DriverChoice) {
    for how in 0..3 {
        let (mut rig, _ours, handle) = paused(driver);
        match how {
            0 => {
                rig.cancel(handle).unwrap();
                let mut events: Vec<Event> = (0..3).map(|_| rig.last(handle)).collect();
                events.retain(|event| matches!(event, Event::Receive(Err(_))));
                assert_eq!(events.len(), 1);
            }
            1 => {
                rig.abort(handle).unwrap();
                assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
            }
            _ => drop(rig.unregister(handle).unwrap()),
        }
        assert!(rig.drain().is_empty());
    }
}

/// Waiting small messages take more memory than their bytes.
pub(crate) fn single_bytes_pause_a_receive_too(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (mut ours, theirs) = unix_pair();
    let handle = rig.join(theirs);
    rig.receive(handle, Repeat::UntilCancelled).unwrap();
    rig.write(handle, vec![0; STUCK_BYTES]).unwrap();
    let mut messages = 0;
    while rig.counters().paused == 0 {
        assert!(messages < 5000, "{messages} requests wait for a peer that reads nothing");
        ours.write_all(b"x").unwrap();
        let lease = received(rig.another(handle));
        rig.write(handle, lease).unwrap();
        messages += 1;
    }
    // More messages than a client sends that only reads a little late.
    assert!(messages > 100, "paused after {messages} messages");
    assert!(rig.queued_bytes(handle).unwrap() <= STUCK_BYTES + messages);
}

pub(crate) fn a_write_beyond_the_limit_gives_its_buffer_back(driver: DriverChoice) {
    let limit = 100_000;
    let mut rig = Rig::with(driver, Config { output_limit: limit, ..Config::default() });
    let (ours, theirs) = unix_pair();
    let handle = rig.join(theirs);
    // The first write is in flight and may have any size; then as many as fit.
    rig.write(handle, vec![0; STUCK_BYTES]).unwrap();
    rig.write(handle, vec![1; limit - 1]).unwrap();
    rig.write(handle, vec![2; limit]).unwrap();
    let is_full = |error: &Error| match error {
        Error::OutputFull { queued, limit: told } => *queued == 2 * limit - 1 && *told == limit,
        _ => false,
    };
    let rejected = rig.write(handle, b"one more".to_vec()).unwrap_err();
    assert!(is_full(&rejected.error), "{rejected}");
    assert_eq!(&rejected.buffer[..], b"one more");
    let text = rejected.to_string();
    assert!(text.contains("199999") && text.contains("does not read"), "{text}");
    let rejected = rig.write_vectored(handle, vec!["a".into(), "b".into()]).unwrap_err();
    assert!(is_full(&rejected.error) && rejected.buffer.len() == 2, "{rejected}");
    // What writes nothing is not refused.
    rig.disconnect(handle, Shutdown::Write).unwrap();
    rig.read(handle, Vec::with_capacity(1)).unwrap();
    // When the peer reads, there is room again.
    let reader = std::thread::spawn(move || {
        let (mut ours, mut found) = (ours, Vec::new());
        ours.read_to_end(&mut found).unwrap();
        (found.len(), ours)
    });
    for _ in 0..3 {
        written(rig.last(handle));
    }
    assert_eq!(rig.queued_bytes(handle).unwrap(), 0);
    assert!(matches!(rig.next().event, Event::Disconnect(Ok(()))));
    let (found, _ours) = reader.join().unwrap();
    assert_eq!(found, STUCK_BYTES + 2 * limit - 1);
    rig.write(handle, b"it is shut").unwrap();
    assert_eq!(outcome(&rig.last(handle)), Err(libc::EPIPE));
}

/// Datagrams that wait for room at their receiver are bounded, too.
pub(crate) fn datagrams_beyond_the_limit_are_refused(driver: DriverChoice) {
    let limit = 50_000;
    let mut rig = Rig::with(driver, Config { output_limit: limit, ..Config::default() });
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("deaf");
    let deaf = UnixDatagram::bind(&path).unwrap();
    let handle = rig.join(UnixDatagram::unbound().unwrap());
    let (mut filed, message) = (0, vec![5; 1000]);
    let buffer = loop {
        assert!(filed < 2000, "{filed} datagrams wait for a peer that reads nothing");
        let address = megapipe::Address::Path(path.clone());
        match rig.send_to(handle, message.clone(), address) {
            Ok(()) => filed += 1,
            Err(rejected) => {
                assert!(matches!(rejected.error, Error::OutputFull { .. }), "{rejected}");
                break rejected.buffer;
            }
        }
        while let Some(done) = rig.dispatch(Duration::ZERO).unwrap() {
            assert!(matches!(done.event, Event::SendTo(Ok(1000), _)), "{done:?}");
        }
    };
    assert_eq!(buffer[..], message);
    // All submitted datagrams arrive.
    for _ in 0..filed {
        let mut room = [0; 1001];
        rig.dispatch(Duration::ZERO).unwrap();
        deaf.set_nonblocking(true).unwrap();
        while let Err(error) = deaf.recv(&mut room) {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            rig.dispatch(Duration::from_millis(1)).unwrap();
        }
    }
}

pub(crate) fn leases_are_copied_when_they_are_crowded(driver: DriverChoice) {
    let mut rig = Rig::with(driver, Config { output_pause: 1 << 20, ..config() });
    let (mut stalled, theirs) = unix_pair();
    let handle = rig.join(theirs);
    rig.receive(handle, Repeat::UntilCancelled).unwrap();
    rig.write(handle, vec![0; STUCK_BYTES]).unwrap();
    // There are more messages than buffers: the waiting writes would keep all of them.
    for round in 0..100u8 {
        stalled.write_all(&[round; 100]).unwrap();
        let lease = received(rig.another(handle));
        assert_eq!(*lease, [round; 100]);
        rig.write(handle, lease).unwrap();
    }
    let copied = rig.counters().copied;
    assert!((80..=100).contains(&copied), "{copied} leases were copied");
    assert_eq!(rig.counters().buffer_waits, 0);
    let mut found = vec![0; STUCK_BYTES + 100 * 100];
    let reader = std::thread::spawn(move || {
        stalled.read_exact(&mut found).unwrap();
        found
    });
    for _ in 0..101 {
        let event = rig.next().event;
        assert!(matches!(event, Event::Write(Ok(_), Buffer::Owned(_) | Buffer::Lease(_))));
    }
    let found = reader.join().unwrap();
    let echoed: Vec<u8> = (0..100u8).flat_map(|round| [round; 100]).collect();
    assert!(found[STUCK_BYTES..] == echoed, "the copies differ");
}

fn set_buffer(socket: &UnixStream, option: libc::c_int, bytes: libc::c_int) {
    let size = size_of_val(&bytes) as libc::socklen_t;
    let value = (&raw const bytes).cast();
    // SAFETY: `bytes` outlives the call and `size` is its size.
    let set =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value, size) };
    assert_eq!(set, 0, "setsockopt: {}", std::io::Error::last_os_error());
}

pub(crate) fn a_thousand_stalled_readers_stop_no_other(driver: DriverChoice) {
    raise_descriptor_limit(4096);
    let mut rig = Rig::with(driver, Config { output_pause: 8192, ..Config::default() });
    let mut stalled = Vec::new();
    for _ in 0..1000 {
        let (ours, theirs) = unix_pair();
        set_buffer(&ours, libc::SO_SNDBUF, 8192);
        set_buffer(&theirs, libc::SO_SNDBUF, 8192);
        ours.set_nonblocking(true).unwrap();
        let handle = rig.join(theirs);
        rig.receive(handle, Repeat::UntilCancelled).unwrap();
        stalled.push((ours, handle));
    }
    let (mut honest, theirs) = unix_pair();
    let handle = rig.join(theirs);
    rig.receive(handle, Repeat::UntilCancelled).unwrap();
    let pattern = Pattern::new(3);
    let mut sent = vec![0; stalled.len()];
    // Answers may come before every other connection has had its turn.
    for round in 0.. {
        assert!(round < 10_000, "only {} connections have paused", rig.counters().paused);
        let mut moved = false;
        for (number, (ours, _)) in stalled.iter_mut().enumerate() {
            let before = sent[number];
            sent[number] = push(ours, &pattern, before, 1 << 20);
            moved |= sent[number] > before;
        }
        for round in 0..3 {
            honest.write_all(&[round; 40]).unwrap();
            answer(&mut rig, handle);
            let mut found = [0; 40];
            honest.read_exact(&mut found).unwrap();
            assert_eq!(found, [round; 40]);
        }
        if !moved && rig.counters().paused >= 1000 {
            break;
        }
    }
    assert!(sent.iter().all(|sent| *sent < 1 << 20));
    for (_, handle) in &stalled {
        let queued = rig.queued_bytes(*handle).unwrap();
        assert!(queued < 8192 + 2 * 66_048, "{queued} bytes wait");
    }
}

/// Sends echoes to all until the answer of the given handle is written.
fn answer(rig: &mut Rig, handle: Handle) {
    loop {
        let done = rig.next();
        match done.event {
            Event::Receive(Ok(lease)) => rig.write(done.handle, lease).unwrap(),
            event => {
                written(event);
                if done.handle == handle {
                    return;
                }
            }
        }
    }
}

/// Of a proxy, what the slow side does not take pauses the fast side, and nothing else.
pub(crate) fn a_pair_pauses_the_other_side(driver: DriverChoice) {
    for then in ["apart", "aborted", "read"] {
        let mut rig = Rig::with(driver, config());
        let pattern = Pattern::new(4);
        let ((mut fast, one), (mut slow, other)) = (unix_pair(), unix_pair());
        fast.set_nonblocking(true).unwrap();
        let (one, other) = (rig.join(one), rig.join(other));
        rig.pair(one, other).unwrap();
        rig.receive(one, Repeat::UntilCancelled).unwrap();
        rig.receive(other, Repeat::UntilCancelled).unwrap();
        let (total, mut sent, mut passed) = (8 << 20, 0, 0);
        loop {
            let before = sent;
            sent = push(&mut fast, &pattern, sent, total);
            while let Some(done) = rig.dispatch(Duration::from_millis(20)).unwrap() {
                match done.event {
                    Event::Receive(Ok(lease)) => rig.write(other, lease).unwrap(),
                    event => passed += written(event).len(),
                }
            }
            if sent == before {
                break;
            }
        }
        assert!(sent < total, "the channel took {total} bytes for a peer that reads nothing");
        let queued = rig.queued_bytes(other).unwrap();
        assert!((PAUSE..PAUSE + 2 * BUFFERED).contains(&queued), "{queued} bytes wait");
        // The slow side's own input goes on.
        for round in 0..3 {
            slow.write_all(&[round; 40]).unwrap();
            assert_eq!(*received(rig.another(other)), [round; 40]);
        }
        match then {
            // Then the output of the fast side decides, and it has none.
            "apart" => rig.pair(one, one).unwrap(),
            "aborted" => assert!(matches!(rig.abort(other), Ok(Some(_)))),
            _ => {
                let reader = std::thread::spawn(move || {
                    let mut found = vec![0; sent];
                    slow.read_exact(&mut found).unwrap();
                    pattern.check(0, &found);
                });
                while passed < sent {
                    match rig.next().event {
                        Event::Receive(Ok(lease)) => rig.write(other, lease).unwrap(),
                        event => passed += written(event).len(),
                    }
                }
                reader.join().unwrap();
                continue;
            }
        }
        while rig.next().handle != one {}
    }
}
