//! Tests the differences between channels over the stack and over the kernel, which `mtcp::driver`
//! documents: the tests of the suite that cannot run, and those that replace them.

use crate::common::{
    Rig, TIME_LIMIT, accepted, client, expect_end, listener, memory_file, outcome, received,
    written,
};
use crate::test_addresses::{KERNEL, STACK, channel, provide, start, within};
use crate::{accept, close, handles, lifecycle, looks, outgoing, stuck};
use megapipe::{
    Accept, Channel, CpuSet, DriverChoice, DriverKind, Error, Event, Handle, Kind, Message, Repeat,
    Transfer,
};
use mtcp::config::Mode;
use mtcp::driver::{Engines, NAME};
use mtcp::{Config, Family, Mtcp};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use testkit::Namespace;

/// A test of the suite, the reason why it does not run, and the test that replaces it.
type Difference = (fn(DriverChoice), &'static str, fn());

/// All differences. If a test of the suite is neither here nor in the suite's run, the compiler
/// warns about an unused function.
const DIFFERENCES: [Difference; 9] = [
    (
        accept::a_lightweight_socket_becomes_a_descriptor,
        "a connection of the stack's has no descriptor",
        connections_have_no_descriptor,
    ),
    (
        accept::descriptors_are_the_applications,
        "a connection of the stack's has no descriptor",
        an_accept_of_descriptors_brings_connections_all_the_same,
    ),
    (
        accept::an_unregistered_listener_goes_on_without_the_channel,
        "the descriptor that comes back is the kernel's listener",
        an_unregistered_listener_goes_on_in_the_kernel_alone,
    ),
    (
        lifecycle::an_unregistered_stream_goes_on_without_the_channel,
        "the stack's end of a connection is in the channel and nowhere else",
        an_unregistered_connection_ends,
    ),
    (
        handles::the_report_names_the_driver,
        "it compares with the names of the built-in drivers",
        the_report_names_both_drivers,
    ),
    (
        close::a_second_descriptor_keeps_its_input,
        "a connection of the stack's has no descriptor",
        connections_have_no_descriptor,
    ),
    (
        outgoing::a_descriptor_of_it_does_not_block,
        "a connection of the stack's has no descriptor",
        connections_have_no_descriptor,
    ),
    (
        looks::what_follows_is_sent_with_what_was_written,
        "the stack sends at once what is announced to be followed",
        what_is_followed_is_sent_at_once,
    ),
    (
        stuck::a_duplicate_of_a_listener_keeps_its_accepts,
        "a port on which the channel listens already is the kernel's alone",
        a_second_handle_of_a_listener_is_the_kernels,
    ),
];

#[test]
fn each_difference_is_tested() {
    for (_, reason, instead) in DIFFERENCES {
        println!("{reason}");
        instead();
    }
}

fn errno(error: &Error) -> Option<i32> {
    match error {
        Error::System { source, .. } => source.raw_os_error(),
        _ => None,
    }
}

fn connections_have_no_descriptor() {
    within(|driver| {
        let mut rig = Rig::new(driver);
        let (mut ours, handle) = rig.tcp_pair();
        let error = rig.descriptor(handle).unwrap_err();
        assert_eq!(errno(&error), Some(libc::EOPNOTSUPP), "{error}");
        // The connection still works.
        rig.write(handle, b"still here").unwrap();
        assert_eq!(written(rig.last(handle)).len(), 10);
        let mut found = [0; 10];
        ours.read_exact(&mut found).unwrap();
        assert_eq!(&found, b"still here");
    });
}

fn an_accept_of_descriptors_brings_connections_all_the_same() {
    within(|driver| {
        let mut rig = Rig::new(driver);
        let (listener, address) = listener();
        let listening = rig.join(listener);
        rig.accept(listening, Accept::descriptors().count(1)).unwrap();
        let mut ours = client(address);
        let socket = accepted(rig.last(listening)).socket;
        assert!(socket.lightweight_number().is_some());
        let socket = socket.into_descriptor().expect_err("there is none");
        let handle = rig.join(socket);
        ours.write_all(b"ping").unwrap();
        rig.receive(handle, Repeat::Once).unwrap();
        assert_eq!(&*received(rig.last(handle)), b"ping");
    });
}

fn an_unregistered_listener_goes_on_in_the_kernel_alone() {
    within(|driver| {
        let mut rig = Rig::new(driver);
        let (listener, address) = listener();
        let listening = rig.join(listener);
        let mut early = client(address);
        let remains = rig.unregister(listening).unwrap();
        // A connection that waited in the stack is returned and works like any other.
        assert_eq!(remains.connections.len(), 1);
        for socket in remains.connections {
            let handle = rig.join(socket);
            rig.write(handle, b"hello").unwrap();
            assert_eq!(written(rig.last(handle)).len(), 5);
        }
        early.read_exact(&mut [0; 5]).unwrap();
        rig.flush().unwrap();
        let refused = TcpStream::connect(address).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ECONNREFUSED));
        let listener = TcpListener::from(remains.descriptor.expect("the kernel's listener"));
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, address.port()));
        let _client = TcpStream::connect(local).unwrap();
        listener.accept().unwrap();
    });
}

