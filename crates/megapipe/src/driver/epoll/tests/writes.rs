//! Tests writes that the kernel takes in parts.

use super::*;
use crate::driver::epoll::vector::consume;
use proptest::prelude::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;

/// Reads everything until the end, a little at a time, in a thread.
fn slow_reader(mut far: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let (mut all, mut room) = (Vec::new(), [0; 5000]);
        loop {
            match far.read(&mut room).unwrap() {
                0 => return all,
                bytes => all.extend_from_slice(&room[..bytes]),
            }
            thread::yield_now();
        }
    })
}

#[test]
fn a_write_ends_with_what_is_taken() {
    let sent = pattern(8 << 20);
    let mut rig = Rig::new();
    let (near, far) = tcp_pair();
    let near = rig.attach(near);
    let taken = rig.fill(1, near, &sent);
    assert!((1..sent.len()).contains(&taken), "{taken} bytes");
    let reader = slow_reader(far);
    rig.finish_write(1, near, &sent[taken..]);
    rig.driver.close(2, near, &[]).unwrap();
    assert_eq!(rig.last(2), 0);
    assert!(reader.join().unwrap() == sent);
}

#[test]
fn so_does_a_vectored_one() {
    let sent = pattern(4 << 20);
    for over_pipe in [false, true] {
        let mut rig = Rig::new();
        let (head, rest) = sent.split_at(3);
        let (middle, tail) = rest.split_at(3 << 20);
        let vector = parts([head, &[], middle, tail]);
        let (near, reader): (OwnedFd, _) = if over_pipe {
            let (reader, writer) = pipe();
            (writer, slow_reader(std::fs::File::from(reader)))
        } else {
            let (near, far) = UnixStream::pair().unwrap();
            (near.into(), slow_reader(far))
        };
        let near = rig.attach(near);
        let mut left = vector.to_vec();
        while !left.is_empty() {
            rig.submit(1, near, write_parts(&left));
            consume(&mut left, rig.last(1) as usize);
        }
        rig.driver.close(2, near, &[]).unwrap();
        assert!(reader.join().unwrap() == sent);
    }
}

#[test]
fn empty_writes_end() {
    let mut rig = Rig::new();
    let (near, _far) = tcp_pair();
    let near = rig.attach(near);
    rig.submit(1, near, write(&[]));
    assert_eq!(rig.last(1), 0);
    rig.submit(2, near, write_parts(&[]));
    assert_eq!(rig.last(2), 0);
    rig.submit(3, near, write_parts(&parts([&[], &[]])));
    assert_eq!(rig.last(3), 0);
}

#[test]
fn an_error_after_some_bytes_ends_the_write() {
    let mut rig = Rig::new();
    let (near, far) = tcp_pair();
    let near = rig.attach(near);
    let sent = pattern(16 << 20);
    rig.fill(1, near, &sent);
    reset_on_close(&far);
    drop(far);
    assert_eq!(rig.last(1), -libc::ECONNRESET);
    rig.submit(2, near, write(&sent));
    assert_eq!(rig.last(2), -libc::EPIPE);
}

#[test]
fn a_message_on_a_stream_is_one_try() {
    let mut rig = Rig::new();
    let (near, mut far) = tcp_pair();
    let near = rig.attach(near);
    let mut vector = parts([b"two ", b"parts"]);
    let mut header = super::super::calls::message();
    header.msg_iov = vector.as_mut_ptr();
    header.msg_iovlen = vector.len() as _;
    rig.submit(1, near, Operation::SendTo { message: &raw const header });
    assert_eq!(rig.last(1), 9);
    let mut text = [0; 9];
    far.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"two parts");
}

/// How one side of a connection moves its bytes.
#[derive(Clone, Debug)]
enum Inflow {
    Repeat(bool),
    Once(bool),
    Read(usize),
    ReadParts(usize, usize),
}

fn inflow() -> impl Strategy<Value = Inflow> {
    prop_oneof![
        any::<bool>().prop_map(Inflow::Repeat),
        any::<bool>().prop_map(Inflow::Once),
        (1usize..5000).prop_map(Inflow::Read),
        (1usize..3000, 1usize..3000).prop_map(|(first, second)| Inflow::ReadParts(first, second)),
    ]
}

const IN: u64 = 1;
const OUT: u64 = 2;

