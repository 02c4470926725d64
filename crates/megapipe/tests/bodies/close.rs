//! Tests closing and aborting: queued output is written first, or discarded; the close event is
//! last.

use crate::common::{
    self, Pattern, Rig, TIME_LIMIT, lasting_listener, received, tcp_pair, unix_pair, written,
};
use megapipe::{Accept, Buffer, Config, DriverChoice, Error, Event, Handle, Repeat};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// More bytes than the kernel takes for a peer that does not read.
const STUCK_BYTES: usize = 16 << 20;

/// Starts a thread that reads to the end as soon as it gets a message.
fn reader(mut stream: impl Read + Send + 'static) -> (mpsc::Sender<()>, JoinHandle<Vec<u8>>) {
    let (begin, told) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        told.recv().unwrap();
        let (mut found, mut step) = (Vec::new(), vec![0; 30_011]);
        loop {
            match stream.read(&mut step).unwrap() {
                0 => return found,
                bytes => found.extend_from_slice(&step[..bytes]),
            }
        }
    });
    (begin, thread)
}

/// Connections that are not registered end, or are reset; also when there is no room for a handle.
pub(crate) fn connections_are_refused(driver: DriverChoice) {
    let mut rig = Rig::with(driver, Config { max_handles: 1, ..Config::default() });
    let (listener, address) = common::listener();
    let listening = rig.join(listener);
    for accept in [Accept::lightweight(), Accept::descriptors()] {
        for resets in [true, false] {
            rig.accept(listening, accept.count(1)).unwrap();
            let mut client = common::client(address);
            let socket = common::accepted(rig.last(listening)).socket;
            if resets {
                rig.refuse(socket).unwrap();
            } else {
                drop(socket);
            }
            rig.flush().unwrap();
            match resets {
                true => common::expect_reset(&mut client),
                false => common::expect_end(&mut client),
            }
        }
    }
    if common::is_installed(driver) {
        // The second channel would use the kernel's driver, and have other addresses.
        return;
    }
    let mut other = Rig::other(driver);
    let (listener, address) = common::listener();
    let elsewhere = other.join(listener);
    other.accept(elsewhere, Accept::lightweight()).unwrap();
    let mut client = common::client(address);
    let socket = common::accepted(other.another(elsewhere)).socket;
    if socket.is_lightweight() && rig.refuse(socket).is_err() {
        other.flush().unwrap();
        common::expect_end(&mut client);
    }
}

/// Submits writes of every kind; returns the number of bytes.
fn write_all_kinds(rig: &mut Rig, handle: Handle, pattern: &Pattern, lease: Buffer) -> usize {
    let mut at = lease.len();
    rig.write(handle, lease).unwrap();
    for round in 1..40 {
        let bytes = round * 3_001;
        rig.write(handle, pattern.bytes(at, bytes)).unwrap();
        at += bytes;
        let shared: Arc<[u8]> = Arc::from(pattern.bytes(at, 100_000));
        rig.write(handle, shared).unwrap();
        at += 100_000;
        let parts = (0..50).map(|part| {
            let bytes = part * 17;
            at += bytes;
            Buffer::from(pattern.bytes(at - bytes, bytes))
        });
        let parts: Vec<Buffer> = parts.collect();
        rig.write_vectored(handle, parts).unwrap();
    }
    at
}

pub(crate) fn a_close_writes_all_that_is_queued(driver: DriverChoice) {
    for target in 0..4 {
        let mut rig = Rig::new(driver);
        let pattern = Pattern::new(target);
        let first = pattern.bytes(0, 100);
        // A lease, received on another connection.
        let (mut source, theirs) = unix_pair();
        let inlet = rig.join(theirs);
        source.write_all(&first).unwrap();
        rig.receive(inlet, Repeat::Once).unwrap();
        let lease = received(rig.last(inlet)).into();
        let ((begin, reader), handle) = match target {
            0 => {
                let (ours, handle) = rig.lightweight_pair();
                (reader(ours), handle)
            }
            1 => {
                let (ours, handle) = rig.tcp_pair();
                (reader(ours), handle)
            }
            2 => {
                let (ours, theirs) = unix_pair();
                (reader(ours), rig.join(theirs))
            }
            _ => {
                let (ours, theirs) = std::io::pipe().unwrap();
                (reader(ours), rig.join(OwnedFd::from(theirs)))
            }
        };
        let bytes = write_all_kinds(&mut rig, handle, &pattern, lease);
        if target < 3 {
            rig.receive(handle, Repeat::UntilCancelled).unwrap();
        }
        rig.flush().unwrap();
        assert_eq!(rig.close(handle).unwrap(), 0);
        assert!(matches!(rig.close(handle), Err(Error::UnknownHandle)));
        assert!(rig.cookie(handle).is_none());
        begin.send(()).unwrap();
        // The only event.
        assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
        assert_eq!(rig.outstanding(), 0);
        let found = reader.join().unwrap();
        assert_eq!(found.len(), bytes, "target {target}");
        pattern.check(0, &found);
    }
}