fn an_unregistered_connection_ends() {
    within(|driver| {
        let mut rig = Rig::new(driver);
        let (mut ours, handle) = rig.tcp_pair();
        rig.write(handle, b"the last words").unwrap();
        assert_eq!(written(rig.last(handle)).len(), 14);
        assert!(rig.unregister(handle).unwrap().descriptor.is_none());
        rig.flush().unwrap();
        let mut found = Vec::new();
        ours.read_to_end(&mut found).unwrap();
        assert_eq!(found, b"the last words");
    });
}

fn a_second_handle_of_a_listener_is_the_kernels() {
    within(|driver| {
        let mut rig = Rig::new(driver);
        let (listener, address) = listener();
        let second = listener.try_clone().unwrap();
        let (first, second) = (rig.join(listener), rig.join(second));
        for handle in [first, second] {
            rig.accept(handle, Accept::lightweight()).unwrap();
        }
        let _ours = client(address);
        accepted(rig.another(first));
        rig.close(first).unwrap();
        assert!(matches!(rig.last(first), Event::Close(Ok(()))));
        let refused = TcpStream::connect(address).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ECONNREFUSED));
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, address.port()));
        let _ours = client(local);
        accepted(rig.another(second));
    });
}

fn what_is_followed_is_sent_at_once() {
    within(|driver| {
        let mut rig = Rig::new(driver);
        let (mut ours, handle) = rig.tcp_pair();
        for part in [b"head", b"body"] {
            rig.write_more(handle, part).unwrap();
            assert_eq!(&*written(rig.last(handle)), part);
            let mut found = [0; 4];
            ours.read_exact(&mut found).unwrap();
            assert_eq!(&found, part);
        }
    });
}

#[test]
fn messages_go_out_without_control_data() {
    within(|driver| {
        let mut rig = Rig::new(driver);
        let (mut ours, handle) = rig.tcp_pair();
        rig.send_message(handle, Message::new("plain")).unwrap();
        assert_eq!(outcome(&rig.last(handle)), Ok(5));
        let mut found = [0; 5];
        ours.read_exact(&mut found).unwrap();
        assert_eq!(&found, b"plain");
        // Descriptors are refused and returned.
        let message = Message::new("x").with_descriptor(memory_file());
        let rejected = rig.send_message(handle, message).unwrap_err();
        assert!(rejected.to_string().contains("UNIX"), "{rejected}");
        assert_eq!(rejected.buffer.descriptors().len(), 1);
        // Other control data is not dropped silently either.
        let mut piece = libc::iovec { iov_base: found.as_mut_ptr().cast(), iov_len: 5 };
        let mut control = [16u64, 0];
        // SAFETY: all-zero bytes are a valid `msghdr`.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        (header.msg_iov, header.msg_iovlen) = (&raw mut piece, 1);
        (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), 16);
        // SAFETY: the memory lives longer than the request, whose completion the test awaits.
        unsafe { rig.transfer(handle, Transfer::SendMessage(&raw const header)) }.unwrap();
        let Event::Transfer(sent) = rig.last(handle) else { panic!() };
        assert_eq!(sent.bytes.unwrap_err().raw_os_error(), Some(libc::EOPNOTSUPP));
        rig.close(handle).unwrap();
        assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
        expect_end(&mut ours);
    });
}

fn the_report_names_both_drivers() {
    within(|driver| {
        let rig = Rig::new(driver);
        let report = rig.driver();
        assert_eq!(report.kind, DriverKind::Installed(NAME));
        assert_eq!(report.kind.to_string(), "mtcp");
        assert!(report.reason.contains("configuration"), "{}", report.reason);
        assert!(report.reason.contains("over uring") || report.reason.contains("over epoll"));
        let named = NAME.parse::<DriverChoice>().unwrap();
        assert_eq!(named, driver);
        let unknown = "mtpc".parse::<DriverChoice>().unwrap_err().to_string();
        assert!(unknown.contains("\"mtpc\"") && unknown.contains("mtcp"), "{unknown}");
    });
}

