//! Tests functions for programs in other languages: polls, transfers in their own memory,
//! cancelling one direction, and the peer's address as a request.

use crate::common::{
    Pattern, Rig, TIME_LIMIT, client, expect_end, inet, listener, outcome, received,
};
use crate::common::{accepted, is_installed, listener_of, read_of, udp, unix_pair};
use megapipe::{Accept, Direction, DriverChoice, Error, Event, Kind, RawCommand, Repeat, Transfer};
use megapipe::{Handle, Transferred};
use std::fs::File;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::Duration;

const IN: u32 = libc::POLLIN as u32;
const OUT: u32 = libc::POLLOUT as u32;
const END: u32 = libc::POLLRDHUP as u32;

#[track_caller]
fn polled(event: Event) -> u32 {
    match event {
        Event::Poll(Ok(events)) => events,
        other => panic!("expected events: {other:?}"),
    }
}

#[track_caller]
fn transferred(event: Event) -> Transferred {
    match event {
        Event::Transfer(transferred) => transferred,
        other => panic!("expected a transfer: {other:?}"),
    }
}

/// Submits a transfer of memory that the test keeps until it has completed.
fn transfer(rig: &mut Rig, handle: Handle, transfer: Transfer<'_>) {
    // SAFETY: the tests keep the memory, and do not use it, until they have seen the completion.
    unsafe { rig.channel.transfer(handle, transfer) }.unwrap();
}

pub(crate) fn a_poll_tells_what_is_there(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (mut ours, handle) = rig.tcp_pair();
    rig.poll(handle, IN | OUT, Repeat::Once).unwrap();
    assert_eq!(polled(rig.last(handle)), OUT);
    ours.write_all(b"x").unwrap();
    rig.poll(handle, IN, Repeat::Once).unwrap();
    assert_eq!(polled(rig.last(handle)), IN);
    // The byte can still be read.
    rig.poll(handle, IN, Repeat::Once).unwrap();
    assert_eq!(polled(rig.last(handle)), IN);
}

pub(crate) fn a_poll_waits_for_what_is_not_there(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (mut ours, theirs) = unix_pair();
    let handle = rig.join(theirs);
    rig.poll(handle, IN, Repeat::Once).unwrap();
    assert!(rig.dispatch(Duration::from_millis(20)).unwrap().is_none());
    ours.write_all(b"x").unwrap();
    assert_eq!(polled(rig.last(handle)), IN);
}

pub(crate) fn a_repeating_poll_tells_each_edge(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (mut ours, handle) = rig.tcp_pair();
    rig.poll(handle, IN, Repeat::UntilCancelled).unwrap();
    for round in 0..20u8 {
        ours.write_all(&[round]).unwrap();
        while polled(rig.another(handle)) & IN == 0 {}
        rig.read(handle, Vec::with_capacity(1)).unwrap();
        let byte = loop {
            match rig.next().event {
                Event::Poll(_) => {}
                event => break read_of(event),
            }
        };
        assert_eq!(byte, [round]);
    }
    rig.cancel(handle).unwrap();
    // An edge may have been reported twice.
    let ended = rig.drain();
    assert_eq!(outcome_of_poll(&ended.last().unwrap().event), Err(libc::ECANCELED));
}

fn outcome_of_poll(event: &Event) -> Result<u32, i32> {
    match event {
        Event::Poll(Ok(events)) => Ok(*events),
        Event::Poll(Err(error)) => Err(error.raw_os_error().unwrap()),
        other => panic!("expected the outcome of a poll: {other:?}"),
    }
}

pub(crate) fn a_poll_tells_the_end(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (ours, handle) = rig.tcp_pair();
    rig.poll(handle, IN | END, Repeat::UntilCancelled).unwrap();
    drop(ours);
    let mut seen = 0;
    while seen & END == 0 {
        seen |= polled(rig.another(handle));
    }
    assert_eq!(seen & IN, IN, "the end is also something to read");
}

