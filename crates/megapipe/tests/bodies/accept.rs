//! Tests accepting connections.

use crate::common;
use crate::common::{
    Rig, TIME_LIMIT, accepted, client, clients_in_order, inet, listener, outcome, read_of,
    received, test_addresses, written,
};
use megapipe::{Accept, Address, DriverChoice, Error, Event, Kind, Repeat};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

/// Exchanges a message with a client, to show that the right connection was accepted.
#[track_caller]
fn talk(rig: &mut Rig, handle: megapipe::Handle, mut client: impl Read + Write) {
    client.write_all(b"ping").unwrap();
    rig.receive(handle, Repeat::Once).unwrap();
    assert_eq!(&*received(rig.last(handle)), b"ping");
    rig.write(handle, b"pong").unwrap();
    assert_eq!(written(rig.last(handle)).len(), 4);
    let mut found = [0; 4];
    client.read_exact(&mut found).unwrap();
    assert_eq!(&found, b"pong");
}

pub(crate) fn accept_one(driver: DriverChoice) {
    for accept in [Accept::descriptors(), Accept::lightweight()] {
        let mut rig = Rig::new(driver);
        let (listener, address) = listener();
        let listening = rig.join(listener);
        assert_eq!(rig.kind(listening).unwrap(), Kind::Listener);
        rig.accept(listening, accept.count(1)).unwrap();
        let client = client(address);
        let accepted = accepted(rig.last(listening));
        let handle = rig.join(accepted.socket);
        assert_eq!(rig.kind(handle).unwrap(), Kind::Stream);
        talk(&mut rig, handle, &client);
        assert_eq!(rig.outstanding(), 0);
    }
}

pub(crate) fn a_listener_of_both_families_maps_addresses(driver: DriverChoice) {
    for accept in [Accept::descriptors(), Accept::lightweight()] {
        let mut rig = Rig::new(driver);
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let listening = rig.join(listener);
        for found in test_addresses().found {
            rig.accept(listening, accept.count(1)).unwrap();
            let client = client(SocketAddr::new(found, port));
            let accepted = accepted(rig.last(listening));
            let handle = rig.join(accepted.socket);
            let ours = client.local_addr().unwrap();
            let told = match ours.ip() {
                IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), ours.port()),
                IpAddr::V6(_) => ours,
            };
            assert_eq!(rig.peer_address(handle).unwrap(), inet(told));
        }
    }
}

pub(crate) fn accept_until_cancelled(driver: DriverChoice) {
    for accept in [Accept::descriptors(), Accept::lightweight()] {
        let mut rig = Rig::new(driver);
        let (listener, address) = listener();
        let listening = rig.join(listener);
        rig.accept(listening, accept).unwrap();
        for _ in 0..50 {
            let client = client(address);
            let accepted = accepted(rig.another(listening));
            let handle = rig.join(accepted.socket);
            talk(&mut rig, handle, &client);
        }
        rig.cancel(listening).unwrap();
        assert_eq!(outcome(&rig.last(listening)), Err(libc::ECANCELED));
        assert!(rig.drain().is_empty());
        // The handle is still registered.
        let client = client(address);
        rig.accept(listening, accept.count(1)).unwrap();
        let accepted = accepted(rig.last(listening));
        let handle = rig.join(accepted.socket);
        talk(&mut rig, handle, &client);
    }
}

pub(crate) fn accept_as_many_as_asked(driver: DriverChoice) {
    for accept in [Accept::descriptors(), Accept::lightweight()] {
        let mut rig = Rig::new(driver);
        let (listener, address) = listener();
        let listening = rig.join(listener);
        rig.accept(listening, accept.count(5)).unwrap();
        let _clients: Vec<TcpStream> = (0..5).map(|_| client(address)).collect();
        for _ in 0..4 {
            accepted(rig.another(listening));
        }
        accepted(rig.last(listening));
        assert!(rig.drain().is_empty());
        let none = rig.accept(listening, accept.count(0)).unwrap_err();
        assert!(matches!(none, Error::Invalid(_)), "{none}");
    }
}

pub(crate) fn counts_of_several_calls_add_up(driver: DriverChoice) {
    for accept in [Accept::descriptors(), Accept::lightweight()] {
        let mut rig = Rig::new(driver);
        let (listener, address) = listener();
        let listening = rig.join(listener);
        let _early: Vec<TcpStream> = (0..2).map(|_| client(address)).collect();
        rig.accept(listening, accept.count(1)).unwrap();
        rig.flush().unwrap();
        rig.accept(listening, accept.count(2)).unwrap();
        rig.accept(listening, accept.count(3)).unwrap();
        let _late: Vec<TcpStream> = (0..5).map(|_| client(address)).collect();
        for _ in 0..5 {
            accepted(rig.another(listening));
        }
        accepted(rig.last(listening));
        // Seven connections arrived, six were requested.
        assert!(rig.drain().is_empty());
        rig.accept(listening, accept.count(1)).unwrap();
        accepted(rig.last(listening));
    }
}

