//! Tests messages with descriptors over UNIX sockets.

use crate::common::descriptors::{
    exchange, expect_none_open, got, lossy, marked, marks, pair_of, sent, set, with_marks,
};
use crate::common::process::{descriptors, expect_descriptors, isolated, set_descriptor_limit};
use crate::common::{
    Pattern, Rig, TIME_LIMIT, accepted, client, listener, outcome, read_of, udp, unix_pair, written,
};
use megapipe::{Accept, Config, Direction, DriverChoice, Error, Event, Handle, Message, Transfer};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

const TYPES: [libc::c_int; 3] = [libc::SOCK_STREAM, libc::SOCK_SEQPACKET, libc::SOCK_DGRAM];

/// More bytes than the kernel takes for a peer that does not read.
const STUCK_BYTES: usize = 4 << 20;

fn room(bytes: usize, descriptors: usize) -> Message {
    Message::with_capacity(bytes).room_for_descriptors(descriptors)
}

pub(crate) fn descriptors_arrive_over_every_socket(driver: DriverChoice) {
    for socket_type in TYPES {
        let mut rig = Rig::new(driver);
        let (ours, theirs) = pair_of(socket_type);
        let (from, to) = (rig.join(ours), rig.join(theirs));
        let message = with_marks("take these", &[7, 8]);
        let [send, receive] = exchange(&mut rig, from, to, [message, room(100, 5)]);
        let given_back = sent(send.event, 10);
        assert_eq!(marks(given_back.descriptors()), [7, 8]);
        assert_eq!(given_back.bytes(), b"take these");
        drop(given_back);
        let mut message = got(receive.event);
        assert_eq!(message.bytes(), b"take these");
        assert_eq!((message.address(), message.packet_info()), (None, None));
        let taken = message.take_descriptors();
        assert_eq!(marks(&taken), [7, 8]);
        for descriptor in &taken {
            // SAFETY: the call takes no pointers.
            let flags = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_GETFD) };
            assert_eq!(flags, libc::FD_CLOEXEC);
        }
        assert!(message.descriptors().is_empty());
        assert_eq!(rig.outstanding(), 0);
    }
}

/// A received message can be sent; bytes and descriptors are appended.
pub(crate) fn received_messages_are_passed_on(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (ours, theirs) = pair_of(libc::SOCK_STREAM);
    let (here, there) = (rig.join(ours), rig.join(theirs));
    let first = with_marks("one ", &[1]);
    let [_, receive] = exchange(&mut rig, here, there, [first, room(100, 1)]);
    let message = got(receive.event);
    let [_, receive] = exchange(&mut rig, here, there, [with_marks("two", &[2]), message]);
    let both = got(receive.event);
    assert_eq!((both.bytes(), marks(both.descriptors())), (&b"one two"[..], vec![1, 2]));
    let [send, receive] = exchange(&mut rig, there, here, [both, room(100, 2)]);
    sent(send.event, 7);
    let back = got(receive.event);
    assert_eq!((back.bytes(), marks(back.descriptors())), (&b"one two"[..], vec![1, 2]));
}

pub(crate) fn empty_messages_carry_descriptors(driver: DriverChoice) {
    for socket_type in [libc::SOCK_SEQPACKET, libc::SOCK_DGRAM] {
        let mut rig = Rig::new(driver);
        let (ours, theirs) = pair_of(socket_type);
        let (from, to) = (rig.join(ours), rig.join(theirs));
        let [send, receive] = exchange(&mut rig, from, to, [with_marks("", &[3]), room(1, 1)]);
        sent(send.event, 0);
        let message = got(receive.event);
        assert_eq!((message.bytes(), marks(message.descriptors())), (&b""[..], vec![3]));
    }
}