pub(crate) fn a_poll_leaves_the_data_to_others(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (mut ours, handle) = rig.tcp_pair();
    rig.poll(handle, IN, Repeat::UntilCancelled).unwrap();
    rig.receive(handle, Repeat::Once).unwrap();
    ours.write_all(b"both").unwrap();
    let (mut events, mut bytes) = (0, Vec::new());
    while events == 0 || bytes.is_empty() {
        match rig.next().event {
            Event::Poll(Ok(more)) => events |= more,
            other => bytes.extend_from_slice(&received(other)),
        }
    }
    assert_eq!((events, bytes.as_slice()), (IN, &b"both"[..]));
}

pub(crate) fn a_cancelled_poll_ends(driver: DriverChoice) {
    for repeat in [Repeat::Once, Repeat::UntilCancelled] {
        let mut rig = Rig::new(driver);
        let (_ours, handle) = rig.tcp_pair();
        rig.poll(handle, IN, repeat).unwrap();
        rig.poll(handle, IN, repeat).unwrap();
        assert!(rig.dispatch(Duration::from_millis(5)).unwrap().is_none());
        rig.cancel(handle).unwrap();
        for _ in 0..2 {
            assert_eq!(outcome_of_poll(&rig.last(handle)), Err(libc::ECANCELED));
        }
        assert_eq!(rig.outstanding(), 0);
    }
}

pub(crate) fn a_poll_goes_with_its_handle(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (mut ours, handle) = rig.tcp_pair();
    rig.poll(handle, IN, Repeat::UntilCancelled).unwrap();
    assert!(rig.dispatch(Duration::ZERO).unwrap().is_none());
    let descriptor = rig.unregister(handle).unwrap().descriptor;
    assert_eq!(descriptor.is_none(), is_installed(driver));
    ours.write_all(b"x").unwrap();
    assert!(rig.dispatch(Duration::from_millis(20)).unwrap().is_none());
    // Nothing of the poll keeps the socket open.
    drop(descriptor);
    let mut rest = Vec::new();
    let ended = ours.read_to_end(&mut rest);
    assert!(ended.is_ok() || ended.unwrap_err().raw_os_error() == Some(libc::ECONNRESET));
    assert!(rest.is_empty());
}

pub(crate) fn polls_of_other_events_and_kinds_are_refused(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (_ours, handle) = rig.tcp_pair();
    let odd = rig.poll(handle, 1 << 20, Repeat::Once);
    assert!(matches!(odd, Err(Error::Invalid(_))), "{odd:?}");
    let file = rig.join(tempfile::tempfile().unwrap());
    assert!(matches!(rig.poll(file, IN, Repeat::Once), Err(Error::WrongKind { .. })));
    assert_eq!(rig.outstanding(), 0);
}

pub(crate) fn a_listener_is_polled(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (listener, address) = listener();
    let handle = rig.join(listener);
    rig.poll(handle, IN, Repeat::UntilCancelled).unwrap();
    for _ in 0..3 {
        let _client = client(address);
        assert_eq!(polled(rig.another(handle)) & IN, IN);
        rig.accept(handle, Accept::lightweight().count(1)).unwrap();
        while let Event::Poll(_) = rig.next().event {}
    }
}

pub(crate) fn memory_is_read_into_and_written_from(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (mut ours, handle) = rig.tcp_pair();
    let mut memory = [0u8; 32];
    let (address, bytes) = (memory.as_mut_ptr(), memory.len());
    transfer(&mut rig, handle, Transfer::Read { address, bytes, offset: None });
    ours.write_all(b"hello").unwrap();
    let read = transferred(rig.last(handle));
    assert_eq!((read.command, read.bytes.unwrap()), (RawCommand::Read, 5));
    assert_eq!((read.address, read.offset), (address, None));
    assert_eq!(&memory[..5], b"hello");
    let text = *b"goodbye";
    let (address, bytes) = (text.as_ptr(), text.len());
    transfer(&mut rig, handle, Transfer::Write { address, bytes, offset: None });
    let written = transferred(rig.last(handle));
    assert_eq!((written.command, written.bytes.unwrap()), (RawCommand::Write, 7));
    let mut answer = [0; 7];
    ours.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"goodbye");
    // The end of the stream is a read of 0 bytes.
    let (address, bytes) = (memory.as_mut_ptr(), memory.len());
    transfer(&mut rig, handle, Transfer::Read { address, bytes, offset: None });
    drop(ours);
    assert_eq!(transferred(rig.last(handle)).bytes.unwrap(), 0);
}

