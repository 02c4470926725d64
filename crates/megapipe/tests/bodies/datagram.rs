//! Tests datagrams: UDP over both internet protocols, and UNIX.

use crate::common::{Pattern, Rig, TIME_LIMIT, datagram, inet, outcome, read_of, udp, written};
use megapipe::{
    Address, BufferClass, Config, DriverChoice, Error, Event, Kind, Lease, Message, Repeat,
};
use std::net::UdpSocket;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;
use testkit::retried;

const SMALL: usize = 16;

pub(crate) fn receive_one_with_its_address(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (theirs, address) = udp("127.0.0.1");
    let (ours, our_address) = udp("127.0.0.1");
    let handle = rig.join(theirs);
    assert_eq!(rig.kind(handle).unwrap(), Kind::Datagram);
    for message in [&b"one"[..], b"the second"] {
        rig.receive_from(handle, Repeat::Once).unwrap();
        ours.send_to(message, address).unwrap();
        let datagram = datagram(rig.last(handle));
        assert_eq!(&*datagram, message);
        assert_eq!(datagram.address().unwrap(), inet(our_address));
        assert!(!datagram.is_truncated());
        assert_eq!(&*datagram.into_lease(), message);
        assert_eq!(rig.outstanding(), 0);
    }
    // Datagrams that arrived before the request.
    for message in [&b"three"[..], b"four"] {
        ours.send_to(message, address).unwrap();
    }
    for message in [&b"three"[..], b"four"] {
        rig.receive_from(handle, Repeat::Once).unwrap();
        assert_eq!(&*datagram(rig.last(handle)), message);
    }
}

pub(crate) fn receive_until_cancelled(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (theirs, address) = udp("127.0.0.1");
    let handle = rig.join(theirs);
    rig.receive_from(handle, Repeat::UntilCancelled).unwrap();
    for number in 0..100u32 {
        let (ours, our_address) = udp("127.0.0.1");
        ours.send_to(&number.to_ne_bytes(), address).unwrap();
        let datagram = datagram(rig.another(handle));
        assert_eq!(&*datagram, number.to_ne_bytes());
        assert_eq!(datagram.address().unwrap().inet(), Some(our_address));
    }
    rig.cancel(handle).unwrap();
    assert_eq!(outcome(&rig.last(handle)), Err(libc::ECANCELED));
    assert_eq!(rig.outstanding(), 0);
}

pub(crate) fn send_to_an_address(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (theirs, their_address) = udp("127.0.0.1");
    let handle = rig.join(theirs);
    for round in 0..10u8 {
        let (ours, our_address) = udp("127.0.0.1");
        let message = vec![round; 100 + usize::from(round)];
        rig.send_to(handle, message.clone(), our_address).unwrap();
        match rig.last(handle) {
            Event::SendTo(Ok(bytes), buffer) => {
                assert_eq!((bytes, &*buffer), (message.len(), &message[..]));
            }
            other => panic!("unexpected {other:?}"),
        }
        let mut found = [0; 200];
        assert_eq!(retried(|| ours.recv_from(&mut found)).unwrap(), (message.len(), their_address));
        assert_eq!(&found[..message.len()], message);
    }
}

pub(crate) fn an_echo_without_copies(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let pattern = Pattern::new(1);
    let (theirs, address) = udp("127.0.0.1");
    let (ours, _) = udp("127.0.0.1");
    ours.connect(address).unwrap();
    let handle = rig.join(theirs);
    rig.receive_from(handle, Repeat::UntilCancelled).unwrap();
    for round in 0..200 {
        let message = pattern.bytes(round * 1000, 1 + round * 7);
        ours.send(&message).unwrap();
        let datagram = datagram(rig.another(handle));
        let to = datagram.address().unwrap();
        rig.send_to(handle, datagram.into_lease(), to).unwrap();
        assert_eq!(outcome(&rig.last(handle)), Ok(message.len() as u64));
        let mut found = vec![0; 2000];
        let bytes = retried(|| ours.recv(&mut found)).unwrap();
        assert_eq!(&found[..bytes], message);
    }
}

