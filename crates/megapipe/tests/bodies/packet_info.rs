//! Tests datagrams with the address and the interface of this host.

use crate::common::descriptors::{exchange, got, pair_of, sent, set};
use crate::common::{Rig, inet, outcome, udp};
use megapipe::{DriverChoice, Error, Event, Handle, Message, PacketInfo};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use testkit::retried;

/// Binds a server to all addresses of a family, with packet information; returns its port, too.
fn server(rig: &mut Rig, all: &str) -> (Handle, u16) {
    let (socket, address) = udp(all);
    let handle = rig.join(socket);
    rig.enable_packet_info(handle).unwrap();
    (handle, address.port())
}

fn info(local: &str, interface: u32) -> Option<PacketInfo> {
    Some(PacketInfo { local: local.parse().unwrap(), interface })
}

/// Returns the index of the loopback interface.
fn loopback() -> u32 {
    // SAFETY: the name ends with a zero byte.
    unsafe { libc::if_nametoindex(c"lo".as_ptr()) }
}

fn ask(rig: &mut Rig, handle: Handle, client: &UdpSocket, to: SocketAddr) -> Message {
    rig.receive_message(handle, Message::with_capacity(100)).unwrap();
    client.send_to(b"question", to).unwrap();
    let message = got(rig.last(handle));
    assert_eq!(message.bytes(), b"question");
    message
}

/// Returns the bytes that a client receives, and their sender.
#[track_caller]
fn answer(client: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut found = vec![0; 100];
    let (bytes, from) = retried(|| client.recv_from(&mut found)).unwrap();
    found.truncate(bytes);
    (found, from)
}

/// A server on all addresses answers from the address to which the request was sent.
pub(crate) fn answers_leave_from_the_address_that_was_asked(driver: DriverChoice) {
    for (all, own, asked) in [
        ("0.0.0.0", "127.0.0.1", ["127.0.0.2", "127.0.0.3", "127.0.0.1"]),
        ("::", "::1", ["::1", "::1", "::1"]),
        ("::", "127.0.0.1", ["127.0.0.2", "127.0.0.3", "127.0.0.1"]),
    ] {
        let mut rig = Rig::new(driver);
        let (handle, port) = server(&mut rig, all);
        let (client, client_address) = udp(own);
        for ip in asked {
            let to = SocketAddr::new(ip.parse().unwrap(), port);
            let message = ask(&mut rig, handle, &client, to);
            // A socket of both families reports IPv4 addresses as mapped ones.
            let seen = |ip: IpAddr| match ip {
                IpAddr::V4(ip) if all == "::" => ip.to_ipv6_mapped().into(),
                ip => ip,
            };
            let local = seen(to.ip()).to_string();
            assert_eq!(message.packet_info(), info(&local, loopback()));
            let sender = SocketAddr::new(seen(client_address.ip()), client_address.port());
            assert_eq!(message.address(), Some(&inet(sender)));
            rig.send_message(handle, message.reply("answer")).unwrap();
            sent(rig.last(handle), 6);
            assert_eq!(answer(&client), (b"answer".to_vec(), to));
            // The unchanged message returns to its sender, too.
            rig.send_message(handle, message).unwrap();
            sent(rig.last(handle), 8);
            assert_eq!(answer(&client), (b"question".to_vec(), to));
        }
    }
}

/// For a broadcast the kernel reports the address from which to answer.
pub(crate) fn a_broadcast_is_answered_from_an_own_address(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (handle, port) = server(&mut rig, "0.0.0.0");
    let (client, _) = udp("127.0.0.1");
    client.set_broadcast(true).unwrap();
    let to = SocketAddr::new("127.255.255.255".parse().unwrap(), port);
    let message = ask(&mut rig, handle, &client, to);
    assert_eq!(message.packet_info(), info("127.0.0.1", loopback()));
    rig.send_message(handle, message.reply("answer")).unwrap();
    sent(rig.last(handle), 6);
    assert_eq!(answer(&client).1, SocketAddr::new("127.0.0.1".parse().unwrap(), port));
}