pub(crate) fn a_transfer_looks_without_taking(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (mut ours, handle) = rig.tcp_pair();
    let mut memory = [0u8; 6];
    let (address, bytes) = (memory.as_mut_ptr(), memory.len());
    transfer(&mut rig, handle, Transfer::Peek { address, bytes });
    assert!(rig.dispatch(Duration::ZERO).unwrap().is_none(), "there is nothing to look at");
    ours.write_all(b"what waits").unwrap();
    for _ in 0..2 {
        let peeked = transferred(rig.last(handle));
        assert_eq!((peeked.command, peeked.bytes.unwrap()), (RawCommand::Peek, 6));
        assert_eq!((peeked.address, peeked.offset), (address, None));
        assert_eq!(&memory, b"what w");
        transfer(&mut rig, handle, Transfer::Peek { address, bytes });
    }
    rig.read(handle, Vec::with_capacity(10)).unwrap();
    assert_eq!(transferred(rig.last(handle)).bytes.unwrap(), 6);
    assert_eq!(read_of(rig.last(handle)), b"what waits");
    // One message, which must fit.
    let (receiver, to) = udp("127.0.0.1");
    let receiver = rig.join(receiver);
    udp("127.0.0.1").0.send_to(b"too long", to).unwrap();
    transfer(&mut rig, receiver, Transfer::Peek { address, bytes });
    let refused = transferred(rig.last(receiver)).bytes.unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EMSGSIZE));
    assert_eq!(&memory, b"too lo");
    rig.read(receiver, Vec::with_capacity(9)).unwrap();
    assert_eq!(read_of(rig.last(receiver)), b"too long");
    // The end, which later peeks report again.
    drop(ours);
    for _ in 0..2 {
        transfer(&mut rig, handle, Transfer::Peek { address, bytes });
        assert_eq!(transferred(rig.last(handle)).bytes.unwrap(), 0);
    }
    let file = rig.join(tempfile::tempfile().unwrap());
    // SAFETY: `memory` is in place; the requests are refused.
    let (wrong, empty) = unsafe {
        let wrong = rig.channel.transfer(file, Transfer::Peek { address, bytes });
        (wrong, rig.channel.transfer(handle, Transfer::Peek { address, bytes: 0 }))
    };
    assert!(matches!(wrong, Err(Error::WrongKind { .. })), "{wrong:?}");
    assert!(matches!(empty, Err(Error::Invalid(_))), "{empty:?}");
}

/// The socket takes the write in parts; every kind of source that can be written.
pub(crate) fn a_transfer_is_followed_by_another(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let pattern = Pattern::new(9);
    let (mut ours, handle) = rig.tcp_pair();
    let body = pattern.bytes(0, 6_000_000);
    let (address, bytes) = (body.as_ptr(), body.len() / 2);
    transfer(&mut rig, handle, Transfer::WriteMore { address, bytes });
    let address = address.wrapping_add(bytes);
    transfer(&mut rig, handle, Transfer::WriteMore { address, bytes });
    rig.disconnect(handle, Shutdown::Write).unwrap();
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        ours.read_to_end(&mut all).unwrap();
        all
    });
    for _ in 0..2 {
        let written = transferred(rig.last(handle));
        assert_eq!((written.command, written.bytes.unwrap()), (RawCommand::WriteMore, 3_000_000));
    }
    assert_eq!(outcome(&rig.last(handle)), Ok(0));
    let all = reader.join().unwrap();
    assert_eq!(all.len(), body.len());
    pattern.check(0, &all);
    let file = rig.join(tempfile::tempfile().unwrap());
    let (address, bytes) = (body.as_ptr(), 10);
    transfer(&mut rig, file, Transfer::WriteMore { address, bytes });
    assert_eq!(transferred(rig.last(file)).bytes.unwrap(), 10);
}

