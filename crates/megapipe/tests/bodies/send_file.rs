//! Tests files that are sent over connections.

use crate::common::{Rig, outcome, set_time_limit, unix_pair};
use megapipe::{DriverChoice, Error, Event, Handle};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

/// More bytes than a chunk, and not a multiple of it.
const LONG: usize = (1 << 20) + 4711;

type Connect = fn(&mut Rig) -> (TcpStream, Handle);

/// Connections to send over: a blocking socket, and a lightweight one, to which the kernel sends
/// directly from the file.
const PAIRS: [Connect; 2] = [Rig::tcp_pair, Rig::lightweight_pair];

/// Returns each way to end a connection, over each kind.
fn with_and_without_close() -> impl Iterator<Item = (bool, Connect)> {
    [false, true].into_iter().flat_map(|is_closing| PAIRS.map(|pair| (is_closing, pair)))
}

/// Registers a file with that many bytes of a pattern.
fn file(rig: &mut Rig, bytes: usize) -> Handle {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&contents(bytes)).unwrap();
    rig.join(file)
}

fn contents(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at % 251) as u8).collect()
}

/// Reads to the end in a thread of its own.
fn reader(mut peer: impl Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut found = Vec::new();
        peer.read_to_end(&mut found).unwrap();
        found
    })
}

/// The file arrives complete, in order among the writes, from any offset, over every kind of
/// stream.
pub(crate) fn a_file_is_sent_among_writes(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let source = file(&mut rig, LONG);
    let (tcp, regular) = rig.tcp_pair();
    let (other, light) = rig.lightweight_pair();
    let (unix, ours) = unix_pair();
    let unix = (reader(unix), rig.join(ours));
    let mut expected = b"head ".to_vec();
    expected.extend_from_slice(&contents(LONG));
    expected.extend_from_slice(b" tail ");
    expected.extend_from_slice(&contents(LONG)[1000..1007]);
    for (reader, handle) in [(reader(tcp), regular), (reader(other), light), unix] {
        rig.write(handle, b"head ").unwrap();
        rig.send_file(handle, source, 0, LONG).unwrap();
        rig.write(handle, b" tail ").unwrap();
        rig.send_file(handle, source, 1000, 7).unwrap();
        rig.send_file(handle, source, 7, 0).unwrap();
        assert_eq!(rig.queued_bytes(handle).unwrap(), 5 + LONG + 6 + 7);
        assert_eq!(outcome(&rig.last(handle)), Ok(5));
        assert!(matches!(rig.last(handle), Event::SendFile(Ok(LONG))));
        assert_eq!(outcome(&rig.last(handle)), Ok(6));
        assert!(matches!(rig.last(handle), Event::SendFile(Ok(7))));
        assert!(matches!(rig.last(handle), Event::SendFile(Ok(0))));
        rig.close(handle).unwrap();
        assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
        assert!(reader.join().unwrap() == expected, "not what was sent");
    }
}

pub(crate) fn a_close_sends_the_rest_of_the_file(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let source = file(&mut rig, LONG);
    for pair in PAIRS {
        let (peer, handle) = pair(&mut rig);
        let reader = reader(peer);
        rig.send_file(handle, source, 0, LONG).unwrap();
        rig.close(handle).unwrap();
        assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
        assert!(reader.join().unwrap() == contents(LONG), "not what was sent");
    }
}

/// A file that becomes shorter while it is sent is an error, behind the bytes that it had.
pub(crate) fn a_file_that_shrinks_is_an_error(driver: DriverChoice) {
    const SIZE: usize = 1 << 24;
    for pair in PAIRS {
        let mut rig = Rig::new(driver);
        let mut disk = tempfile::tempfile().unwrap();
        disk.write_all(&contents(SIZE)).unwrap();
        let source = rig.join(disk.try_clone().unwrap());
        let (peer, handle) = pair(&mut rig);
        rig.send_file(handle, source, 0, SIZE).unwrap();
        while rig.queued_bytes(handle).unwrap() == SIZE {
            assert!(rig.dispatch(Duration::from_millis(1)).unwrap().is_none());
        }
        disk.set_len(1000).unwrap();
        let reader = std::thread::spawn(move || before_reset(&mut { peer }));
        let done = rig.next();
        assert_eq!((done.handle, outcome(&done.event)), (handle, Err(libc::ENODATA)));
        assert!(done.written > 0 && done.written < SIZE, "{} bytes", done.written);
        rig.close(handle).unwrap();
        assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
        let found = reader.join().unwrap();
        assert!(contents(SIZE).starts_with(&found[..found.len().min(1000)]));
        assert!(found.len() <= done.written, "{} of {}", found.len(), done.written);
    }
}