#[test]
fn a_listener_takes_connections_of_both_roads() {
    within(|driver| {
        for accept in [Accept::lightweight(), Accept::descriptors()] {
            let mut rig = Rig::new(driver);
            let (listener, address) = listener();
            let listening = rig.join(listener);
            let local = SocketAddr::from((Ipv4Addr::LOCALHOST, address.port()));
            rig.accept(listening, accept).unwrap();
            for round in 0..20u8 {
                let mut ours = client(if round % 2 == 0 { address } else { local });
                let handle = accept_and_join(&mut rig, listening, true);
                serve(&mut rig, handle, &mut ours, round);
            }
            rig.cancel(listening).unwrap();
            assert_eq!(outcome(&rig.last(listening)), Err(libc::ECANCELED));
            // One connection at a time, each of which either side could accept.
            for round in 0..20u8 {
                let mut clients = [client(address), client(local)];
                for _ in 0..2 {
                    rig.accept(listening, accept.count(1)).unwrap();
                    let handle = accept_and_join(&mut rig, listening, false);
                    let peer = rig.peer_address(handle).unwrap().inet().unwrap();
                    let ours = clients
                        .iter_mut()
                        .find(|client| client.local_addr().unwrap() == peer)
                        .expect("one of the two clients");
                    serve(&mut rig, handle, ours, round);
                }
            }
            assert!(rig.drain().is_empty());
        }
    });
}

fn accept_and_join(rig: &mut Rig, listening: Handle, more: bool) -> Handle {
    let event = if more { rig.another(listening) } else { rig.last(listening) };
    let socket = accepted(event).socket;
    rig.join(socket)
}

fn serve(rig: &mut Rig, handle: Handle, ours: &mut TcpStream, byte: u8) {
    ours.write_all(&[byte]).unwrap();
    rig.receive(handle, Repeat::Once).unwrap();
    let lease = received(rig.last(handle));
    assert_eq!(*lease, [byte]);
    rig.write(handle, lease).unwrap();
    written(rig.last(handle));
    let mut back = [0];
    ours.read_exact(&mut back).unwrap();
    assert_eq!(back, [byte]);
    rig.close(handle).unwrap();
    assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
    expect_end(ours);
}

#[test]
fn what_is_not_the_stacks_is_the_kernels() {
    within(|driver| {
        let mut rig = Rig::new(driver);
        // The socket is bound to loopback, so the stack does not listen.
        let local = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = local.local_addr().unwrap();
        let listening = rig.join(local);
        rig.accept(listening, Accept::descriptors().count(1)).unwrap();
        // A connection to it does not use the stack either.
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let handle = rig.join(std::os::fd::OwnedFd::from(socket.unwrap()));
        assert_eq!(rig.kind(handle).unwrap(), Kind::Stream);
        rig.connect(handle, address).unwrap();
        let (mut connected, mut served) = (false, None);
        while !connected || served.is_none() {
            let done = rig.next();
            match done.event {
                Event::Connect(result) => {
                    result.unwrap();
                    connected = true;
                }
                event => served = Some(accepted(event).socket),
            }
        }
        let theirs = served.unwrap().into_descriptor().expect("a descriptor of the kernel's");
        let ours = TcpStream::from(rig.unregister(handle).unwrap().descriptor.unwrap());
        let theirs = TcpStream::from(theirs);
        assert_eq!(ours.peer_addr().unwrap(), theirs.local_addr().unwrap());
    });
}

#[test]
fn options_go_with_a_socket_that_connects() {
    within(|driver| {
        let mut rig = Rig::new(driver);
        let (peer, address) = crate::common::peer_listener();
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.set_tcp_nodelay(true).unwrap();
        let handle = rig.join(std::os::fd::OwnedFd::from(socket));
        rig.set_linger(handle, Some(std::time::Duration::ZERO)).unwrap();
        rig.connect(handle, address).unwrap();
        assert_eq!(outcome(&rig.last(handle)), Ok(0));
        let mut value = [0; 4];
        rig.socket_option(handle, libc::IPPROTO_TCP, libc::TCP_NODELAY, &mut value).unwrap();
        assert_ne!(value, [0; 4]);
        let (mut theirs, _) = peer.accept().unwrap();
        rig.close(handle).unwrap();
        assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
        crate::common::expect_reset(&mut theirs);
    });
}