pub(crate) fn an_unregistered_lightweight_socket_writes_what_is_queued(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let pattern = Pattern::new(7);
    let (ours, handle) = rig.lightweight_pair();
    let (begin, reader) = reader(ours);
    let bytes = write_all_kinds(&mut rig, handle, &pattern, Buffer::from(pattern.bytes(0, 10)));
    rig.receive(handle, Repeat::UntilCancelled).unwrap();
    assert!(rig.unregister(handle).unwrap().descriptor.is_none());
    assert!(matches!(rig.abort(handle), Err(Error::UnknownHandle)));
    begin.send(()).unwrap();
    let until = Instant::now() + TIME_LIMIT;
    while !reader.is_finished() {
        let done = rig.dispatch(Duration::from_millis(1)).unwrap();
        assert!(done.is_none(), "{done:?} after the handle was unregistered");
        assert!(Instant::now() < until, "the peer does not see the end");
    }
    let found = reader.join().unwrap();
    assert_eq!(found.len(), bytes);
    pattern.check(0, &found);
    assert!(rig.drain().is_empty());
}

pub(crate) fn a_close_tells_the_error_of_a_queued_write(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    for read_first in [false, true] {
        let (mut ours, theirs) = unix_pair();
        let handle = rig.join(theirs);
        rig.write(handle, vec![1; STUCK_BYTES]).unwrap();
        rig.write(handle, b"behind it").unwrap();
        rig.flush().unwrap();
        rig.close(handle).unwrap();
        if read_first {
            ours.read_exact(&mut [0; 1000]).unwrap();
        }
        drop(ours);
        match rig.last(handle) {
            Event::Close(Err(error)) => {
                let errno = error.raw_os_error().unwrap();
                assert!([libc::EPIPE, libc::ECONNRESET].contains(&errno), "{error}");
            }
            other => panic!("the write has failed: {other:?}"),
        }
        assert_eq!(rig.outstanding(), 0);
    }
}

/// Returns the number of bytes before the peer's reset; panics at an end.
#[track_caller]
fn bytes_before_reset(mut ours: TcpStream) -> usize {
    let (mut total, mut step) = (0, vec![0; 65_536]);
    loop {
        match ours.read(&mut step) {
            Ok(0) => panic!("the peer saw an end after {total} bytes, not a reset"),
            Ok(bytes) => total += bytes,
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::ECONNRESET));
                return total;
            }
        }
    }
}

pub(crate) fn a_close_that_takes_too_long_aborts(driver: DriverChoice) {
    let config = Config { close_timeout: Duration::from_millis(50), ..Config::default() };
    let mut rig = Rig::with(driver, config);
    for kind in 0..2 {
        let (ours, handle) = if kind == 0 { rig.lightweight_pair() } else { rig.tcp_pair() };
        let shared: Arc<[u8]> = Arc::from(vec![3; STUCK_BYTES]);
        rig.write(handle, Arc::clone(&shared)).unwrap();
        rig.write(handle, Arc::clone(&shared)).unwrap();
        let start = Instant::now();
        rig.close(handle).unwrap();
        match rig.last(handle) {
            Event::Close(Err(error)) => assert_eq!(error.raw_os_error(), Some(libc::ETIMEDOUT)),
            other => panic!("the peer reads nothing: {other:?}"),
        }
        assert!(start.elapsed() >= Duration::from_millis(50));
        assert_eq!(Arc::strong_count(&shared), 1, "a buffer is kept");
        assert!(bytes_before_reset(ours) < STUCK_BYTES);
    }
}