/// The bytes that the file has are sent, with an error; also if the handle is being closed.
pub(crate) fn a_file_that_is_too_short_is_an_error(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let source = file(&mut rig, 100);
    for (is_closing, pair) in with_and_without_close() {
        let (mut peer, handle) = pair(&mut rig);
        set_time_limit(&peer);
        rig.send_file(handle, source, 40, 61).unwrap();
        if is_closing {
            rig.close(handle).unwrap();
        }
        assert_eq!(outcome(&rig.last(handle)), Err(libc::ENODATA));
        if !is_closing {
            rig.close(handle).unwrap();
            assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
        }
        assert!(contents(100)[40..].starts_with(&before_reset(&mut peer)));
    }
}

/// The kernel holds nothing of a short file back for the rest, of whole chunks, either.
pub(crate) fn a_short_file_leaves_at_once(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    for bytes in [1000, 128 << 10] {
        let source = file(&mut rig, bytes);
        let (mut peer, regular) = rig.tcp_pair();
        rig.send_file(regular, source, 0, bytes + 1).unwrap();
        assert_eq!(outcome(&rig.last(regular)), Err(libc::ENODATA));
        let mut found = vec![0; bytes];
        peer.read_exact(&mut found).unwrap();
        let (_peer, light) = rig.lightweight_pair();
        rig.send_file(light, source, bytes as u64 - 100, 101).unwrap();
        assert_eq!(outcome(&rig.last(light)), Err(libc::ENODATA));
        for handle in [regular, light] {
            // User-level TCP has no descriptor, and no MSG_MORE.
            let Ok(descriptor) = rig.descriptor(handle) else { continue };
            assert_eq!(unsent_bytes(&descriptor), 0, "of {bytes}");
        }
    }
}

/// Returns the number of bytes that a TCP socket has not sent, see `SIOCOUTQNSD` of tcp(7).
fn unsent_bytes(descriptor: &OwnedFd) -> i32 {
    const SIOCOUTQNSD: libc::Ioctl = 0x894B;
    let mut bytes = -1;
    // SAFETY: the kernel writes one int, for which `bytes` has room.
    unsafe { libc::ioctl(descriptor.as_raw_fd(), SIOCOUTQNSD, &raw mut bytes) };
    bytes
}

/// Returns what arrives before the peer's reset.
#[track_caller]
fn before_reset(peer: &mut impl Read) -> Vec<u8> {
    let mut found = Vec::new();
    let end = peer.read_to_end(&mut found).map_err(|error| error.kind());
    assert_eq!(end, Err(std::io::ErrorKind::ConnectionReset), "{} bytes", found.len());
    found
}

/// The peer would take what comes behind the part for the rest of it.
pub(crate) fn nothing_is_sent_behind_a_part(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let source = file(&mut rig, 5);
    for (is_closing, pair) in with_and_without_close() {
        let (mut peer, handle) = pair(&mut rig);
        rig.write(handle, b"head ").unwrap();
        rig.send_file(handle, source, 0, 500).unwrap();
        rig.write(handle, b"next").unwrap();
        rig.write(handle, b"next").unwrap();
        if is_closing {
            rig.close(handle).unwrap();
            assert_eq!(outcome(&rig.last(handle)), Err(libc::ENODATA));
        } else {
            assert_eq!(outcome(&rig.last(handle)), Ok(5));
            assert_eq!(outcome(&rig.last(handle)), Err(libc::ENODATA));
            assert_eq!(outcome(&rig.last(handle)), Err(libc::ECANCELED));
            assert_eq!(outcome(&rig.last(handle)), Err(libc::ECANCELED));
            rig.close(handle).unwrap();
            assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
        }
        // The reset may overtake the last bytes, which the kernel still joins with others.
        let expected = [b"head ", &contents(5)[..]].concat();
        assert!(expected.starts_with(&before_reset(&mut peer)));
    }
    assert_eq!(rig.outstanding(), 0);
}

pub(crate) fn the_file_must_stay_registered(driver: DriverChoice) {
    PAIRS.iter().for_each(|pair| expect_end_of_file_s_handle(driver, *pair));
}