/// However many parts a message is written in, its descriptors travel with the first byte.
pub(crate) fn a_long_message_brings_its_descriptors_once(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let pattern = Pattern::new(1);
    let (ours, theirs) = pair_of(libc::SOCK_STREAM);
    let (from, to) = (rig.join(ours), rig.join(theirs));
    let message = Message::new(pattern.bytes(0, STUCK_BYTES));
    rig.send_message(from, message.with_descriptor(marked(1)).with_descriptor(marked(2))).unwrap();
    rig.write(from, "behind").unwrap();
    assert_eq!(rig.queued_bytes(from).unwrap(), STUCK_BYTES + 6);
    let (mut at, mut events) = (0, Vec::new());
    while at < STUCK_BYTES {
        rig.receive_message(to, room(100_000.min(STUCK_BYTES - at), 4)).unwrap();
        let message = loop {
            let done = rig.next();
            if done.handle == to {
                break got(done.event);
            }
            events.push(done.event);
        };
        let expected: &[u8] = if at == 0 { &[1, 2] } else { &[] };
        assert_eq!(marks(message.descriptors()), expected, "at byte {at}");
        pattern.check(at, message.bytes());
        at += message.bytes().len();
    }
    while events.len() < 2 {
        events.push(rig.next().event);
    }
    assert_eq!(written(events.pop().unwrap()).len(), 6);
    assert_eq!(marks(sent(events.pop().unwrap(), STUCK_BYTES).descriptors()), [1, 2]);
    rig.read(to, Vec::with_capacity(10)).unwrap();
    assert_eq!(read_of(rig.last(to)), b"behind");
}

/// Messages keep the order of submission among reads and writes.
pub(crate) fn messages_keep_the_order_of_their_lane(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (ours, theirs) = pair_of(libc::SOCK_STREAM);
    let (from, to) = (rig.join(ours), rig.join(theirs));
    rig.write(from, "a").unwrap();
    rig.send_message(from, with_marks("b", &[1])).unwrap();
    rig.write(from, "c").unwrap();
    rig.send_message(from, with_marks("d", &[2])).unwrap();
    for _ in 0..2 {
        written(rig.last(from));
        sent(rig.last(from), 1);
    }
    rig.read(to, Vec::with_capacity(1)).unwrap();
    rig.receive_message(to, room(9, 9)).unwrap();
    rig.read(to, Vec::with_capacity(1)).unwrap();
    rig.receive_message(to, room(9, 9)).unwrap();
    assert_eq!(read_of(rig.last(to)), b"a");
    let message = got(rig.last(to));
    assert_eq!((message.bytes(), marks(message.descriptors())), (&b"b"[..], vec![1]));
    assert_eq!(read_of(rig.last(to)), b"c");
    let message = got(rig.last(to));
    assert_eq!((message.bytes(), marks(message.descriptors())), (&b"d"[..], vec![2]));
    rig.receive_message(to, room(9, 0)).unwrap();
    rig.close(from).unwrap();
    let ends = [rig.next().event, rig.next().event];
    let is_end = |event: &&Event| matches!(event, Event::ReceiveMessage(Ok(0), _));
    assert_eq!(ends.iter().filter(is_end).count(), 1, "{ends:?}");
}

/// Over TCP a message is a read and a write, even if it fills the room to the last byte.
pub(crate) fn tcp_takes_messages_without_descriptors(driver: DriverChoice) {
    const BYTES: usize = 1 << 20;
    let mut rig = Rig::new(driver);
    let pattern = Pattern::new(2);
    let (listener, address) = listener();
    let listening = rig.join(listener);
    rig.accept(listening, Accept::lightweight().count(1)).unwrap();
    let light = client(address);
    let light = (light, accepted(rig.last(listening)).socket);
    for (peer, handle) in [rig.tcp_pair(), (light.0, rig.join(light.1))] {
        let echo = std::thread::spawn(move || {
            let (mut from, mut to) = (peer.try_clone().unwrap(), peer);
            std::io::copy(&mut from, &mut to).unwrap()
        });
        rig.send_message(handle, Message::new(pattern.bytes(0, BYTES))).unwrap();
        let (mut at, mut is_sent) = (0, false);
        rig.receive_message(handle, room(4096, 3)).unwrap();
        while at < BYTES || !is_sent {
            let message = match rig.last(handle) {
                Event::SendMessage(Ok(BYTES), _) => {
                    is_sent = true;
                    continue;
                }
                event => got(event),
            };
            assert!(!message.bytes().is_empty() && message.descriptors().is_empty());
            pattern.check(at, message.bytes());
            at += message.bytes().len();
            if at < BYTES {
                rig.receive_message(handle, room(4096, 3)).unwrap();
            }
        }
        rig.close(handle).unwrap();
        assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
        assert_eq!(echo.join().unwrap(), BYTES as u64);
    }
}

pub(crate) fn lightweight_sockets_carry_descriptors(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listening = rig.join(UnixListener::bind(&path).unwrap());
    rig.accept(listening, Accept::lightweight().count(1)).unwrap();
    let client = UnixStream::connect(&path).unwrap();
    client.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    let socket = accepted(rig.last(listening)).socket;
    assert!(socket.is_lightweight());
    let (here, there) = (rig.join(socket), rig.join(client));
    for (from, to) in [(here, there), (there, here)] {
        let [send, receive] = exchange(&mut rig, from, to, [with_marks("x", &[9]), room(5, 1)]);
        sent(send.event, 1);
        assert_eq!(marks(got(receive.event).descriptors()), [9]);
    }
}

