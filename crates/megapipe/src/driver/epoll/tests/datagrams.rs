//! Tests datagrams.

use super::*;
use crate::address::{Address, RawAddress};
use crate::completion::Datagram;
use crate::driver::datagram_payload;
use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;

fn udp() -> UdpSocket {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
}

/// Offset of the payload in a buffer.
const PAYLOAD: usize = datagram_payload(false);

fn receive_from(repeat: bool) -> Operation {
    Operation::ReceiveFrom { repeat, ancillary: false }
}

/// A message with everything it points to, at fixed addresses.
struct Parcel {
    address: Box<RawAddress>,
    part: Box<libc::iovec>,
    header: Box<libc::msghdr>,
}

impl Parcel {
    fn new(bytes: &[u8], address: impl Into<Address>) -> Parcel {
        let mut parcel = Parcel {
            address: Box::new(RawAddress::new(&address.into()).unwrap()),
            part: Box::new(parts([bytes])[0]),
            header: Box::new(super::super::calls::message()),
        };
        parcel.header.msg_name = (&raw mut parcel.address.storage).cast();
        parcel.header.msg_namelen = parcel.address.bytes;
        parcel.header.msg_iov = &raw mut *parcel.part;
        parcel.header.msg_iovlen = 1;
        parcel
    }

    fn send(&self) -> Operation {
        Operation::SendTo { message: &raw const *self.header }
    }
}

#[test]
fn a_datagram_comes_with_its_sender() {
    let mut rig = Rig::new();
    let (near, far) = (udp(), udp());
    far.connect(near.local_addr().unwrap()).unwrap();
    let sender = far.local_addr().unwrap();
    let near = rig.attach(near);
    rig.submit(1, near, receive_from(true));
    rig.nothing();
    for payload in [&b"some bytes"[..], b"", b"more"] {
        far.send(payload).unwrap();
        let outcome = rig.next();
        assert!(outcome.more);
        assert_eq!(outcome.result as usize, PAYLOAD + payload.len());
        let Output::Lease(lease) = outcome.output else { panic!("no lease") };
        let datagram = Datagram::parse(lease, false).unwrap();
        assert_eq!(&*datagram, payload);
        assert_eq!(datagram.address().unwrap(), Address::Inet(sender));
        assert!(!datagram.is_truncated());
    }
    rig.driver.cancel(1, near);
    assert_eq!(rig.last(1), -libc::ECANCELED);
    assert_eq!(rig.free_buffers(), (1024, 64));
}

#[test]
fn one_that_is_too_long_says_so() {
    let mut rig = Rig::tight();
    let (near, far) = (udp(), udp());
    far.connect(near.local_addr().unwrap()).unwrap();
    let near = rig.attach(near);
    let sent = pattern(2000);
    far.send(&sent).unwrap();
    rig.submit(1, near, receive_from(false));
    let datagram = Datagram::parse(rig.lease(1), false).unwrap();
    assert!(datagram.is_truncated());
    assert_eq!(&*datagram, &sent[..1024 - PAYLOAD]);
}

#[test]
fn a_burst_ends_for_lack_of_buffers_and_goes_on() {
    let mut rig = Rig::tight();
    let (near, far) = (udp(), udp());
    far.connect(near.local_addr().unwrap()).unwrap();
    let near = rig.attach(near);
    for number in 0..40u8 {
        far.send(&[number]).unwrap();
    }
    let mut number = 0;
    while number < 40 {
        rig.submit(1, near, receive_from(true));
        let mut leases = Vec::new();
        loop {
            let outcome = rig.next();
            let Output::Lease(lease) = outcome.output else {
                assert_eq!(outcome.result, -libc::ENOBUFS);
                break;
            };
            assert_eq!(lease[PAYLOAD..], [number]);
            number += 1;
            leases.push(lease);
        }
        assert_eq!(leases.len(), 2);
    }
}