pub(crate) fn connections_beyond_the_count_stay_queued(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (listener, address) = listener();
    let listening = rig.join(listener);
    let clients = clients_in_order(address, 10);
    let mut served = 0;
    // The connections come in the order of their arrival, with any count.
    for count in [1, 2, 3, 4] {
        rig.accept(listening, Accept::lightweight().count(count)).unwrap();
        for left in (0..count).rev() {
            let done = rig.next();
            assert_eq!((done.handle, done.more), (listening, left > 0));
            let handle = rig.join(accepted(done.event).socket);
            let peer = inet(clients[served].local_addr().unwrap());
            assert_eq!(rig.peer_address(handle).unwrap(), peer);
            served += 1;
        }
        assert!(rig.drain().is_empty());
    }
    assert_eq!(served, clients.len());
}

pub(crate) fn pending_tells_how_many_wait(driver: DriverChoice) {
    for accept in [Accept::descriptors(), Accept::lightweight()] {
        let mut rig = Rig::new(driver);
        let (listener, address) = listener();
        let listening = rig.join(listener);
        let _clients: Vec<TcpStream> = (0..6).map(|_| client(address)).collect();
        rig.accept(listening, accept.count(1)).unwrap();
        assert_eq!(accepted(rig.last(listening)).pending, 5);
        rig.accept(listening, accept).unwrap();
        for pending in (0..5).rev() {
            assert_eq!(accepted(rig.another(listening)).pending, pending);
        }
    }
}

pub(crate) fn lightweight_sockets_are_full_sockets(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (listener, address) = listener();
    let listening = rig.join(listener);
    rig.accept(listening, Accept::lightweight()).unwrap();
    let mut ours = client(address);
    let socket = accepted(rig.another(listening)).socket;
    assert!(socket.is_lightweight());
    let handle = rig.join(socket);
    rig.write_vectored(handle, vec!["head ".into(), "body".into()]).unwrap();
    assert_eq!(outcome(&rig.last(handle)), Ok(9));
    let mut found = [0; 9];
    ours.read_exact(&mut found).unwrap();
    assert_eq!(&found, b"head body");
    rig.read(handle, Vec::with_capacity(16)).unwrap();
    ours.write_all(b"to a read").unwrap();
    assert_eq!(read_of(rig.last(handle)), b"to a read");
    rig.read_vectored(handle, vec![Vec::with_capacity(16)]).unwrap();
    ours.write_all(b"to a vector").unwrap();
    assert_eq!(outcome(&rig.last(handle)), Ok(11));
    rig.receive(handle, Repeat::UntilCancelled).unwrap();
    ours.write_all(b"to a receive").unwrap();
    assert_eq!(&*received(rig.another(handle)), b"to a receive");
    rig.cancel(handle).unwrap();
    assert_eq!(outcome(&rig.last(handle)), Err(libc::ECANCELED));
    rig.disconnect(handle, std::net::Shutdown::Write).unwrap();
    assert_eq!(outcome(&rig.last(handle)), Ok(0));
    common::expect_end(&mut ours);
    rig.close(handle).unwrap();
    assert_eq!(outcome(&rig.last(handle)), Ok(0));
}

pub(crate) fn lightweight_sockets_have_options(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (listener, address) = listener();
    let listening = rig.join(listener);
    rig.accept(listening, Accept::lightweight()).unwrap();
    let mut ours = client(address);
    let handle = accepted(rig.another(listening)).socket;
    let handle = rig.join(handle);
    let mut value = [0; 4];
    for nodelay in [true, false] {
        rig.set_nodelay(handle, nodelay).unwrap();
        let (level, name) = (libc::IPPROTO_TCP, libc::TCP_NODELAY);
        assert_eq!(rig.socket_option(handle, level, name, &mut value).unwrap(), 4);
        assert_eq!(i32::from_ne_bytes(value) != 0, nodelay);
    }
    let (level, name) = (libc::SOL_SOCKET, libc::SO_TYPE);
    assert_eq!(rig.socket_option(handle, level, name, &mut value).unwrap(), 4);
    assert_eq!(i32::from_ne_bytes(value), libc::SOCK_STREAM);
    assert_eq!(rig.peer_address(handle).unwrap(), inet(ours.local_addr().unwrap()));
    rig.set_linger(handle, Some(Duration::ZERO)).unwrap();
    rig.unregister(handle).unwrap();
    rig.flush().unwrap();
    common::expect_reset(&mut ours);
}