/// As many descriptors as the kernel accepts, and one more.
pub(crate) fn the_most_descriptors(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (ours, theirs) = pair_of(libc::SOCK_STREAM);
    let (from, to) = (rig.join(ours), rig.join(theirs));
    let all: Vec<u8> = (0..253).collect();
    let messages = [with_marks("many", &all), room(9, 1000)];
    let [send, receive] = exchange(&mut rig, from, to, messages);
    assert_eq!(marks(got(receive.event).descriptors()), all);
    let message = sent(send.event, 4).with_descriptor(marked(253));
    let rejected = rig.send_message(from, message).unwrap_err();
    assert!(matches!(rejected.error, Error::Invalid(_)), "{rejected}");
    assert!(rejected.to_string().contains("253"), "{rejected}");
    assert_eq!(rejected.buffer.descriptors().len(), 254);
}

pub(crate) fn what_cannot_carry_descriptors_refuses_them(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (_peer, tcp) = rig.tcp_pair();
    let datagrams = rig.join(udp("127.0.0.1").0);
    let (reader, _writer) = std::io::pipe().unwrap();
    let pipe = rig.join(OwnedFd::from(reader));
    let (_silent, ours) = unix_pair();
    let stream = rig.join(ours);
    for (handle, bytes, cause) in [
        (tcp, "x", "UNIX"),
        (datagrams, "x", "UNIX"),
        (pipe, "x", "a pipe"),
        (stream, "", "at least one byte"),
    ] {
        let rejected = rig.send_message(handle, with_marks(bytes, &[5])).unwrap_err();
        assert!(rejected.to_string().contains(cause), "{rejected}");
        assert_eq!(marks(rejected.buffer.descriptors()), [5]);
        assert_eq!(rejected.buffer.bytes(), bytes.as_bytes());
    }
    let address = Message::new("x").to(udp("127.0.0.1").1);
    let rejected = rig.send_message(tcp, address).unwrap_err();
    assert!(rejected.to_string().contains("datagrams"), "{rejected}");
    for full in [Message::with_capacity(0), Message::new("full")] {
        let rejected = rig.receive_message(stream, full.with_descriptor(marked(6))).unwrap_err();
        assert!(rejected.to_string().contains("capacity"), "{rejected}");
        assert_eq!(marks(rejected.buffer.descriptors()), [6]);
    }
    assert_eq!(rig.outstanding(), 0);
}

/// Lost descriptors are reported; those for which there was room arrive.
pub(crate) fn descriptors_without_room_are_told(driver: DriverChoice) {
    isolated(driver, "descriptors_without_room_are_told", || {
        for socket_type in TYPES {
            for (count, room_for) in [(1, 0), (3, 2), (200, 3), (253, 252)] {
                let mut rig = Rig::new(driver);
                let (ours, theirs) = pair_of(socket_type);
                let (from, to) = (rig.join(ours), rig.join(theirs));
                let all: Vec<u8> = (0..count).collect();
                let messages = [with_marks("bytes", &all), room(9, room_for)];
                let [send, receive] = exchange(&mut rig, from, to, messages);
                sent(send.event, 5);
                let (message, told) = lossy(receive.event);
                assert_eq!((message.bytes(), told), (&b"bytes"[..], room_for));
                assert_eq!(marks(message.descriptors()), all[..room_for]);
            }
        }
        expect_none_open();
        // The process may open no further descriptors.
        let mut rig = Rig::new(driver);
        let (ours, theirs) = pair_of(libc::SOCK_STREAM);
        let (from, to) = (rig.join(ours), rig.join(theirs));
        let message = with_marks("bytes", &[1]);
        set_descriptor_limit(3);
        let [_, receive] = exchange(&mut rig, from, to, [message, room(9, 1)]);
        set_descriptor_limit(1024);
        let (message, _) = lossy(receive.event);
        assert_eq!((message.bytes(), message.descriptors().len()), (&b"bytes"[..], 0));
    });
}