/// Sends `sent` in writes of the given sizes and receives it as `inflow` says, all in one driver.
fn stream_through(near: Source, far: Source, sent: &[u8], sizes: &[usize], inflow: &Inflow) {
    let mut rig = Rig::tight();
    let (near, far) = (rig.attach(near), rig.attach(far));
    let mut chunks = sizes.iter().copied().cycle();
    let (mut written, mut got) = (0, Vec::new());
    let (mut first, mut second) = (vec![0; 5000], vec![0; 3000]);
    let mut vector = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 2];
    let (mut writes, mut reads) = (true, true);
    let mut piece = Vec::new();
    loop {
        if writes && written < sent.len() {
            let bytes = chunks.next().unwrap().min(sent.len() - written);
            let (head, tail) = sent[written..written + bytes].split_at(bytes / 3);
            piece = parts([head, tail]).to_vec();
            let whole = &sent[written..written + bytes];
            let vectored = bytes % 2 == 0;
            rig.submit(OUT, near, if vectored { write_parts(&piece) } else { write(whole) });
            writes = false;
        } else if writes {
            rig.submit(OUT, near, Operation::Shutdown { how: libc::SHUT_WR });
            writes = false;
        }
        if reads {
            let operation = match *inflow {
                Inflow::Repeat(large) => Operation::Receive { large, repeat: true },
                Inflow::Once(large) => Operation::Receive { large, repeat: false },
                Inflow::Read(bytes) => read(&mut first[..bytes]),
                Inflow::ReadParts(one, two) => {
                    vector = parts([&first[..one], &second[..two]]);
                    read_parts(&vector)
                }
            };
            rig.submit(IN, far, operation);
            reads = false;
        }
        let outcome = rig.next();
        if outcome.tag == OUT {
            assert!(outcome.result >= 0, "{outcome:?}");
            written += outcome.result as usize;
            writes = outcome.result > 0;
            continue;
        }
        reads = !outcome.more;
        match (outcome.result, outcome.output) {
            (0, _) => break,
            (bytes, Output::Lease(lease)) if bytes > 0 => got.extend_from_slice(&lease),
            (bytes, _) if bytes > 0 => {
                let bytes = bytes as usize;
                let split = match *inflow {
                    Inflow::ReadParts(one, _) => bytes.min(one),
                    _ => bytes,
                };
                got.extend_from_slice(&first[..split]);
                got.extend_from_slice(&second[..bytes - split]);
            }
            (result, _) => assert_eq!(result, -libc::ENOBUFS),
        }
    }
    drop((piece, vector, first, &mut second));
    assert!(got == sent, "{} of {} bytes", got.len(), sent.len());
}

fn few() -> ProptestConfig {
    ProptestConfig { cases: 48, failure_persistence: None, ..Default::default() }
}

proptest! {
    #![proptest_config(few())]

    #[test]
    fn bytes_in_are_bytes_out(
        length in 0usize..300_000,
        sizes in prop::collection::vec(1usize..60_000, 1..8),
        inflow in inflow(),
        over_tcp in any::<bool>(),
        room in 0usize..20_000,
    ) {
        let sent = pattern(length);
        if over_tcp {
            let (near, far) = tcp_pair();
            set_option(&near, libc::SOL_SOCKET, libc::SO_SNDBUF, room as i32);
            stream_through(near.into(), far.into(), &sent, &sizes, &inflow);
        } else {
            let (near, far) = UnixStream::pair().unwrap();
            set_option(&near, libc::SOL_SOCKET, libc::SO_SNDBUF, room as i32);
            stream_through(near.into(), far.into(), &sent, &sizes, &inflow);
        }
    }
}

#[test]
fn a_chatty_peer_in_another_thread_loses_nothing() {
    let mut rig = Rig::new();
    let (near, far) = tcp_pair();
    let near = rig.attach(near);
    let sent = pattern(3 << 20);
    let bytes = sent.clone();
    let sender = thread::spawn(move || {
        let mut far = far;
        for chunk in bytes.chunks(777) {
            far.write_all(chunk).unwrap();
        }
    });
    rig.submit(1, near, receive(true));
    let mut got = Vec::new();
    loop {
        let outcome = rig.next();
        match outcome.output {
            Output::Lease(lease) => got.extend_from_slice(&lease),
            _ => {
                assert_eq!((outcome.result, outcome.more), (0, false));
                break;
            }
        }
    }
    sender.join().unwrap();
    assert!(got == sent);
}
