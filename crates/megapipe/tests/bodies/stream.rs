//! Tests streams: TCP, UNIX sockets, pipes, FIFOs and terminals.

use crate::common;
use crate::common::{Pattern, Rig, inet, outcome, read_of, received, unix_pair, written};
use megapipe::{Buffer, DriverChoice, Event, Handle, Kind, Lease, Repeat};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

pub(crate) fn read_appends_what_is_there(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (mut ours, handle) = rig.tcp_pair();
    ours.write_all(b"hello").unwrap();
    let mut buffer = Vec::with_capacity(64);
    buffer.extend_from_slice(b"say ");
    let address = buffer.as_ptr();
    rig.read(handle, buffer).unwrap();
    match rig.last(handle) {
        Event::Read(Ok(5), bytes) => {
            assert_eq!(bytes, b"say hello");
            assert_eq!(bytes.as_ptr(), address, "the buffer has been copied");
        }
        other => panic!("unexpected {other:?}"),
    }
}

pub(crate) fn read_to_the_end(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let pattern = Pattern::new(1);
    let (mut ours, theirs) = unix_pair();
    let handle = rig.join(theirs);
    ours.write_all(&pattern.bytes(0, 10_000)).unwrap();
    drop(ours);
    let mut total = 0;
    loop {
        rig.read(handle, Vec::with_capacity(1000)).unwrap();
        let bytes = read_of(rig.last(handle));
        if bytes.is_empty() {
            break;
        }
        pattern.check(total, &bytes);
        total += bytes.len();
    }
    assert_eq!(total, 10_000);
    // The next read finds the end again.
    rig.read(handle, Vec::with_capacity(1)).unwrap();
    assert_eq!(outcome(&rig.last(handle)), Ok(0));
}

pub(crate) fn read_is_bounded_by_the_room(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (mut ours, handle) = rig.tcp_pair();
    ours.write_all(b"abcdef").unwrap();
    for expected in [&b"ab"[..], b"cd", b"ef"] {
        let buffer = Vec::with_capacity(2);
        let room = buffer.capacity();
        assert_eq!(room, 2);
        rig.read(handle, buffer).unwrap();
        assert_eq!(read_of(rig.last(handle)), expected);
    }
}

pub(crate) fn reads_and_writes_go_on_side_by_side(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (mut ours, handle) = rig.tcp_pair();
    rig.read(handle, Vec::with_capacity(16)).unwrap();
    rig.write(handle, b"question").unwrap();
    assert_eq!(&*written(rig.last(handle)), b"question");
    let mut question = [0; 8];
    ours.read_exact(&mut question).unwrap();
    assert_eq!(&question, b"question");
    ours.write_all(b"answer").unwrap();
    assert_eq!(read_of(rig.last(handle)), b"answer");
}

pub(crate) fn vectored_reads_and_writes(driver: DriverChoice) {
    let pattern = Pattern::new(2);
    for local in [false, true] {
        let mut rig = Rig::new(driver);
        let (mut ours, handle) = stream_pair(&mut rig, local);
        let sizes = [100, 0, 1, 5000, 33];
        let mut at = 0;
        let buffers = sizes.map(|bytes| {
            at += bytes;
            Buffer::from(pattern.bytes(at - bytes, bytes))
        });
        rig.write_vectored(handle, buffers.into()).unwrap();
        match rig.last(handle) {
            Event::WriteVectored(Ok(bytes), buffers) => {
                assert_eq!(bytes, at);
                assert_eq!(buffers.iter().map(|buffer| buffer.len()).collect::<Vec<_>>(), sizes);
            }
            other => panic!("unexpected {other:?}"),
        }
        let mut found = vec![0; at];
        ours.read_exact(&mut found).unwrap();
        pattern.check(0, &found);
    }
}

pub(crate) fn vectored_reads_fill_one_after_the_other(driver: DriverChoice) {
    let pattern = Pattern::new(3);
    let message = pattern.bytes(0, 50);
    for source in 0..3 {
        let mut rig = Rig::new(driver);
        let (mut ours, handle) = match source {
            0 | 1 => stream_pair(&mut rig, source == 1),
            _ => {
                let (writer, reader) = pipe();
                (writer, rig.join(reader))
            }
        };
        ours.write_all(&message).unwrap();
        common::await_delivery();
        let mut first = Vec::with_capacity(12);
        first.extend_from_slice(b"ab");
        let room = first.capacity() - 2;
        rig.read_vectored(handle, vec![first, Vec::with_capacity(30), Vec::with_capacity(100)])
            .unwrap();
        let Event::ReadVectored(Ok(50), buffers) = rig.last(handle) else {
            panic!("expected 50 bytes")
        };
        assert_eq!(&buffers[0][..2], b"ab");
        pattern.check(0, &buffers[0][2..]);
        pattern.check(room, &buffers[1]);
        pattern.check(room + buffers[1].len(), &buffers[2]);
        assert_eq!([buffers[0].len(), buffers[1].len()], [12, 30]);
        assert_eq!(buffers[2].len(), 10);
    }
}