pub(crate) fn transfers_at_offsets(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let file: File = tempfile::tempfile().unwrap();
    let handle = rig.join(file.try_clone().unwrap());
    assert_eq!(rig.kind(handle).unwrap(), Kind::File);
    let text = *b"0123456789";
    let (address, bytes) = (text.as_ptr(), text.len());
    transfer(&mut rig, handle, Transfer::Write { address, bytes, offset: Some(100) });
    let written = transferred(rig.last(handle));
    assert_eq!((written.bytes.unwrap(), written.offset), (10, Some(100)));
    let mut memory = [0u8; 4];
    let (address, bytes) = (memory.as_mut_ptr(), memory.len());
    transfer(&mut rig, handle, Transfer::Read { address, bytes, offset: Some(103) });
    let read = transferred(rig.last(handle));
    assert_eq!((read.bytes.unwrap(), read.offset), (4, Some(103)));
    assert_eq!(&memory, b"3456");
    let (_ours, stream) = rig.tcp_pair();
    let misplaced = Transfer::Read { address, bytes, offset: Some(1) };
    // SAFETY: `memory` is in place; the request is refused.
    let refused = unsafe { rig.channel.transfer(stream, misplaced) };
    assert!(matches!(refused, Err(Error::WrongKind { .. })), "{refused:?}");
}

fn pieces(memory: &[&[u8]]) -> Vec<libc::iovec> {
    let piece = |part: &&[u8]| libc::iovec {
        iov_base: part.as_ptr().cast_mut().cast(),
        iov_len: part.len(),
    };
    memory.iter().map(piece).collect()
}

pub(crate) fn vectored_transfers_are_whole(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let pattern = Pattern::new(5);
    let (mut ours, handle) = rig.tcp_pair();
    let (head, body) = (pattern.bytes(0, 7), pattern.bytes(7, 3_000_000));
    let vector = pieces(&[&head, &[], &body]);
    transfer(&mut rig, handle, Transfer::WriteVectored(&vector));
    drop(vector);
    let reader = std::thread::spawn(move || {
        let mut all = vec![0; 3_000_007];
        ours.read_exact(&mut all).unwrap();
        (ours, all)
    });
    let written = transferred(rig.last(handle));
    assert_eq!((written.command, written.bytes.unwrap()), (RawCommand::WriteVectored, 3_000_007));
    let (mut ours, all) = reader.join().unwrap();
    pattern.check(0, &all);
    ours.write_all(&all[..10]).unwrap();
    let (mut first, mut second) = ([0u8; 4], [0u8; 20]);
    let vector = [
        libc::iovec { iov_base: first.as_mut_ptr().cast(), iov_len: first.len() },
        libc::iovec { iov_base: second.as_mut_ptr().cast(), iov_len: second.len() },
    ];
    transfer(&mut rig, handle, Transfer::ReadVectored(&vector));
    let read = transferred(rig.last(handle));
    assert_eq!((read.command, read.bytes.unwrap()), (RawCommand::ReadVectored, 10));
    pattern.check(0, &first);
    pattern.check(4, &second[..6]);
}

pub(crate) fn a_long_transfer_is_whole(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let pattern = Pattern::new(6);
    let (mut ours, handle) = rig.tcp_pair();
    let body = pattern.bytes(0, 8_000_000);
    let (address, bytes) = (body.as_ptr(), body.len());
    transfer(&mut rig, handle, Transfer::Write { address, bytes, offset: None });
    let reader = std::thread::spawn(move || {
        let mut all = vec![0; 8_000_000];
        ours.read_exact(&mut all).unwrap();
        all
    });
    assert_eq!(transferred(rig.last(handle)).bytes.unwrap(), 8_000_000);
    pattern.check(0, &reader.join().unwrap());
}

pub(crate) fn transfers_without_room_are_refused(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (_ours, handle) = rig.tcp_pair();
    let address = std::ptr::dangling_mut();
    let many = vec![libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 1025];
    let refused = [
        Transfer::Read { address, bytes: 0, offset: None },
        Transfer::ReadVectored(&[]),
        Transfer::WriteVectored(&many),
    ];
    for transfer in refused {
        // SAFETY: the transfers have no memory.
        let result = unsafe { rig.channel.transfer(handle, transfer) };
        assert!(matches!(result, Err(Error::Invalid(_))), "{transfer:?}: {result:?}");
    }
    transfer(&mut rig, handle, Transfer::Write { address, bytes: 0, offset: None });
    assert_eq!(transferred(rig.last(handle)).bytes.unwrap(), 0);
}