/// A poll that was submitted before the connect watches the kernel's socket, and then the
/// connection.
#[test]
fn a_poll_from_before_the_connect_goes_on() {
    within(|driver| {
        let mut rig = Rig::new(driver);
        let (peer, address) = crate::common::peer_listener();
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let handle = rig.join(std::os::fd::OwnedFd::from(socket.unwrap()));
        rig.poll(handle, libc::POLLIN as u32, Repeat::UntilCancelled).unwrap();
        rig.flush().unwrap();
        rig.connect(handle, address).unwrap();
        let mut theirs = None;
        let (mut connected, mut told) = (false, false);
        while !told {
            match rig.next().event {
                Event::Connect(result) => {
                    result.unwrap();
                    connected = true;
                    let (mut stream, _) = peer.accept().unwrap();
                    stream.write_all(b"data").unwrap();
                    theirs = Some(stream);
                }
                Event::Poll(events) => {
                    told = events.unwrap() & libc::POLLIN as u32 != 0;
                    assert!(connected || !told, "there was nothing to read before");
                }
                event => panic!("{event:?}"),
            }
        }
        rig.cancel(handle).unwrap();
        let mut last = rig.next();
        while last.more {
            last = rig.next();
        }
        let Event::Poll(Err(error)) = last.event else { panic!("{:?}", last.event) };
        assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
        drop(theirs);
        rig.close(handle).unwrap();
        assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
    });
}

#[test]
fn a_close_lingers_for_data() {
    within(|driver| {
        let mut rig = Rig::new(driver);
        let (mut ours, handle) = rig.tcp_pair();
        rig.set_linger(handle, Some(TIME_LIMIT)).unwrap();
        let bytes = 3 << 20;
        rig.write(handle, vec![7; bytes]).unwrap();
        let reader = std::thread::spawn(move || {
            let mut found = Vec::new();
            ours.read_to_end(&mut found).unwrap();
            found.len()
        });
        assert_eq!(written(rig.last(handle)).len(), bytes);
        rig.close(handle).unwrap();
        assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
        assert_eq!(reader.join().unwrap(), bytes);
    });
}

#[test]
fn a_channel_has_an_engine_and_gives_it_back() {
    within(|_| {
        let first = channel().unwrap();
        let error = channel().unwrap_err();
        assert!(matches!(error, Error::Installed { name: NAME, .. }), "{error:?}");
        assert!(error.to_string().contains("engine.cores"), "{error}");
        drop(first);
        channel().unwrap();
    });
}

/// The data of a dropped channel is with the device, because the process may end directly
/// afterwards.
#[test]
fn what_a_dropped_channel_closes_is_with_the_device() {
    // This call only installs the driver.
    within(|_| {});
    Namespace::new().run(|| {
        let config = |address, mode| {
            let mut config = Config { addresses: vec![(address, 24)], ..Config::default() };
            config.engine.mode = mode;
            config
        };
        let ours = config(STACK[0], Mode::Paired);
        let theirs = config(KERNEL[0], Mode::Complete);
        let (ours, theirs) = Mtcp::pair(ours, theirs, Default::default()).unwrap();
        provide(&Engines::new(ours));
        let mut rig = Rig::new(DriverChoice::Installed(NAME));
        let (listener, address) = listener();
        let listening = rig.join(listener);
        rig.accept(listening, Accept::lightweight().count(1)).unwrap();
        rig.flush().unwrap();
        let mut peer = theirs.context(0).unwrap();
        let socket = peer.socket(Family::V4).unwrap();
        peer.set_nonblocking(socket, true).unwrap();
        peer.connect(socket, address).expect_err("not at once");
        let begin = Instant::now();
        while peer.getpeername(socket).is_err() {
            assert!(begin.elapsed() < TIME_LIMIT, "no connection");
            peer.turn().unwrap();
        }
        let accepted = accepted(rig.last(listening)).socket;
        rig.join(accepted);
        drop(rig);
        // All data that the peer will ever get has arrived.
        peer.turn().unwrap();
        let end = peer.read(socket, &mut [0; 8]).map_err(|error| error.raw_os_error());
        assert!(matches!(end, Ok(0) | Err(Some(libc::ECONNRESET))), "{end:?}");
    });
}