pub(crate) fn every_kind_of_buffer_is_written_in_order(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (mut ours, handle) = rig.tcp_pair();
    ours.write_all(b"6 lease ").unwrap();
    rig.receive(handle, Repeat::Once).unwrap();
    let lease = received(rig.last(handle));
    let shared: Arc<[u8]> = Arc::from(&b"4 shared "[..]);
    rig.write(handle, b"1 vector ".to_vec()).unwrap();
    rig.write(handle, b"2 array ").unwrap();
    rig.write(handle, "3 text ").unwrap();
    rig.write(handle, Arc::clone(&shared)).unwrap();
    rig.write(handle, b"5 box ".to_vec().into_boxed_slice()).unwrap();
    rig.write(handle, lease).unwrap();
    let expected = b"1 vector 2 array 3 text 4 shared 5 box 6 lease ";
    let mut back = Vec::new();
    for _ in 0..6 {
        back.push(written(rig.last(handle)));
    }
    assert!(matches!(&back[..3], [Buffer::Owned(_), Buffer::Static(_), Buffer::Static(_)]));
    assert!(matches!(&back[3..], [Buffer::Shared(_), Buffer::Owned(_), Buffer::Lease(_)]));
    assert_eq!(back.iter().flat_map(|buffer| buffer.to_vec()).collect::<Vec<_>>(), expected);
    drop(back);
    assert_eq!(Arc::strong_count(&shared), 1);
    let mut found = vec![0; expected.len()];
    ours.read_exact(&mut found).unwrap();
    assert_eq!(found, expected);
}

pub(crate) fn an_empty_write_completes(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (mut ours, handle) = rig.tcp_pair();
    rig.write(handle, Vec::new()).unwrap();
    rig.write_vectored(handle, vec![Vec::new().into(), b"".into()]).unwrap();
    rig.write(handle, b"x").unwrap();
    assert!(matches!(rig.last(handle), Event::Write(Ok(0), _)));
    assert!(matches!(rig.last(handle), Event::WriteVectored(Ok(0), _)));
    assert!(matches!(rig.last(handle), Event::Write(Ok(1), _)));
    let mut byte = [0];
    ours.read_exact(&mut byte).unwrap();
    assert_eq!(&byte, b"x");
}

pub(crate) fn receive_once_and_again(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (mut ours, handle) = rig.tcp_pair();
    for message in [&b"one"[..], b"two", b"three"] {
        rig.receive(handle, Repeat::Once).unwrap();
        ours.write_all(message).unwrap();
        assert_eq!(&*received(rig.last(handle)), message);
        assert_eq!(rig.outstanding(), 0);
    }
    rig.receive(handle, Repeat::Once).unwrap();
    drop(ours);
    assert!(received(rig.last(handle)).is_empty());
}

pub(crate) fn receive_until_the_end(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    for local in [false, true] {
        let (mut ours, handle) = stream_pair(&mut rig, local);
        rig.receive(handle, Repeat::UntilCancelled).unwrap();
        for message in [&b"one"[..], b"two", b"three"] {
            ours.write_all(message).unwrap();
            assert_eq!(&*received(rig.another(handle)), message);
        }
        drop(ours);
        assert!(received(rig.last(handle)).is_empty());
        assert_eq!(rig.outstanding(), 0);
    }
}

/// Connects over a UNIX socket or TCP: returns the test's side and the channel's.
fn stream_pair(rig: &mut Rig, local: bool) -> (File, Handle) {
    if local {
        let (ours, theirs) = unix_pair();
        return (OwnedFd::from(ours).into(), rig.join(theirs));
    }
    let (ours, handle) = rig.tcp_pair();
    (OwnedFd::from(ours).into(), handle)
}

pub(crate) fn an_echo_sends_from_leases(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let pattern = Pattern::new(4);
    let (mut ours, handle) = rig.tcp_pair();
    rig.receive(handle, Repeat::UntilCancelled).unwrap();
    let mut at = 0;
    for round in 0..200 {
        let bytes = 1 + round * 37 % 4000;
        ours.write_all(&pattern.bytes(at, bytes)).unwrap();
        let mut echoed = 0;
        while echoed < bytes {
            let done = rig.next();
            match done.event {
                Event::Receive(Ok(lease)) => rig.write(handle, lease).unwrap(),
                event => echoed += written(event).len(),
            }
        }
        let mut found = vec![0; bytes];
        ours.read_exact(&mut found).unwrap();
        pattern.check(at, &found);
        at += bytes;
    }
}