fn expect_end_of_file_s_handle(driver: DriverChoice, pair: Connect) {
    let mut rig = Rig::new(driver);
    let source = file(&mut rig, 1 << 24);
    let (peer, handle) = pair(&mut rig);
    // The peer reads nothing, so the socket is full before the file is read.
    rig.send_file(handle, source, 0, 1 << 24).unwrap();
    rig.send_file(handle, source, 0, 1).unwrap();
    rig.flush().unwrap();
    drop(rig.unregister(source).unwrap());
    let reader = std::thread::spawn(move || before_reset(&mut { peer }));
    assert_eq!(outcome(&rig.last(handle)), Err(libc::EBADF));
    assert_eq!(outcome(&rig.last(handle)), Err(libc::ECANCELED));
    let refused = rig.send_file(handle, source, 0, 1).unwrap_err();
    assert!(matches!(refused, Error::UnknownHandle), "{refused}");
    rig.close(handle).unwrap();
    assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
    let found = reader.join().unwrap();
    assert!(contents(1 << 24).starts_with(&found), "not the beginning of the file");
}

/// A peer that reads nothing blocks the request; the cancelled request reports the bytes sent.
pub(crate) fn a_sent_file_can_be_cancelled(driver: DriverChoice) {
    PAIRS.iter().for_each(|pair| cancel_a_sent_file(driver, *pair));
}

fn cancel_a_sent_file(driver: DriverChoice, pair: Connect) {
    const SIZE: usize = 1 << 24;
    let mut rig = Rig::new(driver);
    let source = file(&mut rig, SIZE);
    let (peer, handle) = pair(&mut rig);
    rig.send_file(handle, source, 0, SIZE).unwrap();
    rig.send_file(handle, source, 0, 5).unwrap();
    while rig.queued_bytes(handle).unwrap() == SIZE + 5 {
        assert!(rig.dispatch(Duration::from_millis(1)).unwrap().is_none());
    }
    rig.cancel(handle).unwrap();
    let mut sent = None;
    for _ in 0..2 {
        match rig.last(handle) {
            Event::SendFile(Ok(bytes)) => sent = Some(bytes),
            other => assert_eq!(outcome(&other), Err(libc::ECANCELED)),
        }
    }
    let sent = sent.expect("a part was sent");
    assert!(sent > 0 && sent < SIZE);
    // What goes on behind the bytes that were told completes the file.
    let reader = reader(peer);
    rig.send_file(handle, source, sent as u64, SIZE - sent).unwrap();
    rig.close(handle).unwrap();
    assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
    assert!(reader.join().unwrap() == contents(SIZE), "not what was told");
}

pub(crate) fn an_abort_and_a_drop_end_sent_files(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let source = file(&mut rig, 1 << 24);
    let pairs = PAIRS.map(|pair| [pair(&mut rig), pair(&mut rig)]);
    let unregistered = rig.tcp_pair();
    for (_, handle) in pairs.iter().flatten().chain([&unregistered]) {
        rig.send_file(*handle, source, 0, 1 << 24).unwrap();
    }
    for [(_, aborted), _] in &pairs {
        rig.abort(*aborted).unwrap();
        assert!(matches!(rig.last(*aborted), Event::Close(Ok(()))));
    }
    drop(rig.unregister(unregistered.1).unwrap());
    drop(rig);
    for (mut peer, _) in pairs.into_iter().flatten() {
        let mut found = Vec::new();
        let _ = peer.read_to_end(&mut found);
        assert!(found.len() < 1 << 24);
        assert!(contents(1 << 24).starts_with(&found), "not the beginning of the file");
    }
}

pub(crate) fn only_disk_files_go_over_streams(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let source = file(&mut rig, 10);
    let (_peer, handle) = rig.tcp_pair();
    let wrong = rig.send_file(handle, handle, 0, 1).unwrap_err();
    assert!(matches!(wrong, Error::WrongKind { .. }), "{wrong}");
    let wrong = rig.send_file(source, source, 0, 1).unwrap_err();
    assert!(matches!(wrong, Error::WrongKind { .. }), "{wrong}");
    let wrong = rig.send_file(handle, source, i64::MAX as u64, 1).unwrap_err();
    assert!(matches!(wrong, Error::Invalid(_)), "{wrong}");
    assert_eq!(rig.outstanding(), 0);
}
