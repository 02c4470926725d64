//! Tests of streams of foreign programs, which have no headers.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::*;
use crate::transport::{Direction, Record, SLOTS_MAX};

type Raw = Box<dyn Transport>;

fn raw_and_program() -> (Raw, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    (foreign(OwnedFd::from(ours).into(), Kind::Unix).unwrap(), theirs)
}

fn send(raw: &mut Raw, bytes: &[u8], record: Record) {
    let mut slot = raw.acquire_write(bytes.len()).unwrap().unwrap();
    slot.copy_from_slice(bytes);
    raw.commit(slot, bytes.len(), record).unwrap();
}

#[test]
fn bytes_go_out_and_come_in_as_they_are() {
    let (mut raw, mut program) = raw_and_program();
    send(&mut raw, b"hello", Record::Data);
    let mut seen = [0; 5];
    program.read_exact(&mut seen).unwrap();
    assert_eq!(&seen, b"hello");

    assert!(raw.acquire_read().unwrap().is_none());
    program.write_all(b"answer").unwrap();
    assert!(raw.wait(Direction::Read, Some(Duration::from_secs(20))).unwrap());
    let slot = raw.acquire_read().unwrap().unwrap();
    assert_eq!((&slot[..], slot.record()), (&b"answer"[..], Record::Data));
    raw.release(slot);
}

#[test]
fn each_direction_ends_by_itself() {
    let (mut raw, mut program) = raw_and_program();
    send(&mut raw, b"last", Record::Data);
    send(&mut raw, b"", Record::EndOfFlow);
    let mut all = Vec::new();
    program.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"last");

    program.write_all(b"still here").unwrap();
    drop(program);
    let slot = raw.acquire_read().unwrap().unwrap();
    assert_eq!(&slot[..], b"still here");
    let end = raw.acquire_read().unwrap().unwrap();
    assert_eq!((end.len(), end.record()), (0, Record::EndOfFlow));
    raw.release(end);
    raw.release(slot);
    assert!(matches!(raw.acquire_read(), Err(TransportError::Closed)));
}

#[test]
fn a_program_that_does_not_read_is_felt_at_the_next_buffer() {
    let (mut raw, mut program) = raw_and_program();
    let message: Vec<u8> = (0..50_000_u32).map(|number| number as u8).collect();
    let mut sent = 0;
    while let Some(mut slot) = raw.acquire_write(message.len()).unwrap() {
        slot.copy_from_slice(&message);
        raw.commit(slot, message.len(), Record::Data).unwrap();
        sent += 1;
        assert!(sent < 1000, "there is an end to what a socket holds");
    }
    assert!(!raw.wait(Direction::Write, Some(Duration::ZERO)).unwrap());
    let reader = std::thread::spawn(move || {
        let mut all = vec![0; sent * message.len()];
        program.read_exact(&mut all).unwrap();
        all.chunks_exact(message.len()).all(|chunk| chunk == message)
    });
    while !raw.flush().unwrap() {
        assert!(raw.wait(Direction::Write, Some(Duration::from_secs(20))).unwrap());
    }
    assert!(reader.join().unwrap(), "nothing is lost, repeated or changed");
}

#[test]
fn a_batch_is_sent_when_it_is_full_or_flushed() {
    let (mut raw, mut program) = raw_and_program();
    program.set_nonblocking(true).unwrap();
    raw.set_batch(2);
    let mut seen = [0; 16];
    send(&mut raw, b"one", Record::Data);
    assert!(program.read(&mut seen).is_err());
    send(&mut raw, b"two", Record::Data);
    assert_eq!(program.read(&mut seen).unwrap(), 6);
    send(&mut raw, b"three", Record::Data);
    assert!(raw.flush().unwrap());
    assert_eq!(program.read(&mut seen).unwrap(), 5);
}

#[test]
fn too_many_slots_and_foreign_ones_are_refused() {
    let (mut raw, _program) = raw_and_program();
    let (mut other, _program) = raw_and_program();
    let slots: Vec<_> = (0..SLOTS_MAX).map(|_| raw.acquire_write(1).unwrap().unwrap()).collect();
    assert!(matches!(raw.acquire_write(1), Err(TransportError::TooManySlots { .. })));
    let too_long = raw.message_bytes_max() + 1;
    assert!(matches!(raw.acquire_write(too_long), Err(TransportError::TooLong { .. })));
    for slot in slots {
        raw.abandon(slot);
    }
    let slot = raw.acquire_write(1).unwrap().unwrap();
    assert!(matches!(other.commit(slot, 1, Record::Data), Err(TransportError::Foreign)));
}

#[test]
fn a_slot_may_outlive_its_transport() {
    let (mut raw, mut program) = raw_and_program();
    program.write_all(b"kept").unwrap();
    let slot = raw.acquire_read().unwrap().unwrap();
    drop(raw);
    assert_eq!(&slot[..], b"kept");
}

#[test]
fn a_program_that_is_gone_is_told() {
    let (mut raw, program) = raw_and_program();
    drop(program);
    let slot = raw.acquire_write(1).unwrap().unwrap();
    assert!(matches!(raw.commit(slot, 1, Record::Data), Err(TransportError::Closed)));
}

/// A program may end its direction and go on reading.
#[test]
fn a_program_that_has_ended_its_direction_still_gets_what_is_sent() {
    let (mut raw, mut program) = raw_and_program();
    program.shutdown(Shutdown::Write).unwrap();
    let end = raw.acquire_read().unwrap().unwrap();
    assert_eq!(end.record(), Record::EndOfFlow);
    raw.release(end);
    send(&mut raw, b"answer", Record::Data);
    send(&mut raw, b"", Record::EndOfFlow);
    let mut all = Vec::new();
    program.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"answer");
}

/// A connection that was reset has lost data: it must not look like a stream that has ended.
#[test]
fn a_connection_that_is_reset_is_no_end_of_the_stream() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let program = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (ours, _) = listener.accept().unwrap();
    let mut raw = foreign(OwnedFd::from(ours).into(), Kind::TcpNodelay).unwrap();
    let program = Socket::from(program);
    program.set_linger(Some(Duration::ZERO)).unwrap();
    drop(program);
    assert!(raw.wait(Direction::Read, Some(Duration::from_secs(60))).unwrap());
    for _ in 0..2 {
        assert!(matches!(raw.acquire_read(), Err(TransportError::Closed)));
    }
}

/// Messages without bytes are none in a stream without headers.
#[test]
fn an_empty_message_sends_and_blocks_nothing() {
    let (mut raw, mut program) = raw_and_program();
    send(&mut raw, b"", Record::Data);
    assert!(raw.flush().unwrap());
    send(&mut raw, b"next", Record::Data);
    let mut seen = [0; 4];
    program.read_exact(&mut seen).unwrap();
    assert_eq!(&seen, b"next");
}