pub(crate) fn both_directions_over_ipv6(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (theirs, address) = udp("::1");
    let (ours, our_address) = udp("::1");
    let handle = rig.join(theirs);
    for repeat in [Repeat::Once, Repeat::UntilCancelled] {
        rig.receive_from(handle, repeat).unwrap();
        ours.send_to(b"six", address).unwrap();
        let done = rig.next();
        assert_eq!(done.more, repeat == Repeat::UntilCancelled);
        let datagram = datagram(done.event);
        assert_eq!(datagram.address().unwrap(), inet(our_address));
        assert_eq!(&*datagram, b"six");
        rig.send_to(handle, "and back", our_address).unwrap();
        assert_eq!(outcome(&rig.last(handle)), Ok(8));
        let mut found = [0; 20];
        assert_eq!(retried(|| ours.recv_from(&mut found)).unwrap(), (8, address));
    }
}

pub(crate) fn the_largest_datagram(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let pattern = Pattern::new(2);
    let (theirs, address) = udp("127.0.0.1");
    let (ours, our_address) = udp("127.0.0.1");
    let handle = rig.join(theirs);
    let message = pattern.bytes(0, 65_507);
    for repeat in [Repeat::Once, Repeat::UntilCancelled] {
        rig.receive_from(handle, repeat).unwrap();
        ours.send_to(&message, address).unwrap();
        let datagram = datagram(rig.next().event);
        assert!(!datagram.is_truncated());
        assert_eq!(datagram.len(), message.len());
        pattern.check(0, &datagram);
        assert_eq!(datagram.address().unwrap(), inet(our_address));
        rig.send_to(handle, datagram.into_lease(), our_address).unwrap();
        assert_eq!(outcome(&rig.last(handle)), Ok(65_507));
        let mut found = vec![0; 70_000];
        assert_eq!(retried(|| ours.recv(&mut found)).unwrap(), 65_507);
        pattern.check(0, &found[..65_507]);
    }
}

fn narrow(count: u16) -> Config {
    Config { large_buffers: BufferClass { count, bytes: 512 }, ..Config::default() }
}

pub(crate) fn what_does_not_fit_is_truncated(driver: DriverChoice) {
    let mut rig = Rig::with(driver, narrow(16));
    let pattern = Pattern::new(3);
    let (theirs, address) = udp("127.0.0.1");
    let (ours, our_address) = udp("127.0.0.1");
    let handle = rig.join(theirs);
    for repeat in [Repeat::Once, Repeat::UntilCancelled] {
        rig.receive_from(handle, repeat).unwrap();
        ours.send_to(&pattern.bytes(0, 5000), address).unwrap();
        let datagram = datagram(rig.next().event);
        assert!(datagram.is_truncated());
        // The whole buffer except the room for the address.
        assert!((300..512).contains(&datagram.len()), "{} bytes", datagram.len());
        pattern.check(0, &datagram);
        assert_eq!(datagram.address().unwrap(), inet(our_address));
    }
    ours.send_to(&pattern.bytes(0, 100), address).unwrap();
    let datagram = datagram(rig.another(handle));
    assert_eq!((datagram.len(), datagram.is_truncated()), (100, false));
}