pub(crate) fn a_packet_without_room_brings_its_descriptors(driver: DriverChoice) {
    for socket_type in [libc::SOCK_SEQPACKET, libc::SOCK_DGRAM] {
        let mut rig = Rig::new(driver);
        let (ours, theirs) = pair_of(socket_type);
        let (from, to) = (rig.join(ours), rig.join(theirs));
        let messages = [with_marks("too long", &[4]), room(4, 1)];
        let [_, receive] = exchange(&mut rig, from, to, messages);
        assert_eq!(outcome(&receive.event), Err(libc::EMSGSIZE));
        let Event::ReceiveMessage(_, message) = receive.event else { panic!() };
        assert_eq!((message.bytes(), marks(message.descriptors())), (&b"too "[..], vec![4]));
        let [_, receive] = exchange(&mut rig, from, to, [with_marks("fits", &[5]), room(4, 1)]);
        assert_eq!(marks(got(receive.event).descriptors()), [5]);
    }
}

/// Credentials, a descriptor of the sender's process and a time are skipped, and no descriptor
/// stays open.
pub(crate) fn other_control_data_is_skipped(driver: DriverChoice) {
    const SO_PASSPIDFD: libc::c_int = 76;
    isolated(driver, "other_control_data_is_skipped", || {
        let mut rig = Rig::new(driver);
        let (ours, theirs) = pair_of(libc::SOCK_DGRAM);
        for option in [libc::SO_PASSCRED, libc::SO_TIMESTAMP] {
            set(&theirs, libc::SOL_SOCKET, option, 1);
        }
        // From Linux 6.5 on, a message can also have a descriptor of the process.
        let number: libc::c_int = 1;
        // SAFETY: the value is readable for its four bytes.
        let set = unsafe {
            let (fd, value) = (theirs.as_raw_fd(), (&raw const number).cast());
            libc::setsockopt(fd, libc::SOL_SOCKET, SO_PASSPIDFD, value, 4)
        };
        let errno = io::Error::last_os_error().raw_os_error();
        assert!(set == 0 || errno == Some(libc::ENOPROTOOPT), "{errno:?}");
        let (from, to) = (rig.join(ours), rig.join(theirs));
        let before = descriptors();
        for _ in 0..3 {
            let messages = [with_marks("x", &[1, 2]), room(9, 2)];
            let [_, receive] = exchange(&mut rig, from, to, messages);
            assert_eq!(marks(got(receive.event).descriptors()), [1, 2]);
        }
        expect_descriptors(&before);
    });
}

pub(crate) fn messages_are_cancelled(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (mut peer, ours) = unix_pair();
    let handle = rig.join(ours);
    let message = room(9, 1).with_descriptor(marked(1));
    rig.receive_message(handle, message).unwrap();
    rig.cancel_direction(handle, Direction::Inbound).unwrap();
    let event = rig.last(handle);
    assert_eq!(outcome(&event), Err(libc::ECANCELED));
    let Event::ReceiveMessage(_, message) = event else { panic!() };
    assert_eq!(marks(message.descriptors()), [1]);
    // A part is sent, with the descriptors; the requests behind it have not begun.
    let long = Message::new(vec![7; STUCK_BYTES]).with_descriptor(marked(2));
    rig.send_message(handle, long).unwrap();
    rig.send_message(handle, with_marks("behind", &[3])).unwrap();
    while rig.queued_bytes(handle).unwrap() == STUCK_BYTES + 6 {
        assert!(rig.dispatch(Duration::from_millis(1)).unwrap().is_none());
    }
    rig.cancel(handle).unwrap();
    let mut part = None;
    for _ in 0..2 {
        match rig.last(handle) {
            Event::SendMessage(Ok(bytes), message) => {
                assert_eq!(marks(message.descriptors()), [2]);
                part = Some(bytes);
            }
            event => {
                assert_eq!(outcome(&event), Err(libc::ECANCELED));
                let Event::SendMessage(_, message) = event else { panic!() };
                assert_eq!(marks(message.descriptors()), [3]);
            }
        }
    }
    let part = part.expect("a part was sent");
    rig.close(handle).unwrap();
    assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
    let mut found = Vec::new();
    peer.read_to_end(&mut found).unwrap();
    assert!(part > 0 && part < STUCK_BYTES && found.len() == part, "{part}, {}", found.len());
}