pub(crate) fn an_abort_overtakes_a_stuck_write(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    for closing in [false, true] {
        for kind in 0..2 {
            let (ours, handle) = if kind == 0 { rig.lightweight_pair() } else { rig.tcp_pair() };
            let shared: Arc<[u8]> = Arc::from(vec![3; STUCK_BYTES]);
            for _ in 0..3 {
                rig.write(handle, Arc::clone(&shared)).unwrap();
            }
            rig.receive(handle, Repeat::UntilCancelled).unwrap();
            rig.flush().unwrap();
            if closing {
                assert_eq!(rig.close(handle).unwrap(), 0);
                assert!(rig.dispatch(Duration::from_millis(1)).unwrap().is_none());
                assert_eq!(rig.abort(handle).unwrap(), None);
            } else {
                assert_eq!(rig.abort(handle).unwrap(), Some(0));
            }
            assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
            assert_eq!(rig.outstanding(), 0);
            assert_eq!(Arc::strong_count(&shared), 1, "a buffer is kept");
            assert!(matches!(rig.abort(handle), Err(Error::UnknownHandle)));
            assert!(bytes_before_reset(ours) < STUCK_BYTES);
        }
    }
}

pub(crate) fn an_abort_resets_an_idle_connection(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (ours, handle) = rig.lightweight_pair();
    rig.write(handle, b"some").unwrap();
    written(rig.last(handle));
    rig.receive(handle, Repeat::UntilCancelled).unwrap();
    assert_eq!(rig.abort(handle).unwrap(), Some(0));
    assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
    assert!(bytes_before_reset(ours) <= 4);
    // Sources other than TCP connections end as by a close.
    let (mut ours, theirs) = unix_pair();
    let handle = rig.join(theirs);
    rig.write(handle, vec![1; STUCK_BYTES]).unwrap();
    rig.abort(handle).unwrap();
    assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
    let mut found = Vec::new();
    ours.read_to_end(&mut found).unwrap();
    assert!(found.len() < STUCK_BYTES);
}

/// At the close event, the memory of all requests is free, and no further event follows.
pub(crate) fn the_close_is_the_last_event(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    for abort in [false, true] {
        let (ours, theirs) = tcp_pair();
        let handle = rig.join(theirs);
        let shared: Arc<[u8]> = Arc::from(vec![3; 4 << 20]);
        let mut held: Vec<Arc<[u8]>> = Vec::new();
        for _ in 0..5 {
            rig.write(handle, Arc::clone(&shared)).unwrap();
            held.push(Arc::clone(&shared));
        }
        rig.read(handle, Vec::with_capacity(100)).unwrap();
        rig.receive(handle, Repeat::UntilCancelled).unwrap();
        rig.poll(handle, libc::POLLPRI as u32, Repeat::UntilCancelled).unwrap();
        rig.request_peer_address(handle).unwrap();
        let (begin, reader) = reader(Gentle(ours));
        begin.send(()).unwrap();
        if abort {
            rig.abort(handle).unwrap();
        } else {
            rig.close(handle).unwrap();
        }
        assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
        held.clear();
        assert_eq!(Arc::strong_count(&shared), 1, "a request is not done");
        assert_eq!(rig.outstanding(), 0);
        assert!(rig.dispatch(Duration::ZERO).unwrap().is_none());
        let found = reader.join().unwrap().len();
        assert!(if abort { found < 20 << 20 } else { found == 20 << 20 }, "{found} bytes");
    }
}

/// If the channel has returned a duplicate descriptor, the input also belongs to that descriptor.
pub(crate) fn a_second_descriptor_keeps_its_input(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (mut ours, handle) = rig.lightweight_pair();
    let mut second = TcpStream::from(rig.descriptor(handle).unwrap());
    second.set_nonblocking(false).unwrap();
    rig.write(handle, vec![1; STUCK_BYTES]).unwrap();
    rig.close(handle).unwrap();
    ours.write_all(b"kept").unwrap();
    assert!(rig.dispatch(Duration::from_millis(50)).unwrap().is_none());
    let mut found = [0; 4];
    second.read_exact(&mut found).unwrap();
    assert_eq!(&found, b"kept");
    // After all is written, the direction stays open, too.
    let reader = std::thread::spawn(move || {
        ours.read_exact(&mut vec![0; STUCK_BYTES]).unwrap();
        let mut last = [0; 4];
        ours.read_exact(&mut last).unwrap();
        last
    });
    assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
    second.write_all(b"last").unwrap();
    assert_eq!(&reader.join().unwrap(), b"last");
}

