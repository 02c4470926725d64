//! Tests what the kernel reports and takes with UDP datagrams: segment sizes and ECN marks.

use crate::common::descriptors::{got, sent, set};
use crate::common::{Pattern, Rig, datagram, inet, outcome, udp};
use megapipe::{
    Address, BufferClass, Config, DriverChoice, Ecn, Error, Event, Handle, Message, Repeat,
};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use testkit::retried;

const SEGMENT: u16 = 1000;
const MARKS: [Ecn; 4] = [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce];

/// Families: the address to bind, and the one to send to.
const FAMILIES: [(&str, &str); 3] =
    [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("::", "::ffff:127.0.0.1")];

/// The ways to receive a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Message,
    Datagram(Repeat),
}

const WAYS: [Way; 3] =
    [Way::Message, Way::Datagram(Repeat::Once), Way::Datagram(Repeat::UntilCancelled)];

impl Way {
    fn start(self, rig: &mut Rig, handle: Handle) {
        match self {
            Way::Message => rig.receive_message(handle, Message::with_capacity(1 << 16)).unwrap(),
            Way::Datagram(repeat) => rig.receive_from(handle, repeat).unwrap(),
        }
    }

    /// Returns the next datagram; submits its receive unless it repeats.
    #[track_caller]
    fn take(self, rig: &mut Rig, handle: Handle) -> Arrived {
        let repeats = self == Way::Datagram(Repeat::UntilCancelled);
        if !repeats || rig.outstanding() == 0 {
            self.start(rig, handle);
        }
        arrived(if repeats { rig.another(handle) } else { rig.last(handle) })
    }
}

/// A datagram, however it was received.
struct Arrived {
    bytes: Vec<u8>,
    from: Option<Address>,
    ecn: Option<Ecn>,
    segment_size: Option<u16>,
    local: Option<String>,
}

#[track_caller]
fn arrived(event: Event) -> Arrived {
    if let Event::ReceiveFrom(_) = event {
        let found = datagram(event);
        return Arrived {
            bytes: found.to_vec(),
            from: found.address().ok(),
            ecn: found.ecn(),
            segment_size: found.segment_size(),
            local: found.packet_info().map(|info| info.local.to_string()),
        };
    }
    let found = got(event);
    Arrived {
        bytes: found.bytes().to_vec(),
        from: found.address().cloned(),
        ecn: found.ecn(),
        segment_size: found.segment_size(),
        local: found.packet_info().map(|info| info.local.to_string()),
    }
}

/// Binds a socket to all addresses; returns its handle and port.
fn bound(rig: &mut Rig, all: &str) -> (Handle, u16) {
    let (socket, address) = udp(all);
    (rig.join(socket), address.port())
}

