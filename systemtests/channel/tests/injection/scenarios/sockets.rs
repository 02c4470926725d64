//! Scenarios of datagrams, connects, polls, options and addresses.

use crate::common::{client, peer_listener, udp, unix_pair};
use crate::layer::shared;
use crate::stage::{Stage, TIME_LIMIT, errno_of};
use megapipe::{Accept, Address, Channel, Ecn, Error, Event, Handle, Message, Repeat};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::Duration;
use testkit::retried;

/// Receives datagrams one by one and repeatedly, and answers them.
pub(crate) fn datagrams(stage: &mut Stage) {
    let (ours, our_address) = udp("127.0.0.1");
    let (theirs, address) = udp("127.0.0.1");
    let handle = stage.join(|| theirs.try_clone().expect("a duplicate"));
    for number in 0..2_u8 {
        ours.send_to(&[number; 10], address).expect("send");
        let receive = |channel: &mut Channel<u64>| channel.receive_from(handle, Repeat::Once);
        match stage.ask("receive_from", handle, receive) {
            Event::ReceiveFrom(Ok(datagram)) => {
                assert_eq!(&*datagram, &[number; 10]);
                assert_eq!(datagram.address().expect("an address"), Address::Inet(our_address));
            }
            other => panic!("expected a datagram: {other:?}"),
        }
    }
    let mut is_filed = false;
    for number in 0..6_u8 {
        ours.send_to(&[number; 20], address).expect("send");
        loop {
            if !is_filed {
                let repeat = Repeat::UntilCancelled;
                stage.call("receive_from", |channel| channel.receive_from(handle, repeat));
            }
            let done = stage.next_for(handle);
            is_filed = done.more;
            match done.event {
                Event::ReceiveFrom(Ok(datagram)) => break assert_eq!(&*datagram, &[number; 20]),
                event => stage.excuse("receive_from", errno_of(&event).expect("an error")),
            }
        }
    }
    for number in 0..2_u8 {
        answer(stage, handle, &ours, our_address, number);
    }
    let remains = stage.unregister(handle);
    assert!(remains.descriptor.is_some());
}

fn answer(
    stage: &mut Stage,
    handle: Handle,
    ours: &UdpSocket,
    address: std::net::SocketAddr,
    number: u8,
) {
    let send =
        |channel: &mut Channel<u64>| Ok(channel.send_to(handle, vec![number; 30], address)?);
    let is_receive = |event: &Event| matches!(event, Event::ReceiveFrom(_));
    loop {
        stage.call("send_to", send);
        let event = loop {
            let done = stage.next_for(handle);
            if !is_receive(&done.event) {
                break done.event;
            }
        };
        match event {
            Event::SendTo(Ok(30), _) => break,
            event => stage.excuse("send_to", errno_of(&event).expect("an error")),
        }
    }
    let mut found = [0; 64];
    let count = loop {
        match ours.recv(&mut found) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            received => break received.expect("the answer"),
        }
    };
    assert_eq!(&found[..count], &[number; 30]);
}

/// Sends descriptors over a UNIX socket, and answers a datagram from the address that received it.
pub(crate) fn messages(stage: &mut Stage) {
    let (ours, theirs) = unix_pair();
    let from = stage.join(|| ours.try_clone().expect("a duplicate"));
    let to = stage.join(|| theirs.try_clone().expect("a duplicate"));
    for count in 1..3 {
        let send = |channel: &mut Channel<u64>| {
            let mut message = Message::new(vec![count; 10]);
            for _ in 0..count {
                let duplicate = ours.try_clone();
                let failed = |source| Error::System { call: "a duplicate", source };
                message = message.with_descriptor(duplicate.map_err(failed)?);
            }
            Ok(channel.send_message(from, message)?)
        };
        let Event::SendMessage(Ok(10), sent) = stage.ask("send_message", from, send) else {
            panic!("expected a message that is sent")
        };
        assert_eq!(sent.descriptors().len(), usize::from(count));
        let receive = |channel: &mut Channel<u64>| {
            let message = Message::with_capacity(99).room_for_descriptors(2);
            Ok(channel.receive_message(to, message)?)
        };
        let Event::ReceiveMessage(Ok(10), found) = stage.ask("receive_message", to, receive) else {
            panic!("expected a message that was received")
        };
        assert_eq!((found.bytes(), found.descriptors().len()), (&[count; 10][..], count.into()));
    }
    let (client, _) = udp("127.0.0.1");
    let (theirs, address) = udp("0.0.0.0");
    let server = stage.join(|| theirs.try_clone().expect("a duplicate"));
    stage.call("enable_packet_info", |channel| channel.enable_packet_info(server));
    stage.call("enable_ecn", |channel| channel.enable_ecn(server));
    stage.call("enable_gro", |channel| channel.enable_gro(server));
    client.send_to(b"question", ("127.0.0.2", address.port())).expect("send");
    let receive = |channel: &mut Channel<u64>| {
        Ok(channel.receive_message(server, Message::with_capacity(99))?)
    };
    let Event::ReceiveMessage(Ok(8), question) = stage.ask("receive_message", server, receive)
    else {
        panic!("expected a datagram")
    };
    assert_eq!(question.ecn(), Some(Ecn::NotEct));
    let send = |channel: &mut Channel<u64>| {
        let answer = question.reply("answer").with_segment_size(3).with_ecn(Ecn::Ect0);
        Ok(channel.send_message(server, answer)?)
    };
    let event = stage.ask("send_message", server, send);
    assert!(matches!(event, Event::SendMessage(Ok(6), _)), "{event:?}");
    for _ in 0..2 {
        let (bytes, from_where) = retried(|| client.recv_from(&mut [0; 9])).expect("the answer");
        assert_eq!((bytes, from_where.ip().to_string().as_str()), (3, "127.0.0.2"));
    }
}

