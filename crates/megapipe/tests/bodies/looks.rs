//! Test bodies for peeking, and for writing with MSG_MORE.

use crate::common::{Rig, TIME_LIMIT, outcome, read_of, set_time_limit, udp, unix_pair, written};
use megapipe::{DriverChoice, Error, Event, Handle, Repeat};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

#[track_caller]
fn peeked(event: Event) -> Vec<u8> {
    match event {
        Event::Peek(Ok(_), bytes) => bytes,
        other => panic!("expected a successful peek: {other:?}"),
    }
}

pub(crate) fn a_peek_leaves_the_bytes(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (ours, handle) = rig.tcp_pair();
    let light = rig.lightweight_pair();
    let unix = unix_pair();
    let unix = (unix.0, rig.join(unix.1));
    look(&mut rig, ours, handle, |stream| stream.shutdown(Shutdown::Write).unwrap());
    look(&mut rig, light.0, light.1, |stream| stream.shutdown(Shutdown::Write).unwrap());
    look(&mut rig, unix.0, unix.1, |stream| stream.shutdown(Shutdown::Write).unwrap());
}

fn look<S: Write>(rig: &mut Rig, mut peer: S, handle: Handle, end: impl FnOnce(&S)) {
    rig.peek(handle, Vec::with_capacity(4)).unwrap();
    assert!(rig.dispatch(Duration::ZERO).unwrap().is_none(), "there is nothing to look at");
    peer.write_all(b"what waits").unwrap();
    assert_eq!(peeked(rig.last(handle)), b"what");
    let mut begun = Vec::with_capacity(32);
    begun.extend_from_slice(b"seen: ");
    rig.peek(handle, begun).unwrap();
    assert_eq!(peeked(rig.last(handle)), b"seen: what waits");
    // In the order of submission among reads and receives.
    rig.read(handle, Vec::with_capacity(5)).unwrap();
    rig.peek(handle, Vec::with_capacity(9)).unwrap();
    rig.receive(handle, Repeat::Once).unwrap();
    rig.peek(handle, Vec::with_capacity(9)).unwrap();
    assert_eq!(read_of(rig.last(handle)), b"what ");
    assert_eq!(peeked(rig.last(handle)), b"waits");
    assert_eq!(outcome(&rig.last(handle)), Ok(5));
    // A peek sees the end, and a read then finds it.
    end(&peer);
    assert!(peeked(rig.last(handle)).is_empty());
    rig.read(handle, Vec::with_capacity(1)).unwrap();
    assert!(read_of(rig.last(handle)).is_empty());
}

pub(crate) fn a_peek_at_messages(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (receiver, to) = udp("127.0.0.1");
    let sender = udp("127.0.0.1").0;
    let handle = rig.join(receiver);
    sender.send_to(b"a datagram", to).unwrap();
    sender.send_to(b"", to).unwrap();
    rig.peek(handle, Vec::with_capacity(64)).unwrap();
    assert_eq!(peeked(rig.last(handle)), b"a datagram");
    rig.peek(handle, Vec::with_capacity(3)).unwrap();
    match rig.last(handle) {
        Event::Peek(Err(error), beginning) => {
            assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
            assert_eq!(beginning, b"a d");
        }
        other => panic!("a datagram does not fit: {other:?}"),
    }
    rig.read(handle, Vec::with_capacity(64)).unwrap();
    assert_eq!(read_of(rig.last(handle)), b"a datagram");
    rig.peek(handle, Vec::with_capacity(64)).unwrap();
    assert!(peeked(rig.last(handle)).is_empty(), "an empty datagram");
}

pub(crate) fn a_peek_can_be_cancelled_and_refused(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (_ours, handle) = rig.tcp_pair();
    rig.peek(handle, Vec::with_capacity(4)).unwrap();
    rig.flush().unwrap();
    rig.cancel(handle).unwrap();
    match rig.last(handle) {
        Event::Peek(Err(error), buffer) => {
            assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
            assert!(buffer.is_empty() && buffer.capacity() >= 4);
        }
        other => panic!("a cancelled peek: {other:?}"),
    }
    let refused = rig.peek(handle, Vec::new()).unwrap_err();
    assert!(matches!(refused.error, Error::Invalid(_)), "{refused}");
    let pipe = rig.join(OwnedFd::from(std::io::pipe().unwrap().0));
    let refused = rig.peek(pipe, Vec::with_capacity(4)).unwrap_err();
    assert!(matches!(refused.error, Error::WrongKind { .. }), "{refused}");
}