pub(crate) fn a_lease_is_written_in_part(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (mut ours, handle) = rig.tcp_pair();
    ours.write_all(b"header body trailer").unwrap();
    rig.receive(handle, Repeat::Once).unwrap();
    let mut lease: Lease = received(rig.last(handle));
    lease.advance(7);
    lease.truncate(4);
    lease.make_ascii_uppercase();
    rig.write(handle, lease).unwrap();
    assert_eq!(&*written(rig.last(handle)), b"BODY");
    let mut found = [0; 4];
    ours.read_exact(&mut found).unwrap();
    assert_eq!(&found, b"BODY");
}

/// Returns the writing and the reading end of a pipe.
fn pipe() -> (File, File) {
    let mut ends = [0; 2];
    // SAFETY: there is room for two descriptors.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    // SAFETY: the kernel has just opened both descriptors, which have no other owner.
    unsafe { (File::from_raw_fd(ends[1]), File::from_raw_fd(ends[0])) }
}

pub(crate) fn pipes_carry_bytes(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let pattern = Pattern::new(5);
    let (writer, reader) = pipe();
    let (outlet, inlet) = (rig.join(writer), rig.join(reader));
    assert_eq!(rig.kind(outlet).unwrap(), Kind::Pipe);
    // More bytes than a pipe holds: the write continues as the other end reads.
    let bytes = 300_000;
    rig.write(outlet, pattern.bytes(0, bytes)).unwrap();
    rig.read(inlet, Vec::with_capacity(7777)).unwrap();
    let (mut at, mut complete) = (0, false);
    while at < bytes || !complete {
        let done = rig.next();
        match done.event {
            Event::Read(Ok(_), found) => {
                pattern.check(at, &found);
                at += found.len();
                rig.read(inlet, Vec::with_capacity(7777)).unwrap();
            }
            event => complete = written(event).len() == bytes,
        }
    }
    rig.close(outlet).unwrap();
    let mut ended = [false; 2];
    while ended != [true; 2] {
        let done = rig.next();
        match done.event {
            Event::Close(Ok(())) => ended[0] = true,
            event => ended[1] = read_of(event).is_empty(),
        }
    }
}

pub(crate) fn pipes_are_received_into_leases(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (mut writer, reader) = pipe();
    let inlet = rig.join(reader);
    rig.receive(inlet, Repeat::Once).unwrap();
    writer.write_all(b"first").unwrap();
    assert_eq!(&*received(rig.last(inlet)), b"first");
    rig.receive(inlet, Repeat::UntilCancelled).unwrap();
    for message in [&b"second"[..], b"third"] {
        writer.write_all(message).unwrap();
        assert_eq!(&*received(rig.another(inlet)), message);
    }
    drop(writer);
    assert!(received(rig.last(inlet)).is_empty());
}

pub(crate) fn a_broken_pipe_is_an_error(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (writer, reader) = pipe();
    let outlet = rig.join(writer);
    drop(reader);
    rig.write(outlet, b"nobody reads this").unwrap();
    assert_eq!(outcome(&rig.last(outlet)), Err(libc::EPIPE));
}

pub(crate) fn fifos_carry_bytes(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fifo");
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the name ends with a zero byte.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
    let writer = OpenOptions::new().write(true).open(&path).unwrap();
    // The reader blocks from now on, as with a FIFO that was opened in the usual way.
    // SAFETY: the call takes no pointers.
    assert_eq!(unsafe { libc::fcntl(reader.as_raw_fd(), libc::F_SETFL, 0) }, 0);
    let (inlet, outlet) = (rig.join(reader), rig.join(writer));
    assert_eq!(rig.kind(inlet).unwrap(), Kind::Pipe);
    rig.read(inlet, Vec::with_capacity(100)).unwrap();
    rig.flush().unwrap();
    rig.write_vectored(outlet, vec!["through ".into(), "a fifo".into()]).unwrap();
    let mut events = [rig.next(), rig.next()];
    events.sort_by_key(|done| done.handle != inlet);
    let [read, write] = events;
    assert_eq!(read_of(read.event), b"through a fifo");
    assert_eq!(outcome(&write.event), Ok(14));
}

