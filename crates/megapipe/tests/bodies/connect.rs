//! Tests connecting.

use crate::common;
use crate::common::{
    Rig, inet, outcome, peer_listener, read_of, received, set_time_limit, written,
};
use megapipe::{Address, DriverChoice, Event, Repeat};
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};
use testkit::retried;

/// Returns a socket that is not connected yet.
fn socket(family: i32) -> OwnedFd {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: the call takes no pointers.
    let fd = unsafe { libc::socket(family, kind, 0) };
    assert!(fd >= 0, "socket: {}", std::io::Error::last_os_error());
    // SAFETY: the kernel has just opened this descriptor, which has no other owner.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

pub(crate) fn connect_succeeds(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (listener, address) = peer_listener();
    let handle = rig.join(socket(libc::AF_INET));
    rig.connect(handle, address).unwrap();
    assert_eq!(outcome(&rig.last(handle)), Ok(0));
    let (mut theirs, _) = listener.accept().unwrap();
    set_time_limit(&theirs);
    assert_eq!(rig.peer_address(handle).unwrap(), inet(address));
    rig.write(handle, b"hello").unwrap();
    assert_eq!(written(rig.last(handle)).len(), 5);
    let mut found = [0; 5];
    theirs.read_exact(&mut found).unwrap();
    assert_eq!(&found, b"hello");
    theirs.write_all(b"you").unwrap();
    rig.read(handle, Vec::with_capacity(10)).unwrap();
    assert_eq!(read_of(rig.last(handle)), b"you");
}

pub(crate) fn connect_over_ipv6(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (listener, address) = common::peer_listener_of(1);
    let handle = rig.join(socket(libc::AF_INET6));
    rig.connect(handle, address).unwrap();
    assert_eq!(outcome(&rig.last(handle)), Ok(0));
    assert_eq!(rig.peer_address(handle).unwrap(), inet(address));
    let (_theirs, peer) = listener.accept().unwrap();
    assert!(peer.is_ipv6());
}

pub(crate) fn connect_a_datagram_socket(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (theirs, address) = common::udp("127.0.0.1");
    let ours = UdpSocket::bind("127.0.0.1:0").unwrap();
    let our_address = ours.local_addr().unwrap();
    let handle = rig.join(ours);
    rig.connect(handle, address).unwrap();
    assert_eq!(outcome(&rig.last(handle)), Ok(0));
    assert_eq!(rig.peer_address(handle).unwrap(), inet(address));
    rig.write(handle, b"datagram").unwrap();
    assert_eq!(written(rig.last(handle)).len(), 8);
    let mut found = [0; 20];
    assert_eq!(retried(|| theirs.recv_from(&mut found)).unwrap(), (8, our_address));
    assert_eq!(&found[..8], b"datagram");
}

pub(crate) fn connect_to_unix_sockets(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a socket");
    let name = format!("megapipe test {}", path.display()).into_bytes();
    let abstract_name = std::os::unix::net::SocketAddr::from_abstract_name(&name).expect("a name");
    let listeners = [
        (UnixListener::bind(&path).unwrap(), Address::from(path.as_path())),
        (UnixListener::bind_addr(&abstract_name).unwrap(), Address::Abstract(name)),
    ];
    for (listener, address) in listeners {
        let handle = rig.join(socket(libc::AF_UNIX));
        rig.connect(handle, address.clone()).unwrap();
        assert_eq!(outcome(&rig.last(handle)), Ok(0));
        let (mut theirs, _) = listener.accept().unwrap();
        theirs.write_all(b"hello").unwrap();
        rig.receive(handle, Repeat::Once).unwrap();
        assert_eq!(&*received(rig.last(handle)), b"hello");
        assert_eq!(rig.peer_address(handle).unwrap(), address);
    }
    let handle = rig.join(socket(libc::AF_UNIX));
    rig.connect(handle, directory.path().join("nobody").as_path()).unwrap();
    assert_eq!(outcome(&rig.last(handle)), Err(libc::ENOENT));
    assert!(rig.connect(handle, Path::new(&"x".repeat(200))).is_err());
    assert!(rig.connect(handle, Address::Unnamed).is_err());
}

pub(crate) fn connect_refused(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (_deaf, address) = common::deaf_address(common::test_addresses().peer[0]);
    let handle = rig.join(socket(libc::AF_INET));
    rig.connect(handle, address).unwrap();
    assert_eq!(outcome(&rig.last(handle)), Err(libc::ECONNREFUSED));
    // Requests that were submitted meanwhile start then, and fail as well.
    rig.connect(handle, address).unwrap();
    rig.write(handle, b"never sent").unwrap();
    rig.receive(handle, Repeat::UntilCancelled).unwrap();
    let done = rig.next();
    assert!(matches!(done.event, Event::Connect(Err(_))), "{:?}", done.event);
    assert_eq!(outcome(&done.event), Err(libc::ECONNREFUSED));
    // A write to a refused socket fails; a read sees the end or fails, depending on the kernel's
    // state.
    for _ in 0..2 {
        match rig.last(handle) {
            Event::Receive(Ok(end)) => assert!(end.is_empty()),
            event @ Event::Receive(_) => assert_eq!(outcome(&event), Err(libc::ENOTCONN)),
            event => assert_eq!(outcome(&event), Err(libc::EPIPE)),
        }
    }
    assert_eq!(rig.outstanding(), 0);
}

pub(crate) fn requests_wait_for_the_connect(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (listener, address) = peer_listener();
    let handle = rig.join(socket(libc::AF_INET));
    rig.connect(handle, address).unwrap();
    rig.read(handle, Vec::with_capacity(16)).unwrap();
    rig.write(handle, b"first ").unwrap();
    rig.write_vectored(handle, vec!["and ".into(), "second".into()]).unwrap();
    rig.disconnect(handle, std::net::Shutdown::Write).unwrap();
    rig.receive(handle, Repeat::Once).unwrap();
    let peer = std::thread::spawn(move || {
        let (mut theirs, _) = listener.accept().unwrap();
        set_time_limit(&theirs);
        let mut found = Vec::new();
        theirs.read_to_end(&mut found).unwrap();
        theirs.write_all(b"answer").unwrap();
        found
    });
    assert!(matches!(rig.last(handle), Event::Connect(Ok(()))));
    // Each direction has an order of its own.
    let (mut outbound, mut inbound) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        match rig.last(handle) {
            event @ (Event::Read(..) | Event::Receive(_)) => inbound.push(event),
            event => outbound.push(event),
        }
    }
    let [write, vectored, disconnect] = outbound.try_into().unwrap();
    assert_eq!(written(write).len(), 6);
    assert!(matches!(vectored, Event::WriteVectored(Ok(10), _)));
    assert!(matches!(disconnect, Event::Disconnect(Ok(()))));
    let [read, receive] = inbound.try_into().unwrap();
    assert_eq!(read_of(read), b"answer");
    assert!(received(receive).is_empty());
    assert_eq!(peer.join().unwrap(), b"first and second");
}

