//! Tests accepting.

use super::*;
use crate::source::{Discarded, Endpoint, NumberedSocket};
use std::net::SocketAddr;
use std::os::unix::net::{UnixListener, UnixStream};

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn accept(repeat: bool) -> Operation {
    Operation::Accept { lightweight: true, repeat }
}

fn descriptor(outcome: Outcome) -> (OwnedFd, bool) {
    let Output::Socket { socket, queue_nonempty } = outcome.output else {
        panic!("no socket: {outcome:?}")
    };
    (socket.into_descriptor().unwrap(), queue_nonempty)
}

#[test]
fn one_connection_as_a_plain_descriptor() {
    let mut rig = Rig::new();
    let (listener, address) = listener();
    let listener = rig.attach(listener);
    rig.submit(1, listener, accept(false));
    rig.nothing();
    let peer = TcpStream::connect(address).unwrap();
    let other = TcpStream::connect(address).unwrap();
    let outcome = rig.next();
    assert_eq!((outcome.tag, outcome.more), (1, false));
    let (accepted, queue_nonempty) = descriptor(outcome);
    assert!(queue_nonempty);
    assert!(is_nonblocking(&accepted));
    // SAFETY: the call takes no pointers.
    let own = unsafe { libc::fcntl(accepted.as_raw_fd(), libc::F_GETFD) };
    assert_eq!(own, libc::FD_CLOEXEC);
    let accepted = TcpStream::from(accepted);
    assert_eq!(accepted.peer_addr().unwrap(), peer.local_addr().unwrap());
    // The second connection waits for the second accept, which needs no edge.
    rig.nothing();
    rig.submit(2, listener, accept(false));
    let (accepted, queue_nonempty) = descriptor(rig.next());
    assert!(!queue_nonempty);
    let accepted = TcpStream::from(accepted);
    assert_eq!(accepted.peer_addr().unwrap(), other.local_addr().unwrap());
}

#[test]
fn a_burst_comes_whole_and_each_knows_of_the_next() {
    let mut rig = Rig::new();
    let (listener, address) = listener();
    let listener = rig.attach(listener);
    rig.submit(1, listener, accept(true));
    rig.nothing();
    let peers: Vec<TcpStream> = (0..50).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut known = 0;
    for peer in &peers {
        let outcome = rig.next();
        assert!(outcome.more);
        let (accepted, queue_nonempty) = descriptor(outcome);
        let accepted = TcpStream::from(accepted);
        assert_eq!(accepted.peer_addr().unwrap(), peer.local_addr().unwrap());
        known += usize::from(queue_nonempty);
    }
    assert_eq!(known, 49);
    rig.nothing();
    rig.driver.cancel(1, listener);
    assert_eq!(rig.last(1), -libc::ECANCELED);
}

#[test]
fn the_listener_gets_its_flags_back() {
    let mut rig = Rig::new();
    let (listener, _) = listener();
    let copy = listener.try_clone().unwrap();
    let object = rig.attach(listener);
    assert!(is_nonblocking(&copy));
    rig.submit(1, object, accept(true));
    let back = rig.driver.detach(object, &[1]).unwrap();
    assert!(!is_nonblocking(&back));
    assert_eq!(rig.last(1), -libc::ECANCELED);

    let object = rig.attach(back);
    assert!(is_nonblocking(&copy));
    rig.submit(2, object, accept(true));
    drop(rig);
    assert!(!is_nonblocking(&copy));

    let mut rig = Rig::new();
    copy.set_nonblocking(true).unwrap();
    let object = rig.attach(copy);
    assert!(is_nonblocking(&rig.driver.detach(object, &[]).unwrap()));
}

#[test]
fn a_listener_of_two_drivers_survives_the_first() {
    let (listener, address) = listener();
    let (mut first, mut second) = (Rig::new(), Rig::new());
    let one = first.attach(listener.try_clone().unwrap());
    let other = second.attach(listener.try_clone().unwrap());
    first.submit(1, one, accept(true));
    drop(first);
    // The accept would block here if the flag had been cleared.
    second.submit(1, other, accept(true));
    second.nothing();
    let _peer = TcpStream::connect(address).unwrap();
    descriptor(second.next());
    drop(second);
    assert!(!is_nonblocking(&listener));
}

#[test]
fn unix_connections() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let mut rig = Rig::new();
    let listener = rig.attach(UnixListener::bind(&path).unwrap());
    rig.submit(1, listener, accept(true));
    let _peers: Vec<UnixStream> = (0..20).map(|_| UnixStream::connect(&path).unwrap()).collect();
    for _ in 0..20 {
        descriptor(rig.next());
    }
    rig.nothing();
}

#[test]
fn only_listeners_accept_and_only_descriptors_are_taken() {
    let mut rig = Rig::new();
    let (near, _far) = tcp_pair();
    let near = rig.attach(near);
    rig.submit(1, near, accept(true));
    assert_eq!(rig.last(1), -libc::EINVAL);

    let direct = NumberedSocket::new(7, &Discarded::default());
    let refused = rig.driver.attach(Endpoint::Direct(direct), crate::source::Kind::Stream);
    assert_eq!(refused.unwrap_err().error.raw_os_error(), Some(libc::EXDEV));
}