pub(crate) fn a_terminal_carries_bytes(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (mut main, mut line) = (0, 0);
    let (name, settings, size) = (std::ptr::null_mut(), std::ptr::null(), std::ptr::null());
    // SAFETY: the first two point to room for a descriptor each, the others may be null.
    assert_eq!(unsafe { libc::openpty(&mut main, &mut line, name, settings, size) }, 0);
    // SAFETY: the kernel has just opened both descriptors, which have no other owner.
    let (mut main, line) = unsafe { (File::from_raw_fd(main), OwnedFd::from_raw_fd(line)) };
    let handle = rig.join(line);
    assert_eq!(rig.kind(handle).unwrap(), Kind::Pipe);
    rig.read(handle, Vec::with_capacity(100)).unwrap();
    rig.flush().unwrap();
    main.write_all(b"a line\n").unwrap();
    assert_eq!(read_of(rig.last(handle)), b"a line\n");
    rig.write(handle, b"back").unwrap();
    assert_eq!(outcome(&rig.last(handle)), Ok(4));
    let mut found = [0; 64];
    let mut all = Vec::new();
    while !all.ends_with(b"back") {
        let bytes = main.read(&mut found).unwrap();
        all.extend_from_slice(&found[..bytes]);
    }
}

pub(crate) fn a_sequenced_packet_socket_keeps_messages(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let mut ends = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: there is room for two descriptors.
    assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) }, 0);
    // SAFETY: the kernel has just opened both descriptors, which have no other owner.
    let [ours, theirs] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    let (ours, theirs) = (rig.join(ours), rig.join(theirs));
    for message in [&b"one"[..], b"and two"] {
        rig.write(ours, message).unwrap();
        assert_eq!(outcome(&rig.last(ours)), Ok(message.len() as u64));
    }
    rig.read(theirs, Vec::with_capacity(100)).unwrap();
    assert_eq!(read_of(rig.last(theirs)), b"one");
    rig.receive(theirs, Repeat::Once).unwrap();
    assert_eq!(&*received(rig.last(theirs)), b"and two");
}

pub(crate) fn disconnect_follows_the_writes(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let pattern = Pattern::new(6);
    let (mut ours, handle) = rig.tcp_pair();
    let bytes = 8 << 20;
    rig.write(handle, pattern.bytes(0, bytes)).unwrap();
    rig.disconnect(handle, Shutdown::Write).unwrap();
    let peer = std::thread::spawn(move || {
        let mut found = Vec::new();
        ours.read_to_end(&mut found).unwrap();
        ours.write_all(b"all received").unwrap();
        (found, ours)
    });
    assert_eq!(written(rig.last(handle)).len(), bytes);
    assert!(matches!(rig.last(handle), Event::Disconnect(Ok(()))));
    // The other direction is still open.
    rig.read(handle, Vec::with_capacity(100)).unwrap();
    assert_eq!(read_of(rig.last(handle)), b"all received");
    let (found, _ours) = peer.join().unwrap();
    assert_eq!(found.len(), bytes);
    pattern.check(0, &found);
    rig.write(handle, b"too late").unwrap();
    assert_eq!(outcome(&rig.last(handle)), Err(libc::EPIPE));
}

pub(crate) fn disconnect_ends_pending_reads(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (_ours, theirs) = unix_pair();
    let handle = rig.join(theirs);
    rig.receive(handle, Repeat::UntilCancelled).unwrap();
    rig.flush().unwrap();
    rig.disconnect(handle, Shutdown::Read).unwrap();
    let (mut disconnected, mut ended) = (false, false);
    while !(disconnected && ended) {
        let done = rig.next();
        assert!(!done.more);
        match done.event {
            Event::Disconnect(Ok(())) => disconnected = true,
            event => ended = received(event).is_empty(),
        }
    }
    assert_eq!(rig.outstanding(), 0);
}

pub(crate) fn disconnect_both_ways(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (mut ours, handle) = rig.tcp_pair();
    rig.disconnect(handle, Shutdown::Both).unwrap();
    assert!(matches!(rig.last(handle), Event::Disconnect(Ok(()))));
    common::expect_end(&mut ours);
    rig.read(handle, Vec::with_capacity(10)).unwrap();
    assert_eq!(outcome(&rig.last(handle)), Ok(0));
    rig.write(handle, b"gone").unwrap();
    assert_eq!(outcome(&rig.last(handle)), Err(libc::EPIPE));
}

/// Closes a socket so that the peer sees a reset.
fn reset(stream: std::net::TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let bytes = std::mem::size_of_val(&linger) as libc::socklen_t;
    let (fd, value) = (stream.as_raw_fd(), (&raw const linger).cast());
    // SAFETY: `linger` outlives the call and `bytes` is its size.
    let result = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, value, bytes) };
    assert_eq!(result, 0);
}