pub(crate) fn one_direction_is_cancelled(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (mut ours, handle) = rig.tcp_pair();
    // More bytes than the socket takes, so the write stays in flight.
    let body = Pattern::new(7).bytes(0, 16 << 20);
    rig.write(handle, body).unwrap();
    rig.receive(handle, Repeat::UntilCancelled).unwrap();
    rig.read(handle, Vec::with_capacity(8)).unwrap();
    assert!(rig.dispatch(Duration::from_millis(5)).unwrap().is_none());
    rig.cancel_direction(handle, Direction::Inbound).unwrap();
    for _ in 0..2 {
        assert_eq!(outcome(&rig.last(handle)), Err(libc::ECANCELED));
    }
    assert_eq!(rig.outstanding(), 1);
    rig.receive(handle, Repeat::UntilCancelled).unwrap();
    ours.write_all(b"still here").unwrap();
    assert_eq!(&*received(rig.another(handle)), b"still here");
    rig.cancel_direction(handle, Direction::Outbound).unwrap();
    let Event::Write(Ok(left), buffer) = rig.last(handle) else { panic!("a write in part") };
    assert!(left > 0 && left < buffer.len(), "{left} bytes have left");
    assert_eq!(rig.outstanding(), 1);
}

/// Receives and cancels alternately, as a server does that must not hold too many buffers.
pub(crate) fn a_cancelled_receive_loses_nothing(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let pattern = Pattern::new(8);
    let (mut ours, handle) = rig.tcp_pair();
    let total = 2_000_000;
    let body = pattern.bytes(0, total);
    let writer = std::thread::spawn(move || {
        ours.write_all(&body).unwrap();
        ours
    });
    let (mut got, mut came, mut ends, mut receiving) = (0, 0, 0, false);
    while got < total {
        if !receiving {
            rig.receive(handle, Repeat::UntilCancelled).unwrap();
            receiving = true;
        }
        let done = rig.next();
        match &done.event {
            Event::Receive(Ok(lease)) => {
                pattern.check(got, lease);
                got += lease.len();
                came += 1;
                if done.more && came % 3 == 0 {
                    rig.cancel_direction(handle, Direction::Inbound).unwrap();
                }
            }
            event => assert_eq!(outcome(event), Err(libc::ECANCELED)),
        }
        if !done.more {
            receiving = false;
            ends += 1;
        }
    }
    assert!(ends > 0, "nothing was ever cancelled");
    drop(writer.join().unwrap());
}

pub(crate) fn the_peer_address_as_a_request(driver: DriverChoice) {
    for family in 0..2 {
        let mut rig = Rig::new(driver);
        let (listener, address) = listener_of(family);
        let listening = rig.join(listener);
        rig.accept(listening, Accept::lightweight().count(1)).unwrap();
        let mut client = client(address);
        let socket = accepted(rig.last(listening)).socket;
        let number = socket.lightweight_number();
        assert_eq!(number.is_some_and(|number| number >= 1 << 30), socket.is_lightweight());
        let handle = rig.join(socket);
        rig.request_peer_address(handle).unwrap();
        match rig.last(handle) {
            Event::PeerAddress(Ok(peer)) => assert_eq!(peer, inet(client.local_addr().unwrap())),
            other => panic!("expected an address: {other:?}"),
        }
        rig.close(handle).unwrap();
        assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
        expect_end(&mut client);
    }
    let mut rig = Rig::new(driver);
    let (_ours, theirs) = unix_pair();
    let handle = rig.join(theirs);
    rig.request_peer_address(handle).unwrap();
    let done = rig.dispatch(TIME_LIMIT).unwrap().expect("an answer");
    let unnamed = megapipe::Address::Unnamed;
    assert!(matches!(done.event, Event::PeerAddress(Ok(peer)) if peer == unnamed));
}