pub(crate) fn a_lightweight_socket_becomes_a_descriptor(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (listener, address) = listener();
    let listening = rig.join(listener);
    rig.accept(listening, Accept::lightweight()).unwrap();
    let mut ours = client(address);
    let handle = accepted(rig.another(listening)).socket;
    let handle = rig.join(handle);
    let mut regular = TcpStream::from(rig.descriptor(handle).unwrap());
    regular.set_nonblocking(false).unwrap();
    regular.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    // Both are the same connection.
    rig.write(handle, b"channel ").unwrap();
    assert_eq!(written(rig.last(handle)).len(), 8);
    regular.write_all(b"descriptor").unwrap();
    let mut found = [0; 18];
    ours.read_exact(&mut found).unwrap();
    assert_eq!(&found, b"channel descriptor");
    drop(rig.unregister(handle).unwrap());
    rig.drain_to(1);
    ours.write_all(b"still here").unwrap();
    regular.read_exact(&mut found[..10]).unwrap();
    assert_eq!(&found[..10], b"still here");
    drop(rig);
    regular.write_all(b"and here").unwrap();
    ours.read_exact(&mut found[..8]).unwrap();
    assert_eq!(&found[..8], b"and here");
    drop(regular);
    common::expect_end(&mut ours);
}

pub(crate) fn descriptors_are_the_applications(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (listener, address) = listener();
    let listening = rig.join(listener);
    rig.accept(listening, Accept::descriptors().count(1)).unwrap();
    let mut ours = client(address);
    let socket = accepted(rig.last(listening)).socket;
    assert!(!socket.is_lightweight());
    let descriptor = socket.into_descriptor().expect("a descriptor");
    common::expect_free_descriptor(&descriptor);
    drop(rig);
    let mut theirs = TcpStream::from(descriptor);
    theirs.set_nonblocking(false).unwrap();
    ours.write_all(b"hello").unwrap();
    let mut found = [0; 5];
    theirs.read_exact(&mut found).unwrap();
    assert_eq!(&found, b"hello");
}

pub(crate) fn accept_on_a_unix_listener(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listening = rig.join(UnixListener::bind(&path).unwrap());
    assert_eq!(rig.kind(listening).unwrap(), Kind::Listener);
    rig.accept(listening, Accept::lightweight()).unwrap();
    for _ in 0..3 {
        let client = UnixStream::connect(&path).unwrap();
        client.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        let socket = accepted(rig.another(listening)).socket;
        let handle = rig.join(socket);
        talk(&mut rig, handle, &client);
        assert_eq!(rig.peer_address(handle).unwrap(), Address::Unnamed);
    }
}

pub(crate) fn accepts_of_both_kinds_do_not_mix(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (listener, _address) = listener();
    let listening = rig.join(listener);
    rig.accept(listening, Accept::lightweight().count(2)).unwrap();
    let error = rig.accept(listening, Accept::descriptors().count(1)).unwrap_err();
    assert!(matches!(error, Error::MixedAccept), "{error}");
    rig.cancel(listening).unwrap();
    assert_eq!(outcome(&rig.last(listening)), Err(libc::ECANCELED));
    rig.accept(listening, Accept::descriptors().count(1)).unwrap();
}

pub(crate) fn the_kind_can_change_between_accepts(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (listener, address) = listener();
    let listening = rig.join(listener);
    let clients = clients_in_order(address, 6);
    for round in 0..3 {
        let accept = if round == 1 { Accept::descriptors() } else { Accept::lightweight() };
        rig.accept(listening, accept.count(2)).unwrap();
        for client in &clients[2 * round..2 * round + 2] {
            let done = rig.next();
            let socket = accepted(done.event).socket;
            let is_descriptor = !socket.is_lightweight() || common::is_installed(driver);
            assert!(round != 1 || is_descriptor, "a descriptor was asked for");
            let handle = rig.join(socket);
            if round == 1 && !common::is_installed(driver) {
                common::expect_free_descriptor(&rig.descriptor(handle).unwrap());
            }
            assert_eq!(rig.peer_address(handle).unwrap(), inet(client.local_addr().unwrap()));
        }
    }
}