pub(crate) fn empty_datagrams(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (theirs, address) = udp("127.0.0.1");
    let (ours, our_address) = udp("127.0.0.1");
    let handle = rig.join(theirs);
    // One by one, and mixed with others in the same request.
    rig.receive_from(handle, Repeat::Once).unwrap();
    ours.send_to(b"", address).unwrap();
    let empty = datagram(rig.last(handle));
    assert_eq!((empty.len(), empty.address().unwrap()), (0, inet(our_address)));
    rig.receive_from(handle, Repeat::UntilCancelled).unwrap();
    for message in [&b""[..], b"x", b"", b"y"] {
        ours.send_to(message, address).unwrap();
        assert_eq!(&*datagram(rig.another(handle)), message);
    }
    rig.send_to(handle, Vec::new(), our_address).unwrap();
    assert!(matches!(rig.last(handle), Event::SendTo(Ok(0), _)));
    assert_eq!(retried(|| ours.recv_from(&mut [0; 10])).unwrap(), (0, address));
    // Also with reads and writes.
    rig.cancel(handle).unwrap();
    assert_eq!(outcome(&rig.last(handle)), Err(libc::ECANCELED));
    rig.read(handle, Vec::with_capacity(10)).unwrap();
    ours.send_to(b"", address).unwrap();
    assert_eq!(outcome(&rig.last(handle)), Ok(0));
    rig.connect(handle, our_address).unwrap();
    assert_eq!(outcome(&rig.last(handle)), Ok(0));
    rig.write(handle, b"").unwrap();
    assert_eq!(written(rig.last(handle)).len(), 0);
    assert_eq!(retried(|| ours.recv_from(&mut [0; 10])).unwrap(), (0, address));
}

pub(crate) fn reads_and_writes_keep_boundaries(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (theirs, address) = udp("127.0.0.1");
    let (ours, our_address) = udp("127.0.0.1");
    theirs.connect(our_address).unwrap();
    ours.connect(address).unwrap();
    let handle = rig.join(theirs);
    rig.write(handle, b"first").unwrap();
    rig.write_vectored(handle, vec!["sec".into(), "ond".into()]).unwrap();
    assert_eq!(written(rig.last(handle)).len(), 5);
    assert_eq!(outcome(&rig.last(handle)), Ok(6));
    let mut found = [0; 100];
    assert_eq!(retried(|| ours.recv(&mut found)).unwrap(), 5);
    assert_eq!(retried(|| ours.recv(&mut found)).unwrap(), 6);
    assert_eq!(&found[..6], b"second");
    for message in [&b"one"[..], b"twotwo", b"three"] {
        ours.send(message).unwrap();
    }
    rig.read(handle, Vec::with_capacity(100)).unwrap();
    assert_eq!(read_of(rig.last(handle)), b"one");
    // A read that is too short loses the rest of the datagram, as recv(2) does, and reports it.
    rig.read(handle, Vec::with_capacity(3)).unwrap();
    match rig.last(handle) {
        Event::Read(Err(error), beginning) => {
            assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
            assert_eq!(beginning, b"two");
        }
        other => panic!("unexpected {other:?}"),
    }
    rig.read_vectored(handle, vec![Vec::with_capacity(2), Vec::with_capacity(10)]).unwrap();
    match rig.last(handle) {
        Event::ReadVectored(Ok(5), buffers) => assert_eq!(buffers.concat(), b"three"),
        other => panic!("unexpected {other:?}"),
    }
}

pub(crate) fn a_datagram_too_large_is_refused(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (theirs, _) = udp("127.0.0.1");
    let (_ours, our_address) = udp("127.0.0.1");
    let handle = rig.join(theirs);
    rig.send_to(handle, vec![0; 65_508], our_address).unwrap();
    match rig.last(handle) {
        Event::SendTo(Err(error), buffer) => {
            assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
            assert_eq!(buffer.len(), 65_508);
        }
        other => panic!("unexpected {other:?}"),
    }
    let rejected = rig.send_to(handle, vec![7; SMALL], Address::Unnamed).unwrap_err();
    assert!(matches!(rejected.error, Error::System { .. }), "{rejected}");
    assert_eq!(&*rejected.buffer, [7; SMALL]);
}

pub(crate) fn nobody_there(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (theirs, _) = udp("127.0.0.1");
    // The socket reserves the port, but receives only from an address that no socket has.
    let (deaf, address) = udp("127.0.0.1");
    deaf.connect(("127.0.0.1", 1)).unwrap();
    theirs.connect(address).unwrap();
    let handle = rig.join(theirs);
    // The network's answer arrives after the write and fails the next request.
    rig.write(handle, b"hello?").unwrap();
    assert_eq!(written(rig.last(handle)).len(), 6);
    rig.receive_from(handle, Repeat::UntilCancelled).unwrap();
    assert_eq!(outcome(&rig.last(handle)), Err(libc::ECONNREFUSED));
    assert_eq!(rig.outstanding(), 0);
}