pub(crate) fn messages_have_their_time(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (_peer, ours) = unix_pair();
    let handle = rig.join(ours);
    for direction in [Direction::Inbound, Direction::Outbound] {
        rig.set_time_limit(handle, direction, Duration::from_millis(20)).unwrap();
    }
    rig.receive_message(handle, room(9, 1)).unwrap();
    assert_eq!(outcome(&rig.last(handle)), Err(libc::ETIMEDOUT));
    let long = Message::new(vec![7; STUCK_BYTES]).with_descriptor(marked(2));
    rig.send_message(handle, long).unwrap();
    let event = rig.last(handle);
    assert_eq!(outcome(&event), Err(libc::ETIMEDOUT));
    let Event::SendMessage(_, message) = event else { panic!() };
    assert_eq!(marks(message.descriptors()), [2]);
}

pub(crate) fn messages_count_as_output(driver: DriverChoice) {
    let config = Config { output_pause: 1000, output_limit: 2000, ..Config::default() };
    let mut rig = Rig::with(driver, config);
    let (_peer, ours) = unix_pair();
    let handle = rig.join(ours);
    rig.write(handle, vec![1; STUCK_BYTES]).unwrap();
    let message = || Message::new(vec![2; 1000]).with_descriptor(marked(8));
    rig.send_message(handle, message()).unwrap();
    rig.send_message(handle, message()).unwrap();
    let rejected = rig.send_message(handle, message()).unwrap_err();
    assert!(
        matches!(rejected.error, Error::OutputFull { queued: 2000, limit: 2000 }),
        "{rejected}"
    );
    assert_eq!(marks(rejected.buffer.descriptors()), [8]);
    assert_eq!(rig.counters().paused, 1);
    rig.abort(handle).unwrap();
    assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
}

/// The ways in which a handle with queued or undelivered descriptors ends.
const LEAVES: [fn(&mut Rig, Handle); 4] = [
    |rig, handle| drop(rig.unregister(handle).unwrap()),
    |rig, handle| assert_eq!(rig.close(handle).unwrap(), 0),
    |rig, handle| assert_eq!(rig.abort(handle).unwrap(), Some(0)),
    |_, _| {},
];

pub(crate) fn withdrawn_messages_leave_no_descriptors(driver: DriverChoice) {
    isolated(driver, "withdrawn_messages_leave_no_descriptors", || {
        for socket_type in TYPES {
            for leave in LEAVES {
                for dispatched in [false, true] {
                    withdraw(driver, socket_type, leave, dispatched);
                    expect_none_open();
                }
            }
        }
    });
}

/// Creates every case: descriptors arrive for a request and for one in the application's memory,
/// wait in the socket, and are queued. Then both handles end.
fn withdraw(
    driver: DriverChoice,
    socket_type: libc::c_int,
    leave: fn(&mut Rig, Handle),
    dispatched: bool,
) {
    let mut rig = Rig::new(driver);
    let (ours, theirs) = pair_of(socket_type);
    let (from, to) = (rig.join(ours), rig.join(theirs));
    let (mut bytes, mut control) = ([0u8; 1], [u64::MAX; 20]);
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: 1 };
    let mut header = header_of(&mut piece, &mut control);
    // SAFETY: the memory outlives the channel.
    unsafe { rig.transfer(to, Transfer::ReceiveMessage(&raw mut header)) }.unwrap();
    rig.receive_message(to, room(1, 2)).unwrap();
    rig.receive_message(to, room(1, 2)).unwrap();
    rig.flush().unwrap();
    for mark in 1..6 {
        rig.send_message(from, with_marks("x", &[mark, mark])).unwrap();
    }
    rig.flush().unwrap();
    if dispatched {
        let first = std::iter::repeat_with(|| rig.next()).find(|done| done.handle == to);
        assert!(matches!(first.unwrap().event, Event::Transfer(_)));
        // The next message has arrived by now, and is not delivered.
        assert_eq!(marks(&taken_from(&header)), [1, 1]);
    }
    leave(&mut rig, to);
    leave(&mut rig, from);
    for _ in 0..3 {
        if let Some(done) = rig.dispatch(Duration::ZERO).unwrap()
            && let Event::Transfer(_) = done.event
        {
            assert_eq!(marks(&taken_from(&header)), [1, 1]);
        }
    }
    drop(rig);
}

fn header_of(piece: &mut libc::iovec, control: &mut [u64]) -> libc::msghdr {
    // SAFETY: all-zero bytes are a valid `msghdr`.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = piece;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(control);
    header
}