#[test]
fn datagrams_are_sent_where_they_belong() {
    let mut rig = Rig::new();
    let (near, far) = (udp(), udp());
    let parcel = Parcel::new(b"hello", far.local_addr().unwrap());
    let sender = near.local_addr().unwrap();
    let near = rig.attach(near);
    rig.submit(1, near, parcel.send());
    assert_eq!(rig.last(1), 5);
    let mut room = [0; 10];
    assert_eq!(far.recv_from(&mut room).unwrap(), (5, sender));
    assert_eq!(&room[..5], b"hello");

    let long = pattern(70_000);
    let parcel = Parcel::new(&long, far.local_addr().unwrap());
    rig.submit(2, near, parcel.send());
    assert_eq!(rig.last(2), -libc::EMSGSIZE);
}

#[test]
fn a_connected_socket_reads_and_writes_one_at_a_time() {
    let mut rig = Rig::new();
    let (near, far) = (udp(), udp());
    near.connect(far.local_addr().unwrap()).unwrap();
    far.connect(near.local_addr().unwrap()).unwrap();
    let near = rig.attach(near);
    rig.submit(1, near, write(b"one"));
    assert_eq!(rig.last(1), 3);
    rig.submit(2, near, write_parts(&parts([b"t", b"wo"])));
    assert_eq!(rig.last(2), 3);
    let mut room = [0; 10];
    assert_eq!(far.recv(&mut room).unwrap(), 3);
    assert_eq!(far.recv(&mut room).unwrap(), 3);
    far.send(b"three").unwrap();
    far.send(b"four").unwrap();
    rig.submit(3, near, read(&mut room));
    assert_eq!(rig.last(3), 5);
    rig.submit(4, near, read(&mut room));
    assert_eq!(rig.last(4), 4);
}

#[test]
fn the_full_queue_of_a_stranger_is_an_error_of_this_attempt() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let far = UnixDatagram::bind(&path).unwrap();
    // Another socket has filled the queue, and only that socket gets the event when it has room.
    let other = UnixDatagram::unbound().unwrap();
    other.set_nonblocking(true).unwrap();
    while other.send_to(b"x", &path).is_ok() {}
    let mut rig = Rig::new();
    let near = rig.attach(UnixDatagram::unbound().unwrap());
    let parcel = Parcel::new(b"mine", Address::Path(path));
    rig.submit(1, near, parcel.send());
    assert_eq!(rig.last(1), -libc::EAGAIN);
    // One poll is in flight at a time.
    rig.submit(2, near, Operation::Poll { events: libc::POLLIN as u32, repeat: false });
    rig.submit(3, near, Operation::Poll { events: libc::POLLOUT as u32, repeat: false });
    assert_eq!(rig.last(3), -libc::EBUSY);
    rig.driver.cancel(2, near);
    assert_eq!(rig.last(2), -libc::ECANCELED);
    far.recv(&mut [0; 1]).unwrap();
    rig.submit(4, near, parcel.send());
    assert_eq!(rig.last(4), 4);
}

/// Writes until nothing more fits; the last write waits.
fn fill(rig: &mut Rig, near: Object) -> usize {
    let mut sent = 0;
    loop {
        rig.submit(1, near, write(b"x"));
        rig.driver.collect(&mut rig.came, Some(Duration::ZERO)).unwrap();
        if rig.came.pop_front().is_none() {
            return sent;
        }
        sent += 1;
    }
}

#[test]
fn the_full_queue_of_a_peer_is_told_by_an_edge() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = UnixDatagram::bind(&path).unwrap();
    let one_way = UnixDatagram::unbound().unwrap();
    one_way.connect(&path).unwrap();
    for (near, far) in [UnixDatagram::pair().unwrap(), (one_way, listener)] {
        let mut rig = Rig::new();
        let near = rig.attach(near);
        let sent = fill(&mut rig, near);
        for _ in 0..sent {
            far.recv(&mut [0; 1]).unwrap();
        }
        assert_eq!(rig.last(1), 1);
    }
}