/// Without the option no packet information is reported, and the routes choose the source.
pub(crate) fn without_the_option_there_is_no_packet_info(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (socket, address) = udp("0.0.0.0");
    let handle = rig.join(socket);
    let (client, client_address) = udp("127.0.0.1");
    let to = SocketAddr::new("127.0.0.2".parse().unwrap(), address.port());
    let message = ask(&mut rig, handle, &client, to);
    assert_eq!((message.packet_info(), message.address()), (None, Some(&inet(client_address))));
    rig.send_message(handle, message.reply("answer")).unwrap();
    sent(rig.last(handle), 6);
    assert_eq!(answer(&client).1.ip().to_string(), "127.0.0.1");
}

/// Without a request first: from an address of this host, over an interface.
pub(crate) fn the_source_of_a_datagram_is_chosen(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    for (all, own, local, expected) in [
        ("0.0.0.0", "127.0.0.1", "127.0.0.7", "127.0.0.7"),
        ("0.0.0.0", "127.0.0.1", "::ffff:127.0.0.7", "127.0.0.7"),
        ("0.0.0.0", "127.0.0.1", "0.0.0.0", "127.0.0.1"),
        ("::", "::1", "::1", "::1"),
        ("::", "::1", "::", "::1"),
        ("::", "::ffff:127.0.0.1", "127.0.0.7", "127.0.0.7"),
    ] {
        let (client, client_address) = udp(&own.replace("::ffff:", ""));
        let to = SocketAddr::new(own.parse().unwrap(), client_address.port());
        for interface in [0, loopback()] {
            let (socket, address) = udp(all);
            let handle = rig.join(socket);
            let info = info(local, interface).unwrap();
            let message = Message::new("here").to(to).with_packet_info(info);
            rig.send_message(handle, message).unwrap();
            assert_eq!(sent(rig.last(handle), 4).packet_info(), Some(info));
            let from = SocketAddr::new(expected.parse().unwrap(), address.port());
            assert_eq!(answer(&client), (b"here".to_vec(), from), "{all} {local} {interface}");
        }
    }
}

/// A source that the socket cannot have is an error, and is never ignored.
pub(crate) fn a_source_that_cannot_be_is_refused(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (_client, to) = udp("127.0.0.1");
    let handle = rig.join(udp("0.0.0.0").0);
    let message = |local, interface| {
        Message::new("x").to(to).with_packet_info(info(local, interface).unwrap())
    };
    // An address of another host, and an interface that does not exist.
    rig.send_message(handle, message("192.0.2.1", 0)).unwrap();
    let refusals = [libc::EINVAL, libc::ENETUNREACH, libc::ENODEV];
    let failed = outcome(&rig.last(handle)).unwrap_err();
    assert!(refusals.contains(&failed), "{failed}");
    rig.send_message(handle, message("127.0.0.1", u32::MAX >> 1)).unwrap();
    let failed = outcome(&rig.last(handle)).unwrap_err();
    assert!(refusals.contains(&failed), "{failed}");
    let rejected = rig.send_message(handle, message("::1", 0)).unwrap_err();
    assert!(rejected.to_string().contains("IPv6"), "{rejected}");
    assert_eq!((rejected.buffer.bytes(), rejected.buffer.address()), (&b"x"[..], Some(&inet(to))));
    // An address of another family than the destination's.
    let six = rig.join(udp("::").0);
    let (_client, to) = udp("::1");
    let message = Message::new("x").to(to).with_packet_info(info("127.0.0.1", 0).unwrap());
    rig.send_message(six, message).unwrap();
    let failed = outcome(&rig.last(six)).unwrap_err();
    assert!(refusals.contains(&failed), "{failed}");
    // On sources that have no packet information.
    let (_peer, tcp) = rig.tcp_pair();
    let unix = rig.join(UnixDatagram::unbound().unwrap());
    for handle in [tcp, unix] {
        let message = Message::new("x").with_packet_info(info("127.0.0.1", 0).unwrap());
        let rejected = rig.send_message(handle, message).unwrap_err();
        assert!(rejected.to_string().contains("UDP"), "{rejected}");
        let refused = rig.enable_packet_info(handle).unwrap_err();
        let is_told = matches!(refused, Error::Invalid(_) | Error::WrongKind { .. });
        assert!(is_told, "{refused}");
    }
}