pub(crate) fn a_cancelled_accept_can_be_asked_again(driver: DriverChoice) {
    for count in [Some(1), Some(2), None] {
        let mut rig = Rig::new(driver);
        let (listener, address) = listener();
        let listening = rig.join(listener);
        let accept = Accept::lightweight();
        rig.accept(listening, count.map_or(accept, |count| accept.count(count))).unwrap();
        rig.flush().unwrap();
        rig.cancel(listening).unwrap();
        // Requested again before the completion of the cancellation is delivered.
        rig.accept(listening, Accept::lightweight().count(1)).unwrap();
        let _client = client(address);
        let (mut cancelled, mut served) = (0, 0);
        while served == 0 || cancelled == 0 {
            let done = rig.next();
            match outcome(&done.event) {
                Ok(_) => served += 1,
                Err(errno) => {
                    assert_eq!(errno, libc::ECANCELED);
                    cancelled += 1;
                }
            }
        }
        assert!(rig.drain().is_empty());
        assert_eq!((cancelled, served), (1, 1));
    }
}

/// Cancels and repeats accepts, sometimes before the cancellation is reported, while clients
/// connect: each connection is delivered once, and each accept has one last completion.
pub(crate) fn accepts_that_come_and_go_lose_no_connection(driver: DriverChoice) {
    const CLIENTS: usize = 300;
    for accept in [Accept::descriptors(), Accept::lightweight()] {
        let mut rig = Rig::new(driver);
        let (listener, address) = listener();
        let listening = rig.join(listener);
        let clients = std::thread::spawn(move || {
            (0..CLIENTS).map(|_| client(address)).collect::<Vec<TcpStream>>()
        });
        let (mut served, mut asked, mut ended) = (Vec::new(), 0, 0);
        let mut round = 0;
        while served.len() < CLIENTS || ended < asked {
            if served.len() < CLIENTS && ended == asked {
                round += 1;
                rig.accept(listening, accept).unwrap();
                asked += 1;
                for _ in 0..round % 4 {
                    take(&mut rig, &mut served, &mut ended);
                }
                rig.cancel(listening).unwrap();
                if round % 3 == 0 {
                    rig.accept(listening, accept).unwrap();
                    rig.cancel(listening).unwrap();
                    asked += 1;
                }
            }
            take(&mut rig, &mut served, &mut ended);
        }
        assert_eq!((served.len(), ended), (CLIENTS, asked), "after {round} rounds");
        drop(clients.join().unwrap());
    }
}

/// Takes the completions that arrive soon.
fn take(rig: &mut Rig, served: &mut Vec<megapipe::Accepted>, ended: &mut usize) {
    let Some(done) = rig.dispatch(Duration::from_millis(1)).unwrap() else { return };
    *ended += usize::from(!done.more);
    match done.event {
        Event::Accept(Ok(accepted)) => served.push(accepted),
        event => assert_eq!(outcome(&event), Err(libc::ECANCELED)),
    }
}

pub(crate) fn an_accept_that_was_served_is_cancelled(driver: DriverChoice) {
    for count in [Some(1), Some(3), None] {
        let mut rig = Rig::new(driver);
        let (listener, address) = listener();
        let listening = rig.join(listener);
        let (waker, source) = megapipe::wake_pair().unwrap();
        let waking = rig.join(source);
        waker.wake();
        let mut ours = client(address);
        rig.watch(waking, Repeat::Once).unwrap();
        let accept = Accept::lightweight();
        rig.accept(listening, count.map_or(accept, |count| accept.count(count))).unwrap();
        // Both complete at once; the connection has arrived when the accept is cancelled, and is
        // delivered or not.
        let (mut sockets, mut over) = (Vec::new(), false);
        loop {
            let done = rig.next();
            if done.handle == waking {
                assert_eq!(outcome(&done.event), Ok(1));
                break;
            }
            sockets.push(accepted(done.event).socket);
            over = !done.more;
        }
        rig.cancel(listening).unwrap();
        while !over {
            let done = rig.next();
            match done.event {
                Event::Accept(Ok(accepted)) => {
                    sockets.push(accepted.socket);
                }
                event => {
                    assert_eq!(outcome(&event), Err(libc::ECANCELED));
                    assert!(!done.more);
                }
            }
            over = !done.more;
        }
        assert!(rig.drain().is_empty());
        // Whichever came first, the connection is not lost.
        if sockets.is_empty() {
            rig.accept(listening, Accept::lightweight().count(1)).unwrap();
            sockets.push(accepted(rig.last(listening)).socket);
        }
        let handle = rig.join(sockets.remove(0));
        talk(&mut rig, handle, &mut ours);
    }
}