/// Counts the turns of the stack in a fifth of a second after a request for its counters.
fn turns_when_asked(mode: Mode) {
    crate::test_addresses::within_mode(mode, |_| {
        let mut channel = channel().unwrap();
        let asker = std::thread::spawn(|| {
            let name = mtcp::stat::processes().unwrap().remove(0);
            let turns = || mtcp::stat::ask(&name, false).unwrap().cores[0].engine.turns;
            let before = turns();
            std::thread::sleep(Duration::from_millis(200));
            turns() - before
        });
        while !asker.is_finished() {
            assert!(channel.dispatch(Some(Duration::from_millis(50))).unwrap().is_none());
        }
        let turns = asker.join().unwrap();
        assert!(turns < 100, "{turns} turns, and nothing to do");
    });
}

#[test]
fn a_channel_whose_stack_was_asked_sleeps_again() {
    turns_when_asked(Mode::Complete);
    turns_when_asked(Mode::Paired);
}

/// The state that the channels of a shared listener have in common.
struct Shared {
    listener: TcpListener,
    /// Clients that have not been served yet.
    left: AtomicUsize,
    /// Passed when both channels listen.
    begin: Barrier,
}

/// Echoes one message for each connection, until all clients were served.
fn serve_share(mut channel: Channel<u64>, shared: &Shared, cpu: usize) {
    let Shared { listener, left, begin } = shared;
    let listening = channel.register_listener(listener.as_fd(), CpuSet::one(cpu), 0).unwrap();
    channel.accept(listening, Accept::lightweight()).unwrap();
    begin.wait();
    while left.load(Ordering::SeqCst) > 0 {
        let Some(done) = channel.dispatch(std::time::Duration::from_millis(5)).unwrap() else {
            continue;
        };
        match done.event {
            Event::Accept(accepted) => {
                let handle = channel.register(accepted.unwrap().socket, 0).unwrap();
                channel.receive(handle, Repeat::Once).unwrap();
            }
            Event::Receive(lease) => channel.write(done.handle, lease.unwrap()).unwrap(),
            Event::Write(result, _) => {
                result.unwrap();
                channel.close(done.handle).unwrap();
            }
            Event::Close(result) => {
                result.unwrap();
                left.fetch_sub(1, Ordering::SeqCst);
            }
            other => panic!("unexpected {other:?}"),
        }
    }
}

/// Two channels share a listener. Each serves the connections of its core, whatever its CPU.
fn a_shared_listener(mode: Mode) {
    const CLIENTS: usize = 60;
    // This call only installs the driver.
    within(|_| {});
    let namespace = Namespace::new();
    namespace.run(|| {
        let engines = Engines::new(start(&namespace, mode, 2));
        let (listener, address) = listener();
        let (left, begin) = (AtomicUsize::new(CLIENTS), Barrier::new(3));
        let shared = Shared { listener, left, begin };
        std::thread::scope(|scope| {
            for cpu in 0..2 {
                let (engines, shared) = (&engines, &shared);
                scope.spawn(move || {
                    provide(engines);
                    serve_share(channel().unwrap(), shared, cpu);
                });
            }
            // A SYN that arrives before the listeners are ready would be refused.
            shared.begin.wait();
            for number in 0..CLIENTS {
                let mut ours = TcpStream::connect(address).unwrap();
                crate::common::set_time_limit(&ours);
                ours.write_all(&[number as u8]).unwrap();
                let mut found = Vec::new();
                ours.read_to_end(&mut found).unwrap();
                assert_eq!(found, [number as u8]);
            }
        });
        assert_eq!(shared.left.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn a_shared_listener_is_steered_by_hash() {
    a_shared_listener(Mode::Paired);
}

#[test]
fn a_shared_listener_is_steered_by_hash_while_channels_are_called() {
    a_shared_listener(Mode::Complete);
}

/// The packets do not leave the stack: the peer is the stack's address, not the kernel's.
#[test]
fn a_channel_connects_to_the_address_of_its_own_stack() {
    within(|driver| {
        let mut rig = Rig::new(driver);
        let (listener, address) = listener();
        let listening = rig.join(listener);
        rig.accept(listening, Accept::lightweight().count(1)).unwrap();
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let near = rig.join(std::os::fd::OwnedFd::from(socket.unwrap()));
        rig.connect(near, address).unwrap();
        assert_eq!(outcome(&rig.last(near)), Ok(0));
        let socket = accepted(rig.last(listening)).socket;
        let far = rig.join(socket);
        let peer = rig.peer_address(far).unwrap().inet().expect("an address of IP");
        assert_eq!(peer.ip(), STACK[0]);
        rig.write(near, b"ping").unwrap();
        assert_eq!(written(rig.last(near)).len(), 4);
        rig.receive(far, Repeat::Once).unwrap();
        assert_eq!(&*received(rig.last(far)), b"ping");
    });
}