pub(crate) fn a_peek_tells_of_a_reset(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (ours, handle) = rig.tcp_pair();
    let ours = rig.join(ours);
    rig.peek(handle, Vec::with_capacity(4)).unwrap();
    rig.read(handle, Vec::with_capacity(4)).unwrap();
    rig.flush().unwrap();
    rig.abort(ours).unwrap();
    let mut resets = 0;
    while resets < 2 {
        let done = rig.next();
        if done.handle == handle {
            assert_eq!(outcome(&done.event), Err(libc::ECONNRESET));
            resets += 1;
        }
    }
}

/// Returns the number of bytes that TCP has taken and not sent.
fn unsent(socket: &OwnedFd) -> libc::c_int {
    /// `SIOCOUTQNSD` of `linux/sockios.h`.
    const UNSENT: libc::c_ulong = 0x894b;
    let mut bytes: libc::c_int = -1;
    // SAFETY: the request stores an `int`, which `bytes` is.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), UNSENT as _, &raw mut bytes) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    bytes
}

/// TCP holds back a segment that another write follows, for 200 ms at most. On a busy machine it
/// may be sent before the test looks, which then tries again.
pub(crate) fn what_follows_is_sent_with_what_was_written(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let tcp = rig.tcp_pair();
    let light = rig.lightweight_pair();
    for (mut ours, handle) in [tcp, light] {
        set_time_limit(&ours);
        rig.set_nodelay(handle, true).unwrap();
        let socket = rig.descriptor(handle).unwrap();
        let until = Instant::now() + TIME_LIMIT;
        let mut held = false;
        while !held {
            assert!(Instant::now() < until, "the header was never held back");
            rig.write_more(handle, b"header ").unwrap();
            assert_eq!(&*written(rig.last(handle)), b"header ");
            held = unsent(&socket) == 7;
            rig.write(handle, b"body").unwrap();
            assert_eq!(&*written(rig.last(handle)), b"body");
            let mut found = [0; 11];
            ours.read_exact(&mut found).unwrap();
            assert_eq!(&found, b"header body");
        }
        rig.write_more(handle, b"end").unwrap();
        rig.disconnect(handle, Shutdown::Write).unwrap();
        assert_eq!(&*written(rig.last(handle)), b"end");
        assert_eq!(outcome(&rig.last(handle)), Ok(0));
        let mut rest = Vec::new();
        ours.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"end");
    }
}

/// More bytes than the socket has room for, in several parts, while the peer reads.
pub(crate) fn a_long_write_that_is_followed_is_written_whole(driver: DriverChoice) {
    const PART: usize = 3 << 20;
    let mut rig = Rig::new(driver);
    let (mut ours, handle) = rig.tcp_pair();
    let reader = std::thread::spawn(move || {
        let mut found = Vec::new();
        ours.read_to_end(&mut found).map(|_| found)
    });
    rig.write_more(handle, vec![1; PART]).unwrap();
    rig.write_more(handle, vec![2; PART]).unwrap();
    rig.close(handle).unwrap();
    assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
    let found = reader.join().unwrap().unwrap();
    assert_eq!(found.len(), 2 * PART);
    assert!(found[..PART].iter().all(|byte| *byte == 1));
    assert!(found[PART..].iter().all(|byte| *byte == 2));
}

pub(crate) fn where_nothing_is_joined_it_is_a_plain_write(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (receiver, to) = udp("127.0.0.1");
    receiver.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    let sender = udp("127.0.0.1").0;
    sender.connect(to).unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    let (mut unix, theirs) = unix_pair();
    let file = tempfile::tempfile().unwrap();
    let handles = [rig.join(sender), rig.join(OwnedFd::from(writer)), rig.join(theirs)];
    let disk = rig.join(file);
    for handle in handles.into_iter().chain([disk]) {
        for part in [b"one", b"two"] {
            rig.write_more(handle, part).unwrap();
            assert_eq!(&*written(rig.last(handle)), part);
        }
    }
    let mut found = [0; 6];
    for datagram in [b"one", b"two"] {
        assert_eq!(receiver.recv(&mut found).unwrap(), 3);
        assert_eq!(&found[..3], datagram);
    }
    let mut reader = reader;
    reader.read_exact(&mut found).unwrap();
    assert_eq!(&found, b"onetwo");
    unix.read_exact(&mut found).unwrap();
    assert_eq!(&found, b"onetwo");
    rig.read_at(disk, Vec::with_capacity(6), 0).unwrap();
    assert!(matches!(rig.last(disk), Event::ReadAt(Ok(6), bytes, 0) if bytes == b"onetwo"));
}