/// Returns the descriptors of a transfer, which the application owns.
fn taken_from(header: &libc::msghdr) -> Vec<OwnedFd> {
    // SAFETY: the kernel has filled in the ancillary data, and the descriptors have no other owner.
    unsafe {
        let entry = libc::CMSG_FIRSTHDR(header);
        assert_eq!(((*entry).cmsg_level, (*entry).cmsg_type), (libc::SOL_SOCKET, libc::SCM_RIGHTS));
        let count = ((*entry).cmsg_len - libc::CMSG_LEN(0) as usize) / 4;
        let data = libc::CMSG_DATA(entry).cast::<libc::c_int>();
        (0..count).map(|at| OwnedFd::from_raw_fd(data.add(at).read_unaligned())).collect()
    }
}

/// Earlier content of the application's ancillary data is not mistaken for received descriptors.
pub(crate) fn stale_control_data_is_left_alone(driver: DriverChoice) {
    for leave in LEAVES {
        let (file, mut bytes, mut control) = (marked(7), [0u8; 1], [0u64; 3]);
        let mut rig = Rig::new(driver);
        let (_peer, ours) = pair_of(libc::SOCK_STREAM);
        let handle = rig.join(ours);
        let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: 1 };
        let mut header = header_of(&mut piece, &mut control);
        put(&header, &file);
        // SAFETY: the memory outlives the channel.
        unsafe { rig.transfer(handle, Transfer::ReceiveMessage(&raw mut header)) }.unwrap();
        rig.flush().unwrap();
        leave(&mut rig, handle);
        drop(rig);
        assert_eq!(marks(&[file]), [7]);
    }
}

/// Writes a descriptor to the ancillary data of a header.
fn put(header: &libc::msghdr, file: &OwnedFd) {
    // SAFETY: there is room for one descriptor.
    unsafe {
        let entry = libc::CMSG_FIRSTHDR(header);
        (*entry).cmsg_level = libc::SOL_SOCKET;
        (*entry).cmsg_type = libc::SCM_RIGHTS;
        (*entry).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(entry).cast::<libc::c_int>().write_unaligned(file.as_raw_fd());
    }
}

/// Submits two pieces of bytes in place, with a descriptor. The call copies everything else of the
/// message, which is freed when this function returns.
fn file_transfer(rig: &mut Rig, from: Handle, bytes: &mut [u8], file: &OwnedFd) {
    let (first, second) = bytes.split_at_mut(1000);
    let mut pieces = [first, second]
        .map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
    let mut control = [0u64; 3];
    let mut header = header_of(&mut pieces[0], &mut control);
    header.msg_iov = pieces.as_mut_ptr();
    header.msg_iovlen = pieces.len() as _;
    put(&header, file);
    // SAFETY: the caller awaits the request.
    unsafe { rig.transfer(from, Transfer::SendMessage(&raw const header)) }.unwrap();
}

/// Transfers in memory of the application: partly written, with the header as recvmsg(2) sets it.
pub(crate) fn transfers_carry_descriptors(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let pattern = Pattern::new(3);
    let (ours, theirs) = pair_of(libc::SOCK_STREAM);
    let (from, to) = (rig.join(ours), rig.join(theirs));
    let (mut bytes, file) = (pattern.bytes(0, STUCK_BYTES), marked(7));
    file_transfer(&mut rig, from, &mut bytes, &file);
    assert_eq!(rig.queued_bytes(from).unwrap(), STUCK_BYTES);
    let (mut at, mut sends) = (0, Vec::new());
    while at < STUCK_BYTES {
        let (mut room, mut found) = (vec![0u8; 70_000], [0u64; 3]);
        let mut piece = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
        let mut received = header_of(&mut piece, &mut found);
        // SAFETY: the memory outlives the request, which is awaited.
        unsafe { rig.transfer(to, Transfer::ReceiveMessage(&raw mut received)) }.unwrap();
        let transferred = loop {
            let done = rig.next();
            let Event::Transfer(transferred) = done.event else { panic!("{done:?}") };
            if done.handle == to {
                break transferred;
            }
            sends.push(transferred);
        };
        let bytes = transferred.bytes.unwrap();
        assert_eq!(transferred.address, (&raw mut received).cast());
        pattern.check(at, &room[..bytes]);
        assert_eq!(received.msg_flags & libc::MSG_CTRUNC, 0);
        if at == 0 {
            assert_eq!(marks(&taken_from(&received)), [7]);
        } else {
            assert_eq!(received.msg_controllen, 0, "at byte {at}");
        }
        at += bytes;
    }
    if sends.is_empty() {
        let Event::Transfer(transferred) = rig.last(from) else { panic!("not sent") };
        sends.push(transferred);
    }
    assert_eq!(sends.pop().unwrap().bytes.unwrap(), STUCK_BYTES);
}