pub(crate) fn a_cancelled_connect_takes_the_rest_with_it(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    // The queue of this listener is full, so further connects get no answer.
    let (listener, address) = peer_listener();
    // SAFETY: the call takes no pointers and the descriptor is open.
    let listened = unsafe { libc::listen(listener.as_raw_fd(), 0) };
    assert_eq!(listened, 0);
    let first = rig.join(socket(libc::AF_INET));
    rig.connect(first, address).unwrap();
    assert_eq!(outcome(&rig.last(first)), Ok(0));
    let handle = rig.join(socket(libc::AF_INET));
    rig.connect(handle, address).unwrap();
    rig.write(handle, b"write").unwrap();
    rig.receive(handle, Repeat::UntilCancelled).unwrap();
    rig.read(handle, Vec::with_capacity(1)).unwrap();
    rig.cancel(handle).unwrap();
    let mut ended = [0; 4];
    for _ in 0..4 {
        let done = rig.next();
        assert!(!done.more);
        assert_eq!(outcome(&done.event), Err(libc::ECANCELED));
        match done.event {
            Event::Connect(_) => ended[0] += 1,
            Event::Write(..) => ended[1] += 1,
            Event::Receive(_) => ended[2] += 1,
            _ => ended[3] += 1,
        }
    }
    assert_eq!(ended, [1; 4]);
    assert_eq!(rig.outstanding(), 0);
}

pub(crate) fn a_second_connect_is_an_error(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (_listener, address) = peer_listener();
    let handle = rig.join(socket(libc::AF_INET));
    rig.connect(handle, address).unwrap();
    rig.connect(handle, address).unwrap();
    assert_eq!(outcome(&rig.last(handle)), Ok(0));
    assert_eq!(outcome(&rig.last(handle)), Err(libc::EISCONN));
}

/// What ends a connect that waits for a listener.
enum End {
    Cancelled,
    Closed,
    Aborted,
    Connected,
}

pub(crate) fn a_connect_to_a_full_unix_listener(driver: DriverChoice) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    // SAFETY: the call takes no pointers and the descriptor is open.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
    for end in [End::Cancelled, End::Closed, End::Aborted, End::Connected] {
        let mut rig = Rig::new(driver);
        let first = rig.join(socket(libc::AF_UNIX));
        rig.connect(first, path.as_path()).unwrap();
        assert_eq!(outcome(&rig.last(first)), Ok(0));
        let handle = rig.join(socket(libc::AF_UNIX));
        rig.connect(handle, path.as_path()).unwrap();
        // The channel sleeps and does not spin, also after several attempts.
        let waits = rig.counters().waits;
        assert!(rig.dispatch(Duration::from_millis(50)).unwrap().is_none());
        let waits = rig.counters().waits - waits;
        assert!(waits < 50, "{waits} waits");
        let begun = Instant::now();
        match end {
            End::Cancelled => {
                rig.cancel(handle).unwrap();
                assert_eq!(outcome(&rig.last(handle)), Err(libc::ECANCELED));
            }
            End::Closed => _ = rig.close(handle).unwrap(),
            End::Aborted => _ = rig.abort(handle).unwrap(),
            End::Connected => {}
        }
        if matches!(end, End::Closed | End::Aborted) {
            assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
            assert!(begun.elapsed() < Duration::from_secs(5), "the connect has no output");
        }
        // Room for one more connection: the second connect completes if it still waits.
        listener.accept().unwrap();
        if matches!(end, End::Connected) {
            assert_eq!(outcome(&rig.last(handle)), Ok(0));
            listener.accept().unwrap();
        }
        assert_eq!(rig.outstanding(), 0);
    }
}