pub(crate) fn a_reset_in_mid_message(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let pattern = Pattern::new(7);
    let (mut ours, handle) = rig.tcp_pair();
    let bytes = 16 << 20;
    rig.write(handle, pattern.bytes(0, bytes)).unwrap();
    rig.write(handle, b"behind it").unwrap();
    rig.flush().unwrap();
    // A part has arrived; the rest never will.
    let mut found = [0; 1000];
    ours.read_exact(&mut found).unwrap();
    pattern.check(0, &found);
    reset(ours);
    match rig.last(handle) {
        Event::Write(Err(error), buffer) => {
            assert_eq!(error.raw_os_error(), Some(libc::ECONNRESET));
            assert_eq!(buffer.len(), bytes);
        }
        other => panic!("the reset is an error: {other:?}"),
    }
    let errno = outcome(&rig.last(handle)).unwrap_err();
    assert!([libc::ECONNRESET, libc::EPIPE].contains(&errno), "errno {errno}");
    // The kernel reported the reset only to the write; the channel reports it to inbound requests,
    // too.
    rig.receive(handle, Repeat::UntilCancelled).unwrap();
    assert_eq!(outcome(&rig.last(handle)), Err(libc::ECONNRESET));
}

pub(crate) fn a_reset_is_told_to_pending_reads(driver: DriverChoice) {
    for how in 0..3 {
        let mut rig = Rig::new(driver);
        let (ours, handle) = rig.tcp_pair();
        match how {
            0 => rig.read(handle, Vec::with_capacity(10)).unwrap(),
            1 => rig.receive(handle, Repeat::Once).unwrap(),
            _ => rig.receive(handle, Repeat::UntilCancelled).unwrap(),
        }
        rig.flush().unwrap();
        reset(ours);
        assert_eq!(outcome(&rig.last(handle)), Err(libc::ECONNRESET));
        assert_eq!(rig.outstanding(), 0);
    }
}

pub(crate) fn writes_to_a_vanished_peer_fail(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (ours, theirs) = unix_pair();
    let handle = rig.join(theirs);
    drop(ours);
    rig.write(handle, b"hello?").unwrap();
    assert_eq!(outcome(&rig.last(handle)), Err(libc::EPIPE));
    rig.write_vectored(handle, vec!["hello".into(), "?".into()]).unwrap();
    assert_eq!(outcome(&rig.last(handle)), Err(libc::EPIPE));
}

pub(crate) fn linger_zero_resets(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    for by_close in [false, true] {
        let (mut ours, handle) = rig.tcp_pair();
        rig.set_linger(handle, Some(std::time::Duration::ZERO)).unwrap();
        if by_close {
            rig.close(handle).unwrap();
            assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
        } else {
            drop(rig.unregister(handle).unwrap());
            rig.flush().unwrap();
        }
        common::expect_reset(&mut ours);
    }
}

pub(crate) fn options_and_the_peer_address(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (ours, handle) = rig.tcp_pair();
    for nodelay in [false, true, false] {
        rig.set_nodelay(handle, nodelay).unwrap();
        let mut value = [0; 4];
        rig.socket_option(handle, libc::IPPROTO_TCP, libc::TCP_NODELAY, &mut value).unwrap();
        assert_eq!(i32::from_ne_bytes(value) != 0, nodelay);
    }
    assert_eq!(rig.peer_address(handle).unwrap(), inet(ours.local_addr().unwrap()));
    // Whole seconds, rounded up.
    rig.set_linger(handle, Some(std::time::Duration::from_millis(1500))).unwrap();
    let mut value = [0; 8];
    let read = rig.socket_option(handle, libc::SOL_SOCKET, libc::SO_LINGER, &mut value);
    assert_eq!(read.unwrap(), 8);
    assert_eq!(value, [[1, 0, 0, 0], [2, 0, 0, 0]].concat()[..]);
    rig.set_linger(handle, None).unwrap();
    rig.socket_option(handle, libc::SOL_SOCKET, libc::SO_LINGER, &mut value).unwrap();
    assert_eq!(value[..4], [0; 4]);
    let (writer, _reader) = pipe();
    let pipe = rig.join(writer);
    assert!(rig.set_nodelay(pipe, true).unwrap_err().to_string().contains("setsockopt"));
    let (a, _b) = UnixStream::pair().unwrap();
    let unnamed = rig.join(a);
    assert_eq!(rig.peer_address(unnamed).unwrap(), megapipe::Address::Unnamed);
}