/// Returns the connections that a former listener has left, in the channel or in the kernel's
/// queue.
fn left_behind(rig: &mut Rig, listening: megapipe::Handle) -> Vec<megapipe::Handle> {
    let remains = rig.unregister(listening).unwrap();
    let listener = TcpListener::from(remains.descriptor.expect("the listener"));
    listener.set_nonblocking(true).unwrap();
    let mut handles = Vec::new();
    for socket in remains.connections {
        handles.push(rig.join(socket));
    }
    while let Ok((stream, _)) = listener.accept() {
        handles.push(rig.join(stream));
    }
    handles
}

pub(crate) fn a_listener_gives_back_what_it_accepted(driver: DriverChoice) {
    for accept in [Accept::descriptors(), Accept::lightweight(), Accept::lightweight().count(2)] {
        let mut rig = Rig::new(driver);
        let (listener, address) = listener();
        let listening = rig.join(listener);
        let clients: Vec<TcpStream> = (0..6).map(|_| client(address)).collect();
        rig.accept(listening, accept).unwrap();
        let first = accepted(rig.another(listening)).socket;
        let mut handles = vec![rig.join(first)];
        handles.extend(left_behind(&mut rig, listening));
        assert!(rig.drain().is_empty(), "a completion of an unregistered listener");
        assert_eq!(handles.len(), clients.len());
        for mut client in clients {
            client.write_all(b"x").unwrap();
        }
        for handle in handles {
            rig.read(handle, Vec::with_capacity(2)).unwrap();
            assert_eq!(read_of(rig.last(handle)), b"x");
        }
    }
}

pub(crate) fn a_listener_gives_back_what_came_in_mid_call(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (listener, address) = listener();
    let listening = rig.join(listener);
    let mut first = client(address);
    rig.accept(listening, Accept::lightweight().count(1)).unwrap();
    let socket = accepted(rig.last(listening)).socket;
    let handle = rig.join(socket);
    rig.receive(handle, Repeat::Once).unwrap();
    first.write_all(b"hello").unwrap();
    // A synchronous call on the socket finds the completion of the message, too.
    rig.set_nodelay(handle, true).unwrap();
    let _clients: Vec<TcpStream> = (0..3).map(|_| client(address)).collect();
    rig.accept(listening, Accept::lightweight()).unwrap();
    rig.flush().unwrap();
    assert_eq!(left_behind(&mut rig, listening).len(), 3);
    assert_eq!(&*received(rig.last(handle)), b"hello");
}

pub(crate) fn a_closed_listener_refuses(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (listener, address, _port) = common::lasting_listener();
    let listening = rig.join(listener);
    rig.accept(listening, Accept::lightweight()).unwrap();
    let mut waiting: Vec<TcpStream> = (0..3).map(|_| client(address)).collect();
    rig.flush().unwrap();
    rig.close(listening).unwrap();
    assert!(matches!(rig.last(listening), Event::Close(Ok(()))));
    assert!(rig.drain().is_empty());
    let error = TcpStream::connect(address).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ECONNREFUSED));
    // Clients whose connections were never delivered see an end or a reset.
    for client in &mut waiting {
        common::expect_gone(client);
    }
}

pub(crate) fn an_unregistered_listener_goes_on_without_the_channel(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (listener, address) = listener();
    let listening = rig.join(listener);
    rig.accept(listening, Accept::descriptors()).unwrap();
    let mut early = client(address);
    let socket = accepted(rig.another(listening)).socket;
    let handle = rig.join(socket);
    let remains = rig.unregister(listening).unwrap();
    assert!(remains.connections.is_empty());
    let listener = TcpListener::from(remains.descriptor.unwrap());
    // The channel has no accept any more that takes connections.
    for _ in 0..20 {
        let client = client(address);
        let (theirs, peer) = listener.accept().unwrap();
        assert_eq!(peer, client.local_addr().unwrap());
        drop(theirs);
    }
    assert!(rig.drain().is_empty());
    talk(&mut rig, handle, &mut early);
}

pub(crate) fn options_are_inherited_from_the_listener(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (listener, address) = listener();
    let listening = rig.join(listener);
    rig.set_nodelay(listening, true).unwrap();
    rig.set_linger(listening, Some(Duration::ZERO)).unwrap();
    rig.accept(listening, Accept::lightweight()).unwrap();
    let mut ours = client(address);
    let socket = accepted(rig.another(listening)).socket;
    let handle = rig.join(socket);
    let mut value = [0; 4];
    rig.socket_option(handle, libc::IPPROTO_TCP, libc::TCP_NODELAY, &mut value).unwrap();
    assert_ne!(value, [0; 4]);
    rig.close(handle).unwrap();
    assert_eq!(outcome(&rig.last(handle)), Ok(0));
    common::expect_reset(&mut ours);
}
