//! Tests messages that keep their bounds: packet sockets, datagrams.

use crate::common::descriptors::pair_of;
use crate::common::{Rig, TIME_LIMIT, accepted, datagram, outcome, received, udp, written};
use megapipe::{Accept, BufferClass, Config, DriverChoice, Event, Kind, Repeat};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

fn send(socket: &OwnedFd, message: &[u8]) {
    // SAFETY: the message is readable, and the length is its own.
    let sent = unsafe { libc::send(socket.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
    assert_eq!(sent, message.len() as isize, "send: {}", std::io::Error::last_os_error());
}

pub(crate) fn packets_keep_their_bounds(driver: DriverChoice) {
    for repeat in [Repeat::Once, Repeat::UntilCancelled] {
        let mut rig = Rig::new(driver);
        let (ours, theirs) = pair_of(libc::SOCK_SEQPACKET);
        let handle = rig.join(theirs);
        assert_eq!(rig.kind(handle).unwrap(), Kind::Packet);
        let messages = [&b"one"[..], b"", b"three", &[7; 60_000], b"", b"x"];
        // All of them wait before the first is received.
        messages.iter().for_each(|message| send(&ours, message));
        rig.receive(handle, repeat).unwrap();
        for message in messages {
            let lease = received(rig.next().event);
            assert_eq!(*lease, *message);
            assert!(!lease.is_end(), "an empty message is not the end");
            if repeat == Repeat::Once {
                rig.receive(handle, repeat).unwrap();
            }
        }
        drop(ours);
        let end = received(rig.last(handle));
        assert!(end.is_end() && end.is_empty());
        assert_eq!(rig.outstanding(), 0);
    }
}

pub(crate) fn a_packet_without_room_is_an_error(driver: DriverChoice) {
    let large = BufferClass { count: 4, bytes: 4096 };
    let mut rig = Rig::with(driver, Config { large_buffers: large, ..Config::default() });
    let (ours, theirs) = pair_of(libc::SOCK_SEQPACKET);
    let handle = rig.join(theirs);
    for vectored in [false, true] {
        send(&ours, b"too long");
        send(&ours, b"fits");
        for expected in [Err(libc::EMSGSIZE), Ok(4)] {
            let found = if vectored {
                rig.read_vectored(handle, vec![Vec::with_capacity(4)]).unwrap();
                let Event::ReadVectored(result, mut found) = rig.last(handle) else { panic!() };
                assert_eq!(result.map_err(|error| error.raw_os_error().unwrap()), expected);
                found.remove(0)
            } else {
                rig.read(handle, Vec::with_capacity(4)).unwrap();
                let Event::Read(result, found) = rig.last(handle) else { panic!() };
                assert_eq!(result.map_err(|error| error.raw_os_error().unwrap()), expected);
                found
            };
            assert_eq!(found, if expected.is_ok() { b"fits" } else { b"too " });
        }
    }
    // Longer than any buffer of the channel.
    send(&ours, &[1; 10_000]);
    rig.receive(handle, Repeat::Once).unwrap();
    assert_eq!(outcome(&rig.last(handle)), Err(libc::EMSGSIZE));
    send(&ours, b"and on");
    rig.receive(handle, Repeat::Once).unwrap();
    assert_eq!(&*received(rig.last(handle)), b"and on");
}

fn packet_address(path: &Path) -> libc::sockaddr_un {
    // SAFETY: all-zero bytes are a valid `sockaddr_un`.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in address.sun_path.iter_mut().zip(path.to_str().unwrap().bytes()) {
        *to = from as libc::c_char;
    }
    address
}

fn packet_socket() -> OwnedFd {
    // SAFETY: the call takes no pointers, and nothing else owns the descriptor.
    unsafe {
        let fd = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        assert!(fd >= 0, "socket: {}", std::io::Error::last_os_error());
        OwnedFd::from_raw_fd(fd)
    }
}

pub(crate) fn a_listener_brings_packet_sockets(driver: DriverChoice) {
    let directory = tempfile::tempdir().unwrap();
    for (number, accept) in [Accept::lightweight(), Accept::descriptors()].into_iter().enumerate() {
        let mut rig = Rig::new(driver);
        let address = packet_address(&directory.path().join(number.to_string()));
        let (at, bytes) = ((&raw const address).cast(), size_of_val(&address) as libc::socklen_t);
        let (listener, ours) = (packet_socket(), packet_socket());
        // SAFETY: the address outlives the calls, and the length is its size.
        unsafe {
            assert_eq!(libc::bind(listener.as_raw_fd(), at, bytes), 0);
            assert_eq!(libc::listen(listener.as_raw_fd(), 10), 0);
            assert_eq!(libc::connect(ours.as_raw_fd(), at, bytes), 0);
        }
        let listening = rig.join(listener);
        rig.accept(listening, accept).unwrap();
        let socket = accepted(rig.another(listening)).socket;
        let handle = rig.join(socket);
        assert_eq!(rig.kind(handle).unwrap(), Kind::Packet);
        for message in [&b"one"[..], b"", b"three"] {
            send(&ours, message);
        }
        rig.receive(handle, Repeat::UntilCancelled).unwrap();
        for message in [&b"one"[..], b"", b"three"] {
            let lease = received(rig.another(handle));
            assert!(*lease == *message && !lease.is_end());
        }
        // Messages that were written before the close arrive one by one, too.
        rig.write(handle, b"first").unwrap();
        rig.write(handle, b"second").unwrap();
        rig.close(handle).unwrap();
        assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
        let peer = rig.join(ours);
        rig.receive(peer, Repeat::UntilCancelled).unwrap();
        for message in [&b"first"[..], b"second"] {
            assert_eq!(*received(rig.another(peer)), *message);
        }
        assert!(received(rig.last(peer)).is_end());
    }
}

pub(crate) fn a_restored_datagram_is_its_payload(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (ours, _) = udp("127.0.0.1");
    let (theirs, address) = udp("127.0.0.1");
    let handle = rig.join(theirs);
    rig.receive_from(handle, Repeat::Once).unwrap();
    ours.send_to(b"the payload alone", address).unwrap();
    let mut lease = datagram(rig.last(handle)).into_lease();
    assert_eq!(&*lease, b"the payload alone");
    lease.advance(4);
    lease.truncate(7);
    assert_eq!(&*lease, b"payload");
    lease.restore();
    assert_eq!(&*lease, b"the payload alone");
    // Writing it also sends only the payload.
    let peer = ours.local_addr().unwrap();
    rig.send_to(handle, lease, peer).unwrap();
    assert_eq!(outcome(&rig.last(handle)), Ok(17));
    let mut room = [0; 100];
    ours.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    let count = ours.recv(&mut room).unwrap();
    assert_eq!(&room[..count], b"the payload alone");
    // A lease of a stream is restored to what was received.
    let (stream, theirs) = crate::common::unix_pair();
    let handle = rig.join(theirs);
    std::io::Write::write_all(&mut &stream, b"bytes").unwrap();
    rig.receive(handle, Repeat::Once).unwrap();
    let mut lease = received(rig.last(handle));
    lease.advance(2);
    lease.restore();
    rig.write(handle, lease).unwrap();
    assert_eq!(&*written(rig.last(handle)), b"bytes");
}