/// Datagrams keep their bounds and have their sender, with and without room for all bytes.
pub(crate) fn cut_datagrams_are_told(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (handle, port) = server(&mut rig, "0.0.0.0");
    let (client, client_address) = udp("127.0.0.1");
    for (bytes, expected) in [(3, Err(libc::EMSGSIZE)), (4, Ok(4)), (0, Ok(0))] {
        rig.receive_message(handle, Message::with_capacity(bytes.max(1))).unwrap();
        let message: &[u8] = if bytes == 0 { b"" } else { b"four" };
        client.send_to(message, ("127.0.0.9", port)).unwrap();
        let event = rig.last(handle);
        assert_eq!(outcome(&event), expected);
        let Event::ReceiveMessage(_, found) = event else { panic!() };
        assert_eq!(found.bytes(), &message[..bytes.min(4)]);
        assert_eq!(found.address(), Some(&inet(client_address)));
        assert_eq!(found.packet_info(), info("127.0.0.9", loopback()));
    }
}

/// UNIX datagrams have the name of their sender; answers without a name go over the connection.
pub(crate) fn unix_datagrams_are_answered(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let directory = tempfile::tempdir().unwrap();
    let paths = ["one", "two"].map(|name| directory.path().join(name));
    let handles = paths.each_ref().map(|path| rig.join(UnixDatagram::bind(path).unwrap()));
    let messages = [Message::new("hello").to(paths[1].as_path()), Message::with_capacity(9)];
    let [_, receive] = exchange(&mut rig, handles[0], handles[1], messages);
    let message = got(receive.event);
    assert_eq!(message.address(), Some(&paths[0].as_path().into()));
    let messages = [message.reply("back"), Message::with_capacity(9)];
    let [_, receive] = exchange(&mut rig, handles[1], handles[0], messages);
    assert_eq!(got(receive.event).bytes(), b"back");
    let (ours, theirs) = pair_of(libc::SOCK_DGRAM);
    let (here, there) = (rig.join(ours), rig.join(theirs));
    let messages = [Message::new("hello"), Message::with_capacity(9)];
    let [_, receive] = exchange(&mut rig, here, there, messages);
    let message = got(receive.event);
    assert_eq!(message.address(), None);
    let messages = [message.reply("back"), Message::with_capacity(9)];
    let [_, receive] = exchange(&mut rig, there, here, messages);
    assert_eq!(got(receive.event).bytes(), b"back");
}

/// Other ancillary data, such as a time or the hop limit, does not hide the packet information.
pub(crate) fn packet_info_is_found_among_others(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (socket, address) = udp("0.0.0.0");
    for (level, name) in [
        (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS),
        (libc::SOL_SOCKET, libc::SO_RXQ_OVFL),
        (libc::IPPROTO_IP, libc::IP_RECVTOS),
        (libc::IPPROTO_IP, libc::IP_RECVTTL),
        (libc::IPPROTO_IP, libc::IP_RECVORIGDSTADDR),
        (libc::IPPROTO_UDP, libc::UDP_GRO),
    ] {
        set(&socket, level, name, 1);
    }
    let handle = rig.join(socket);
    rig.enable_packet_info(handle).unwrap();
    let (client, _) = udp("127.0.0.1");
    let to = SocketAddr::new("127.0.0.5".parse().unwrap(), address.port());
    let message = ask(&mut rig, handle, &client, to);
    assert_eq!(message.packet_info(), info("127.0.0.5", loopback()));
}