/// Connects over TCP and UNIX, and exchanges a message.
pub(crate) fn connect(stage: &mut Stage) {
    let (listener, address) = peer_listener();
    let socket = || {
        // SAFETY: the call takes no pointers, and the descriptor has no other owner.
        unsafe {
            let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
            let fd = libc::socket(libc::AF_INET, kind, 0);
            assert!(fd >= 0, "socket: {}", std::io::Error::last_os_error());
            <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd)
        }
    };
    let handle = stage.join(socket);
    let file = |channel: &mut Channel<u64>| channel.connect(handle, address);
    let event = stage.ask("connect", handle, file);
    assert!(matches!(event, Event::Connect(Ok(()))), "{event:?}");
    let (mut peer, _) = listener.accept().expect("accept");
    peer.write_all(b"welcome").expect("write");
    assert_eq!(stage.receive(handle, 7), b"welcome");
    stage.write(handle, b"thanks");
    let mut found = [0; 6];
    peer.read_exact(&mut found).expect("read");
    assert_eq!(&found, b"thanks");
    drop(peer);
    stage.receive_end(handle);
    stage.close(handle);
}

/// Connects with sockets of the channel, which end with their handles.
pub(crate) fn connect_to(stage: &mut Stage) {
    let (listener, address) = peer_listener();
    for closes in [true, false] {
        let handle = stage.call("connect_to", |channel| channel.connect_to(address, 0));
        loop {
            match stage.next_for(handle).event {
                Event::Connect(Ok(())) => break,
                event => stage.excuse("connect_to", errno_of(&event).expect("an error")),
            }
            stage.call("connect", |channel| channel.connect(handle, address));
        }
        let (mut peer, _) = listener.accept().expect("accept");
        peer.write_all(b"welcome").expect("write");
        assert_eq!(stage.receive(handle, 7), b"welcome");
        stage.write(handle, b"thanks");
        let mut found = [0; 6];
        peer.read_exact(&mut found).expect("read");
        assert_eq!(&found, b"thanks");
        if closes {
            stage.close(handle);
        } else {
            assert!(stage.unregister(handle).descriptor.is_none());
            stage.call("flush", Channel::flush);
        }
        peer.set_read_timeout(Some(TIME_LIMIT)).expect("time-out");
        crate::common::expect_end(&mut peer);
    }
}

/// Waits for readiness, once and repeatedly.
pub(crate) fn polls(stage: &mut Stage) {
    let (mut ours, theirs) = unix_pair();
    let mut reader = theirs.try_clone().expect("a duplicate");
    let handle = stage.join(|| theirs.try_clone().expect("a duplicate"));
    drop(theirs);
    stage.call("poll", |channel| channel.poll(handle, libc::POLLIN as u32, Repeat::Once));
    stage.call("flush", Channel::flush);
    ours.write_all(b"x").expect("write");
    poll_ends(stage, handle, Repeat::Once);
    reader.read_exact(&mut [0; 1]).expect("read");
    let repeat = Repeat::UntilCancelled;
    stage.call("poll", |channel| channel.poll(handle, libc::POLLIN as u32, repeat));
    stage.call("flush", Channel::flush);
    stage.note_repeating(handle);
    for _ in 0..2 {
        ours.write_all(b"y").expect("write");
        poll_ends(stage, handle, repeat);
        reader.read_exact(&mut [0; 1]).expect("read");
    }
    stage.cancel(handle);
    drop(reader);
    drop(stage.unregister(handle));
}