fn at(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

/// Sends a message, all of whose bytes must be sent.
#[track_caller]
fn send(rig: &mut Rig, handle: Handle, message: Message) {
    let bytes = message.bytes().len();
    rig.send_message(handle, message).unwrap();
    // A repeating receive of another handle may complete first, but none is pending here.
    sent(rig.last(handle), bytes);
}

#[track_caller]
fn expect_datagram(socket: &UdpSocket, bytes: &[u8]) {
    let mut found = vec![0; 1 << 16];
    let count = retried(|| socket.recv(&mut found)).unwrap();
    assert_eq!(count, bytes.len());
    assert_eq!(&found[..count], bytes);
}

/// One message leaves as datagrams of one size; the last one may be shorter.
pub(crate) fn segments_leave_as_datagrams(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let pattern = Pattern::new(1);
    for (all, ip) in FAMILIES {
        let (theirs, address) = udp(&ip.replace("::ffff:", ""));
        let (handle, _) = bound(&mut rig, all);
        for length in [10_300, 10_000, 1_001, 1_000, 999, 1, 0] {
            let bytes = pattern.bytes(0, length);
            let message = Message::new(bytes.clone()).to(at(ip, address.port()));
            send(&mut rig, handle, message.with_segment_size(SEGMENT));
            if length == 0 {
                expect_datagram(&theirs, b"");
            }
            bytes.chunks(SEGMENT.into()).for_each(|datagram| expect_datagram(&theirs, datagram));
        }
        // As many as every kernel takes.
        let bytes = pattern.bytes(0, 2 * Message::SEGMENTS_MAX);
        let message = Message::new(bytes.clone()).to(at(ip, address.port()));
        send(&mut rig, handle, message.with_segment_size(2));
        bytes.chunks(2).for_each(|datagram| expect_datagram(&theirs, datagram));
    }
}

/// The receiver gets the datagrams of one message at once, with their size.
pub(crate) fn segments_arrive_joined(driver: DriverChoice) {
    let pattern = Pattern::new(2);
    for way in WAYS {
        for (all, ip) in FAMILIES {
            let (mut rig, mut sender) = (Rig::new(driver), Rig::other(driver));
            let (handle, port) = bound(&mut rig, all);
            rig.enable_gro(handle).unwrap();
            let (from, from_port) = bound(&mut sender, all);
            for length in [10_300, 64_000, 3_000, 500] {
                way_started(way, &mut rig, handle);
                let message = Message::new(pattern.bytes(0, length)).to(at(ip, port));
                send(&mut sender, from, message.with_segment_size(SEGMENT));
                let found = arrived(rig.next().event);
                assert_eq!(found.bytes.len(), length, "{way:?} {all}");
                pattern.check(0, &found.bytes);
                assert_eq!(found.segment_size, (length > 1000).then_some(SEGMENT));
                assert_eq!(found.from, Some(inet(at(ip, from_port))));
            }
        }
    }
}

/// Submits a receive, unless a repeating one is in flight.
fn way_started(way: Way, rig: &mut Rig, handle: Handle) {
    if rig.outstanding() == 0 {
        way.start(rig, handle);
    }
}

/// The mark of a message is the mark of its datagrams, and is reported.
pub(crate) fn marks_travel_with_datagrams(driver: DriverChoice) {
    for way in WAYS {
        for (all, ip) in FAMILIES {
            let (mut rig, mut sender) = (Rig::new(driver), Rig::other(driver));
            let (handle, port) = bound(&mut rig, all);
            rig.enable_ecn(handle).unwrap();
            let (from, _) = bound(&mut sender, all);
            for ecn in MARKS {
                let message = Message::new("marked").to(at(ip, port)).with_ecn(ecn);
                send(&mut sender, from, message);
                let found = way.take(&mut rig, handle);
                assert_eq!((&found.bytes[..], found.ecn), (&b"marked"[..], Some(ecn)), "{way:?}");
                assert_eq!((found.segment_size, found.local), (None, None));
            }
            // Without a mark the options of the socket decide.
            let (plain, _) = udp(all);
            set(&plain, libc::IPPROTO_IP, libc::IP_TOS, 0xb8 | Ecn::Ect1 as i32);
            if all == "::" {
                set(&plain, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, 0xb8 | Ecn::Ect1 as i32);
            }
            let plain = sender.join(plain);
            send(&mut sender, plain, Message::new("plain").to(at(ip, port)));
            assert_eq!(way.take(&mut rig, handle).ecn, Some(Ecn::Ect1), "{way:?} {all}");
        }
    }
}

/// All three reports come with the same datagram, and an unchanged message returns as it came.
pub(crate) fn an_unchanged_message_returns_in_the_same_segments(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let pattern = Pattern::new(3);
    for way in WAYS {
        let (handle, port) = bound(&mut rig, "0.0.0.0");
        rig.enable_packet_info(handle).unwrap();
        rig.enable_ecn(handle).unwrap();
        rig.enable_gro(handle).unwrap();
        let mut sender = Rig::other(driver);
        let (client, client_port) = bound(&mut sender, "0.0.0.0");
        sender.enable_gro(client).unwrap();
        sender.enable_packet_info(client).unwrap();
        let message = Message::new(pattern.bytes(0, 5_500)).to(at("127.0.0.7", port));
        send(&mut sender, client, message.with_segment_size(SEGMENT).with_ecn(Ecn::Ect0));
        let found = way.take(&mut rig, handle);
        let told = (found.ecn, found.segment_size, found.local.as_deref());
        assert_eq!(told, (Some(Ecn::Ect0), Some(SEGMENT), Some("127.0.0.7")), "{way:?}");
        assert_eq!(found.from, Some(inet(at("127.0.0.1", client_port))));
        if way != Way::Message {
            rig.close(handle).unwrap();
            rig.drain();
            continue;
        }
        send(&mut sender, client, Message::new(pattern.bytes(0, 2_500)).to(at("127.0.0.7", port)));
        rig.receive_message(handle, Message::with_capacity(1 << 16)).unwrap();
        let message = got(rig.last(handle));
        assert_eq!((message.ecn(), message.segment_size()), (Some(Ecn::NotEct), None));
        let message = message.with_segment_size(500);
        let reply = message.reply("answer");
        assert_eq!((reply.ecn(), reply.segment_size()), (None, None));
        send(&mut rig, handle, message);
        let found = Way::Message.take(&mut sender, client);
        assert_eq!((found.bytes.len(), found.segment_size), (2_500, Some(500)));
        assert_eq!(found.from, Some(inet(at("127.0.0.7", port))));
        // A message that is received into again forgets what it had.
        let again = Message::with_capacity(100).with_ecn(Ecn::Ce).with_segment_size(7);
        sender.receive_message(client, again).unwrap();
        send(&mut rig, handle, reply);
        let again = got(sender.last(client));
        assert_eq!((again.bytes(), again.ecn()), (&b"answer"[..], None));
        assert_eq!(again.segment_size(), None);
    }
}

/// Without the options nothing is reported, and datagrams arrive one by one.
pub(crate) fn without_the_options_datagrams_are_plain(driver: DriverChoice) {
    for way in WAYS {
        let (mut rig, mut sender) = (Rig::new(driver), Rig::other(driver));
        let (handle, port) = bound(&mut rig, "0.0.0.0");
        let (from, _) = bound(&mut sender, "0.0.0.0");
        let message = Message::new(vec![7; 2_500]).to(at("127.0.0.1", port));
        send(&mut sender, from, message.with_segment_size(SEGMENT).with_ecn(Ecn::Ce));
        for length in [1000, 1000, 500] {
            let found = way.take(&mut rig, handle);
            assert_eq!((found.bytes.len(), found.ecn, found.segment_size), (length, None, None));
        }
    }
}

/// What cannot be sent is refused, by the channel or by the kernel.
pub(crate) fn impossible_segments_are_refused(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (_theirs, to) = udp("127.0.0.1");
    let (handle, _) = bound(&mut rig, "0.0.0.0");
    let many = Message::new(vec![0; Message::SEGMENTS_MAX + 1]).to(to).with_segment_size(1);
    let rejected = rig.send_message(handle, many).unwrap_err();
    assert!(rejected.to_string().contains("64 segments"), "{rejected}");
    assert_eq!(rejected.buffer.segment_size(), Some(1));
    let none = Message::new("x").to(to).with_segment_size(0);
    let rejected = rig.send_message(handle, none).unwrap_err();
    assert!(rejected.to_string().contains("one byte"), "{rejected}");
    let long = Message::new(vec![0; 65_508]).to(to).with_segment_size(32_754);
    rig.send_message(handle, long).unwrap();
    assert_eq!(outcome(&rig.last(handle)), Err(libc::EMSGSIZE));
    // Sources that are no UDP sockets.
    let (_peer, tcp) = rig.tcp_pair();
    let unix = rig.join(UnixDatagram::unbound().unwrap());
    for handle in [tcp, unix] {
        for message in [Message::new("x").with_ecn(Ecn::Ce), Message::new("x").with_segment_size(1)]
        {
            let rejected = rig.send_message(handle, message).unwrap_err();
            assert!(rejected.to_string().contains("UDP"), "{rejected}");
        }
        for refused in [rig.enable_ecn(handle), rig.enable_gro(handle)] {
            let refused = refused.unwrap_err();
            let is_told = matches!(refused, Error::Invalid(_) | Error::WrongKind { .. });
            assert!(is_told, "{refused}");
        }
    }
}

/// Buffers that are too small for ancillary data keep their room for the datagram.
pub(crate) fn small_buffers_have_no_reports(driver: DriverChoice) {
    let large_buffers = BufferClass { count: 16, bytes: 512 };
    for way in WAYS {
        let mut rig = Rig::with(driver, Config { large_buffers, ..Config::default() });
        let (handle, port) = bound(&mut rig, "0.0.0.0");
        rig.enable_ecn(handle).unwrap();
        let (client, _) = udp("127.0.0.1");
        client.send_to(&[7; 350], at("127.0.0.1", port)).unwrap();
        let found = way.take(&mut rig, handle);
        assert_eq!(found.bytes, [7; 350]);
        assert_eq!(found.ecn, (way == Way::Message).then_some(Ecn::NotEct), "{way:?}");
    }
}

/// Joined datagrams that are longer than a buffer lose their end, which is reported.
pub(crate) fn joined_datagrams_may_be_truncated(driver: DriverChoice) {
    let large_buffers = BufferClass { count: 16, bytes: 2048 };
    let pattern = Pattern::new(4);
    for repeat in [Repeat::Once, Repeat::UntilCancelled] {
        let mut rig = Rig::with(driver, Config { large_buffers, ..Config::default() });
        let (handle, port) = bound(&mut rig, "0.0.0.0");
        rig.enable_gro(handle).unwrap();
        rig.receive_from(handle, repeat).unwrap();
        let mut sender = Rig::other(driver);
        let (from, _) = bound(&mut sender, "0.0.0.0");
        let message = Message::new(pattern.bytes(0, 5_000)).to(at("127.0.0.1", port));
        send(&mut sender, from, message.with_segment_size(SEGMENT));
        let found = datagram(rig.next().event);
        assert!(found.is_truncated());
        assert_eq!(found.segment_size(), Some(SEGMENT));
        assert!((1500..2048).contains(&found.len()), "{} bytes", found.len());
        pattern.check(0, &found);
    }
}

/// A receive that was submitted before the option goes on without reports; the next one has them.
pub(crate) fn an_option_holds_for_later_receives(driver: DriverChoice) {
    for repeat in [Repeat::Once, Repeat::UntilCancelled] {
        let mut rig = Rig::new(driver);
        let (handle, port) = bound(&mut rig, "0.0.0.0");
        rig.receive_from(handle, repeat).unwrap();
        rig.flush().unwrap();
        rig.enable_ecn(handle).unwrap();
        let (client, _) = udp("127.0.0.1");
        client.send_to(b"before", at("127.0.0.1", port)).unwrap();
        let found = datagram(rig.next().event);
        assert_eq!((&*found, found.ecn()), (&b"before"[..], None));
        rig.cancel(handle).unwrap();
        rig.drain();
        rig.receive_from(handle, repeat).unwrap();
        client.send_to(b"after", at("127.0.0.1", port)).unwrap();
        let found = datagram(rig.next().event);
        assert_eq!((&*found, found.ecn()), (&b"after"[..], Some(Ecn::NotEct)));
        let lease = found.into_lease();
        assert_eq!(&*lease, b"after");
    }
}