/// The peer sees the end even if the program does something else after the flush, whatever requests
/// were pending.
pub(crate) fn a_flush_is_enough_for_the_end(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    for pending in 0..4 {
        for how in 0..3 {
            for kind in 0..2 {
                let (ours, handle) =
                    if kind == 0 { rig.lightweight_pair() } else { rig.tcp_pair() };
                ours.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                match pending {
                    0 => rig.receive(handle, Repeat::UntilCancelled).unwrap(),
                    1 => rig.read(handle, Vec::with_capacity(1)).unwrap(),
                    2 => rig.peek(handle, Vec::with_capacity(1)).unwrap(),
                    _ => rig.poll(handle, libc::POLLPRI as u32, Repeat::UntilCancelled).unwrap(),
                }
                rig.flush().unwrap();
                match how {
                    0 => assert_eq!(rig.close(handle).unwrap(), 0),
                    1 => assert_eq!(rig.abort(handle).unwrap(), Some(0)),
                    _ => drop(rig.unregister(handle).unwrap()),
                }
                rig.flush().unwrap();
                let left = (&ours).read(&mut [0; 1]).or_else(|error| match error.kind() {
                    std::io::ErrorKind::ConnectionReset => Ok(0),
                    _ => Err(error),
                });
                assert_eq!(left.unwrap(), 0, "pending {pending}, how {how}, kind {kind}");
                rig.drain();
            }
        }
    }
}

/// The same holds for the clients of an accepting listener, and for the writer of a pipe.
pub(crate) fn a_flush_is_enough_for_listeners_and_pipes(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    for how in 0..3 {
        let (listener, address, _kept) = lasting_listener();
        let (reader, mut writer) = std::io::pipe().unwrap();
        let (listening, inlet) = (rig.join(listener), rig.join(OwnedFd::from(reader)));
        rig.accept(listening, Accept::lightweight()).unwrap();
        rig.receive(inlet, Repeat::UntilCancelled).unwrap();
        rig.flush().unwrap();
        for handle in [listening, inlet] {
            match how {
                0 => assert_eq!(rig.close(handle).unwrap(), 0),
                1 => assert_eq!(rig.abort(handle).unwrap(), Some(0)),
                _ => drop(rig.unregister(handle).unwrap()),
            }
        }
        rig.flush().unwrap();
        let refused = TcpStream::connect(address).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ECONNREFUSED), "how {how}");
        let broken = writer.write(b"x").unwrap_err();
        assert_eq!(broken.raw_os_error(), Some(libc::EPIPE), "how {how}");
        rig.drain();
    }
}

/// A stream that reports a reset as an end.
struct Gentle(TcpStream);

impl Read for Gentle {
    fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
        match self.0.read(room) {
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => Ok(0),
            result => result,
        }
    }
}

/// The peers of connections with queued output see a reset, the others an end.
pub(crate) fn a_dropped_channel_resets_what_it_has_not_written(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let mut pairs = Vec::new();
    for number in 0..8 {
        let pair = if number < 4 { rig.lightweight_pair() } else { rig.tcp_pair() };
        pairs.push((number, pair));
    }
    for (number, (_, handle)) in &pairs {
        let bytes = if number % 2 == 0 { STUCK_BYTES } else { 100 };
        rig.write(*handle, vec![1; bytes]).unwrap();
        rig.write(*handle, b"end").unwrap();
        if number % 4 >= 2 {
            rig.close(*handle).unwrap();
        }
    }
    drop(rig);
    for (number, (mut peer, _)) in pairs {
        let mut found = Vec::new();
        let end = peer.read_to_end(&mut found).map_err(|error| error.kind());
        if number % 2 == 0 {
            assert_eq!(end, Err(std::io::ErrorKind::ConnectionReset), "connection {number}");
            assert!(found.len() < STUCK_BYTES, "connection {number}");
        } else {
            assert_eq!(end.map(|_| found.len()), Ok(103), "connection {number}");
        }
    }
}