pub(crate) fn unix_datagrams_have_names(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let directory = tempfile::tempdir().unwrap();
    let (path, our_path) = (directory.path().join("theirs"), directory.path().join("ours"));
    let handle = rig.join(UnixDatagram::bind(&path).unwrap());
    let name = format!("megapipe {}", our_path.display()).into_bytes();
    let abstract_name = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let senders = [
        (UnixDatagram::bind(&our_path).unwrap(), Address::from(our_path.as_path())),
        (UnixDatagram::bind_addr(&abstract_name).unwrap(), Address::Abstract(name)),
        (UnixDatagram::unbound().unwrap(), Address::Unnamed),
    ];
    for repeat in [Repeat::Once, Repeat::UntilCancelled] {
        for (sender, address) in &senders {
            sender.set_read_timeout(Some(TIME_LIMIT)).unwrap();
            if repeat == Repeat::Once || rig.outstanding() == 0 {
                rig.receive_from(handle, repeat).unwrap();
            }
            sender.send_to(b"from here", &path).unwrap();
            let datagram = datagram(rig.next().event);
            assert_eq!(&*datagram, b"from here");
            assert_eq!(datagram.address().unwrap(), *address);
            if *address != Address::Unnamed {
                rig.send_to(handle, datagram.into_lease(), address.clone()).unwrap();
                assert_eq!(outcome(&rig.last(handle)), Ok(9));
                let mut found = [0; 20];
                let (bytes, from) = retried(|| sender.recv_from(&mut found)).unwrap();
                assert_eq!((bytes, from.as_pathname()), (9, Some(path.as_path())));
            }
        }
    }
    let missing = directory.path().join("missing");
    rig.send_to(handle, "x", missing.as_path()).unwrap();
    assert_eq!(outcome(&rig.last(handle)), Err(libc::ENOENT));
}

pub(crate) fn a_full_unix_socket_makes_senders_wait(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    ours.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    let handle = rig.join(theirs);
    // More datagrams than any queue of a UNIX socket holds.
    let count = 2000u32;
    for number in 0..count {
        rig.write(handle, number.to_ne_bytes().to_vec()).unwrap();
    }
    let mut complete = 0;
    while rig.dispatch(Duration::ZERO).unwrap().is_some() {
        complete += 1;
    }
    assert!((1..count).contains(&complete), "{complete} datagrams were taken");
    let mut found = [0; 8];
    for number in 0..count {
        while complete <= number {
            assert_eq!(written(rig.last(handle)).len(), 4);
            complete += 1;
        }
        assert_eq!(retried(|| ours.recv(&mut found)).unwrap(), 4);
        assert_eq!(found[..4], number.to_ne_bytes());
    }
}