/// Checks that a poll reports readable data; submits it again after the injected failure.
fn poll_ends(stage: &mut Stage, handle: Handle, repeat: Repeat) {
    loop {
        let done = stage.next_for(handle);
        match done.event {
            Event::Poll(Ok(events)) => {
                assert_eq!(done.more, repeat == Repeat::UntilCancelled);
                return assert_ne!(events & libc::POLLIN as u32, 0);
            }
            event => stage.excuse("poll", errno_of(&event).expect("an error")),
        }
        stage.call("poll", |channel| channel.poll(handle, libc::POLLIN as u32, repeat));
    }
}

/// Tests options, peer address and descriptor of a lightweight socket and of a regular one.
pub(crate) fn options(stage: &mut Stage) {
    let (listening, address, _listener) = stage.listen();
    let (mut ours, lightweight) = stage.serve(listening, address, Accept::lightweight());
    stage.cancel(listening);
    use_options(stage, &ours, lightweight);
    let mut descriptor: TcpStream =
        stage.call("descriptor", |channel| channel.descriptor(lightweight)).into();
    descriptor.write_all(b"from the descriptor").expect("write");
    drop(descriptor);
    let mut found = [0; 19];
    ours.read_exact(&mut found).expect("read");
    assert_eq!(&found, b"from the descriptor");
    ours.write_all(b"still").expect("write");
    assert_eq!(stage.receive(lightweight, 5), b"still");
    let (own, regular) = regular_pair(stage);
    use_options(stage, &own, regular);
    stage.close(lightweight);
    stage.close(regular);
    stage.close(listening);
}

fn regular_pair(stage: &mut Stage) -> (TcpStream, Handle) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let ours = client(listener.local_addr().expect("address"));
    let (theirs, _) = listener.accept().expect("accept");
    let handle = stage.join(|| theirs.try_clone().expect("a duplicate"));
    (ours, handle)
}

fn use_options(stage: &mut Stage, peer: &TcpStream, handle: Handle) {
    let (off, on) = (0_i32.to_ne_bytes(), 1_i32.to_ne_bytes());
    let nodelay = (libc::IPPROTO_TCP, libc::TCP_NODELAY);
    set(stage, handle, nodelay, &off, |channel| channel.set_nodelay(handle, true));
    let linger = (libc::SOL_SOCKET, libc::SO_LINGER);
    let five = [1_i32.to_ne_bytes(), 5_i32.to_ne_bytes()].concat();
    let time = Some(Duration::from_secs(5));
    set(stage, handle, linger, &[0; 8], |channel| channel.set_linger(handle, time));
    assert_eq!(get(stage, handle, linger, 8), five);
    set(stage, handle, linger, &five, |channel| channel.set_linger(handle, None));
    assert_eq!(get(stage, handle, nodelay, 4), on);
    let expected = Address::Inet(peer.local_addr().expect("address"));
    let found = stage.call("peer_address", |channel| channel.peer_address(handle));
    assert_eq!(found, expected);
    let file = |channel: &mut Channel<u64>| channel.request_peer_address(handle);
    match stage.ask("request_peer_address", handle, file) {
        Event::PeerAddress(Ok(found)) => assert_eq!(found, expected),
        other => panic!("expected {expected:?}: {other:?}"),
    }
}

/// Sets an option; if that fails, the option keeps its former value, also after later calls.
fn set(
    stage: &mut Stage,
    handle: Handle,
    option: (i32, i32),
    before: &[u8],
    mut call: impl FnMut(&mut Channel<u64>) -> megapipe::Result<()>,
) {
    while stage.call_once("set_socket_option", &mut call).is_none() {
        let found = get(stage, handle, option, before.len());
        assert_eq!(found, before, "a call that failed has set the option all the same");
    }
}

/// Reads an option. Each try has a buffer of its own, which is freed if the try fails, so that a
/// later write of the kernel to it is detected.
fn get(stage: &mut Stage, handle: Handle, option: (i32, i32), bytes: usize) -> Vec<u8> {
    let (level, name) = option;
    let mut found = Vec::new();
    stage.call("socket_option", |channel| {
        let mut value = vec![0; bytes];
        let count = channel.socket_option(handle, level, name, &mut value)?;
        assert_eq!(count, bytes, "{:?}", shared().fault());
        found = value;
        Ok(())
    });
    found
}
