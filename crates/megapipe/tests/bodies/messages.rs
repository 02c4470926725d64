//! Tests messages that keep their bounds: packet sockets, tun devices, netlink, datagrams.

use crate::common::process::isolated;
use crate::common::{Rig, TIME_LIMIT, accepted, datagram, outcome, received, udp, written};
use megapipe::{Accept, BufferClass, Config, DriverChoice, Event, Handle, Kind, Repeat};
use std::fs::OpenOptions;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::process::Command;

fn packet_pair() -> (OwnedFd, OwnedFd) {
    let mut ends = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: there is room for two descriptors.
    assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) }, 0);
    // SAFETY: the kernel has just opened both descriptors, which have no other owner.
    let [ours, theirs] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    (ours, theirs)
}

fn send(socket: &OwnedFd, message: &[u8]) {
    // SAFETY: the message is readable, and the length is its own.
    let sent = unsafe { libc::send(socket.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
    assert_eq!(sent, message.len() as isize, "send: {}", std::io::Error::last_os_error());
}

pub(crate) fn packets_keep_their_bounds(driver: DriverChoice) {
    for repeat in [Repeat::Once, Repeat::UntilCancelled] {
        let mut rig = Rig::new(driver);
        let (ours, theirs) = packet_pair();
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
    let (ours, theirs) = packet_pair();
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

/// Creates a tun device with long frames in the network namespace of the calling thread.
fn tun() -> OwnedFd {
    let file = OpenOptions::new().read(true).write(true).open("/dev/net/tun").unwrap();
    // SAFETY: all-zero bytes are a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"tun0") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the request is an initialised ifreq, which TUNSETIFF reads and writes.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) };
    assert_eq!(result, 0, "TUNSETIFF: {}", std::io::Error::last_os_error());
    for arguments in ["link set tun0 mtu 9000 up", "address add 10.77.0.1/24 dev tun0"] {
        let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
        assert!(status.success(), "ip {arguments}: {status}");
    }
    file.into()
}

/// Returns the payload of a frame if it is a UDP datagram over IPv4; the kernel sends other frames.
fn udp_payload(frame: &[u8]) -> Option<&[u8]> {
    let is_udp = frame.first()? >> 4 == 4 && *frame.get(9)? == libc::IPPROTO_UDP as u8;
    is_udp.then(|| &frame[28..])
}

/// Returns the next UDP datagram from a tun device.
fn next_frame(rig: &mut Rig, handle: Handle, repeat: Repeat) -> Vec<u8> {
    loop {
        let lease = received(rig.next().event);
        if repeat == Repeat::Once {
            rig.receive(handle, repeat).unwrap();
        }
        if let Some(payload) = udp_payload(&lease) {
            return payload.to_vec();
        }
    }
}

pub(crate) fn long_frames_of_a_tun_device_are_whole(driver: DriverChoice) {
    isolated(driver, "long_frames_of_a_tun_device_are_whole", || {
        // SAFETY: the call takes no pointers.
        let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        assert_eq!(result, 0, "unshare: {}", std::io::Error::last_os_error());
        let mut rig = Rig::new(driver);
        let handle = rig.join(tun());
        let sender = UdpSocket::bind("10.77.0.1:0").unwrap();
        for repeat in [Repeat::Once, Repeat::UntilCancelled] {
            rig.receive(handle, repeat).unwrap();
            for bytes in [100, 8972, 1, 4132, 4133, 8000, 10, 8972] {
                sender.send_to(&vec![bytes as u8; bytes], "10.77.0.2:9").unwrap();
                let payload = next_frame(&mut rig, handle, repeat);
                assert_eq!(payload, vec![bytes as u8; bytes], "{} of {bytes}", payload.len());
            }
            rig.cancel(handle).unwrap();
            rig.drain();
        }
    });
}

/// The protocol of netlink(7) whose messages the kernel passes between programs without reading
/// them.
const NETLINK_USERSOCK: libc::c_int = 2;

fn netlink_address(groups: u32) -> libc::sockaddr_nl {
    // SAFETY: all-zero bytes are a valid `sockaddr_nl`.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    address.nl_groups = groups;
    address
}

/// Returns a netlink socket with a small queue; with `groups`, a member of those multicast groups.
fn netlink(groups: u32) -> OwnedFd {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let (address, room) = (netlink_address(groups), 4096_i32);
    // SAFETY: the arguments outlive the calls, the lengths are their sizes, and the descriptor has
    // no other owner.
    unsafe {
        let fd = libc::socket(libc::AF_NETLINK, kind, NETLINK_USERSOCK);
        assert!(fd >= 0, "AF_NETLINK: {}", std::io::Error::last_os_error());
        let socket = OwnedFd::from_raw_fd(fd);
        let bytes = size_of_val(&address) as libc::socklen_t;
        let bound = libc::bind(fd, (&raw const address).cast(), bytes);
        let error = std::io::Error::last_os_error();
        assert_eq!(bound, 0, "joining a netlink group (which takes CAP_NET_ADMIN): {error}");
        let (option, bytes) = (libc::SO_RCVBUF, size_of_val(&room) as libc::socklen_t);
        let set = libc::setsockopt(fd, libc::SOL_SOCKET, option, (&raw const room).cast(), bytes);
        assert_eq!(set, 0, "SO_RCVBUF: {}", std::io::Error::last_os_error());
        socket
    }
}

/// Sends more messages to a group than its members have room for.
fn overrun(group: u32) {
    let (sender, address, message) = (netlink(0), netlink_address(group), [0u8; 1024]);
    for _ in 0..100 {
        // SAFETY: message and address outlive the call, and the lengths are their sizes.
        unsafe {
            let bytes = size_of_val(&address) as libc::socklen_t;
            let (fd, to) = (sender.as_raw_fd(), (&raw const address).cast());
            libc::sendto(fd, message.as_ptr().cast(), message.len(), 0, to, bytes);
        }
    }
}

/// Messages that netlink has lost are reported, and not mistaken for a lack of the channel's
/// buffers.
pub(crate) fn an_overrun_of_netlink_is_told(driver: DriverChoice) {
    // Multicast groups that only this test uses.
    let base = if driver == DriverChoice::Uring { 1 << 8 } else { 1 << 16 };
    for (number, repeat) in [Repeat::Once, Repeat::UntilCancelled].into_iter().enumerate() {
        for late in [false, true] {
            let group = base << (2 * number + usize::from(late));
            let mut rig = Rig::new(driver);
            let handle = rig.join(netlink(group));
            if late {
                overrun(group);
            }
            rig.receive_from(handle, repeat).unwrap();
            rig.flush().unwrap();
            if !late {
                overrun(group);
            }
            // Messages for which there was room also arrive, before or after the error.
            let mut errno = None;
            while errno.is_none() {
                let done = rig.next();
                match done.event {
                    Event::ReceiveFrom(Err(error)) => errno = error.raw_os_error(),
                    event => assert_eq!(datagram(event).len(), 1024),
                }
                if repeat == Repeat::Once && errno.is_none() {
                    rig.receive_from(handle, repeat).unwrap();
                }
            }
            assert_eq!(errno, Some(libc::ENOBUFS));
            assert_eq!(rig.counters().buffer_waits, 0);
        }
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