/// The kernel copies such a datagram before it looks at the receiver's queue, so io_uring's own
/// repetition of the send would be empty.
pub(crate) fn a_full_queue_of_a_receiver_loses_nothing(driver: DriverChoice) {
    const COUNT: u32 = 300;
    let directory = tempfile::tempdir().unwrap();
    for way in ["write", "send_to", "send_message"] {
        let mut rig = Rig::new(driver);
        let path = directory.path().join(way);
        let ours = UnixDatagram::bind(&path).unwrap();
        ours.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        let theirs = UnixDatagram::unbound().unwrap();
        if way == "write" {
            theirs.connect(&path).unwrap();
        }
        let handle = rig.join(theirs);
        for number in 0..COUNT {
            let bytes = number.to_ne_bytes().to_vec();
            match way {
                "write" => rig.write(handle, bytes).unwrap(),
                "send_to" => rig.send_to(handle, bytes, path.as_path()).unwrap(),
                _ => rig.send_message(handle, Message::new(bytes).to(path.as_path())).unwrap(),
            }
        }
        let mut complete = 0;
        while rig.dispatch(Duration::ZERO).unwrap().is_some() {
            complete += 1;
        }
        assert!((1..COUNT).contains(&complete), "{way}: {complete} datagrams were taken");
        let reader = std::thread::spawn(move || {
            let mut found = [0; 8];
            for number in 0..COUNT {
                let count = retried(|| ours.recv(&mut found)).unwrap();
                assert_eq!(found[..count], number.to_ne_bytes(), "{way}");
            }
            ours
        });
        for _ in complete..COUNT {
            assert_eq!(outcome(&rig.last(handle)), Ok(4), "{way}");
        }
        // One that waits for room can be cancelled, and the handle be closed.
        let ours = reader.join().unwrap();
        while rig.dispatch(Duration::ZERO).unwrap().is_some() {}
        for _ in 0..COUNT {
            rig.send_to(handle, vec![7], path.as_path()).unwrap();
        }
        while rig.dispatch(Duration::from_millis(5)).unwrap().is_some() {}
        assert!(rig.outstanding() > 1, "{way}");
        rig.cancel(handle).unwrap();
        while rig.outstanding() > 0 {
            assert_eq!(outcome(&rig.last(handle)), Err(libc::ECANCELED), "{way}");
        }
        for _ in 0..COUNT {
            rig.send_to(handle, vec![7], path.as_path()).unwrap();
        }
        rig.abort(handle).unwrap();
        rig.drain_to(0);
        drop(ours);
    }
}

pub(crate) fn datagrams_beyond_the_buffers_wait(driver: DriverChoice) {
    for repeat in [Repeat::Once, Repeat::UntilCancelled] {
        let mut rig = Rig::with(driver, narrow(4));
        let (theirs, address) = udp("127.0.0.1");
        let (ours, _) = udp("127.0.0.1");
        let handle = rig.join(theirs);
        for number in 0..20u8 {
            ours.send_to(&[number], address).unwrap();
        }
        let mut leases: Vec<Lease> = Vec::new();
        let mut seen = 0;
        rig.receive_from(handle, repeat).unwrap();
        while seen < 20 {
            // The first datagram arrives in any case; after all buffers are leased, none arrives.
            let mut next = Some(rig.next());
            while let Some(done) = next {
                leases.push(datagram(done.event).into_lease());
                if repeat == Repeat::Once {
                    rig.receive_from(handle, repeat).unwrap();
                }
                next = rig.dispatch(Duration::from_millis(1)).unwrap();
            }
            assert!(leases.len() <= 4, "{} leases of 4 buffers", leases.len());
            for lease in leases.drain(..) {
                assert_eq!(*lease, [seen]);
                seen += 1;
            }
        }
        assert!(rig.counters().buffer_waits > 0, "{:?}", rig.counters());
    }
}

pub(crate) fn many_sockets_at_once(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (ours, _) = udp("127.0.0.1");
    let sockets: Vec<_> = (0..300)
        .map(|number| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let address = socket.local_addr().unwrap();
            let handle = rig.channel.register(socket, number).unwrap();
            let once = number % 2 == 0;
            let repeat = if once { Repeat::Once } else { Repeat::UntilCancelled };
            rig.receive_from(handle, repeat).unwrap();
            address
        })
        .collect();
    for (number, address) in sockets.iter().enumerate() {
        ours.send_to(&(number as u64).to_ne_bytes(), address).unwrap();
    }
    let mut seen = vec![false; sockets.len()];
    for _ in &sockets {
        let done = rig.next();
        let cookie = *rig.cookie(done.handle).unwrap();
        assert_eq!(done.more, cookie % 2 == 1);
        assert_eq!(*datagram(done.event), cookie.to_ne_bytes());
        assert!(!std::mem::replace(&mut seen[cookie as usize], true));
    }
}
