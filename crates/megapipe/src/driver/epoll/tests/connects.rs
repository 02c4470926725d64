//! Tests connecting.

use super::*;
use crate::address::{Address, RawAddress};
use std::os::fd::FromRawFd;
use std::os::unix::net::UnixListener;

fn socket(family: i32) -> OwnedFd {
    // SAFETY: the call takes no pointers, and the new descriptor has no other owner.
    unsafe {
        let fd = libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        assert!(fd >= 0);
        OwnedFd::from_raw_fd(fd)
    }
}

fn raw(address: impl Into<Address>) -> Box<RawAddress> {
    Box::new(RawAddress::new(&address.into()).unwrap())
}

fn connect(address: &RawAddress) -> Operation {
    Operation::Connect { address: (&raw const address.storage).cast(), bytes: address.bytes }
}

#[test]
fn a_connection_comes_about_and_the_socket_stays_blocking() {
    let mut rig = Rig::new();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = raw(listener.local_addr().unwrap());
    let near = socket(libc::AF_INET);
    let copy = near.try_clone().unwrap();
    let near = rig.attach(near);
    rig.submit(1, near, connect(&address));
    assert_eq!(rig.last(1), 0);
    assert!(!is_nonblocking(&copy));
    rig.submit(5, near, connect(&address));
    assert_eq!(rig.last(5), -libc::EISCONN);
    let (far, _) = listener.accept().unwrap();
    rig.submit(2, near, receive(true));
    rig.submit(3, near, write(b"hello"));
    assert_eq!(rig.last(3), 5);
    drop(far);
    assert!(rig.last(2) <= 0);
    rig.submit(4, near, connect(&address));
    assert!(rig.last(4) < 0);
}

/// Returns an address on which no socket listens, and the bound socket that reserves it.
fn deaf_address() -> (TcpListener, Box<RawAddress>) {
    let bound = socket(libc::AF_INET);
    let any = raw(std::net::SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    // SAFETY: the address outlives the call.
    let result =
        unsafe { libc::bind(bound.as_raw_fd(), (&raw const any.storage).cast(), any.bytes) };
    assert_eq!(result, 0);
    let bound = TcpListener::from(bound);
    let address = raw(bound.local_addr().unwrap());
    (bound, address)
}

#[test]
fn a_refusal_is_an_error_and_the_socket_may_try_again() {
    let mut rig = Rig::new();
    let (_deaf, refused) = deaf_address();
    let near = rig.attach(socket(libc::AF_INET));
    for tag in 0..3 {
        rig.submit(tag, near, connect(&refused));
        assert_eq!(rig.last(tag), -libc::ECONNREFUSED);
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = raw(listener.local_addr().unwrap());
    rig.submit(9, near, connect(&address));
    assert_eq!(rig.last(9), 0);
}

/// Returns a listener whose backlog is full, and the connections that fill it.
fn deaf_listener() -> (TcpListener, Vec<OwnedFd>, Box<RawAddress>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    // SAFETY: the call takes no pointers.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
    let address = raw(listener.local_addr().unwrap());
    let fill = || {
        let socket = TcpStream::from(socket(libc::AF_INET));
        socket.set_nonblocking(true).unwrap();
        let (storage, bytes) = (&raw const address.storage, address.bytes);
        // SAFETY: the address outlives the call.
        unsafe { libc::connect(socket.as_raw_fd(), storage.cast(), bytes) };
        OwnedFd::from(socket)
    };
    let fillers = (0..4).map(|_| fill()).collect();
    (listener, fillers, address)
}

#[test]
fn an_attempt_under_way_can_be_cancelled() {
    let (_listener, _fillers, address) = deaf_listener();
    let mut rig = Rig::new();
    let near = rig.attach(socket(libc::AF_INET));
    rig.submit(1, near, connect(&address));
    rig.nothing();
    rig.driver.cancel(1, near);
    assert_eq!(rig.last(1), -libc::ECANCELED);
    rig.nothing();
    // The kernel continues the cancelled attempt.
    rig.submit(2, near, connect(&address));
    assert_eq!(rig.last(2), -libc::EALREADY);
    rig.driver.close(3, near, &[]).unwrap();
    assert_eq!(rig.last(3), 0);
}

#[test]
fn a_full_backlog_of_a_unix_socket_is_an_error_of_this_attempt() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    // SAFETY: the call takes no pointers.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
    let address = raw(Address::Path(path));
    let mut rig = Rig::new();
    let first = rig.attach(socket(libc::AF_UNIX));
    rig.submit(1, first, connect(&address));
    assert_eq!(rig.last(1), 0);
    let second = rig.attach(socket(libc::AF_UNIX));
    rig.submit(2, second, connect(&address));
    assert_eq!(rig.last(2), -libc::EAGAIN);
    listener.accept().unwrap();
    rig.submit(3, second, connect(&address));
    assert_eq!(rig.last(3), 0);
}

#[test]
fn a_missing_unix_socket_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let address = raw(Address::Path(directory.path().join("nobody")));
    let mut rig = Rig::new();
    let near = rig.attach(socket(libc::AF_UNIX));
    rig.submit(1, near, connect(&address));
    assert_eq!(rig.last(1), -libc::ENOENT);
}

#[test]
fn pipes_do_not_connect() {
    let (reader, _writer) = pipe();
    let address = raw(std::net::SocketAddr::from((Ipv4Addr::LOCALHOST, 1)));
    let mut rig = Rig::new();
    let reader = rig.attach(reader);
    rig.submit(1, reader, connect(&address));
    assert_eq!(rig.last(1), -libc::ENOTSOCK);
}
