//! Tests connections of a stack to its own addresses, on one core and between cores: their packets
//! are looped back and do not reach the device.

use crate::pair::{GUARD, Pair, address, config};
use mtcp::config::Mode;
use mtcp::{Context, Descriptor, Family, Mtcp};
use std::io;
use std::time::Instant;

const BYTES: usize = 3 << 20;

fn is_pending(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINPROGRESS | libc::EALREADY))
}

/// Starts to connect without waiting.
fn begin(context: &mut Context, port: u16) -> Descriptor {
    let socket = context.socket(Family::V4).expect("a socket");
    context.set_nonblocking(socket, true).expect("a socket");
    let error = context.connect(socket, address(port)).expect_err("not at once");
    assert_eq!(error.raw_os_error(), Some(libc::EINPROGRESS));
    socket
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 % 251) as u8).collect()
}

/// Sends the same data in both directions at once, and checks what arrives.
fn exchange(pair: &mut Pair, ends: [Descriptor; 2]) {
    let data = pattern(BYTES);
    let (mut sent, mut received) = ([0; 2], [0; 2]);
    let mut room = vec![0; 1 << 16];
    pair.until(|pair| {
        for (end, socket) in ends.into_iter().enumerate() {
            match pair.server.write(socket, &data[sent[end]..]) {
                Ok(bytes) => sent[end] += bytes,
                Err(error) => assert!(is_pending(&error), "to write: {error}"),
            }
            match pair.server.read(socket, &mut room) {
                Ok(bytes) => {
                    assert!(room[..bytes] == data[received[end]..received[end] + bytes], "data");
                    received[end] += bytes;
                }
                Err(error) => assert!(is_pending(&error), "to read: {error}"),
            }
        }
        (received == [BYTES; 2]).then_some(())
    });
}

#[test]
fn a_stack_connects_to_its_own_address() {
    for mode in [Mode::Complete, Mode::Paired] {
        let mut pair = Pair::new(mode);
        let listener = pair.listen(80);
        let near = begin(&mut pair.server, 80);
        let far = pair.retry(|pair| pair.server.accept(listener)).expect("a connection");
        pair.server.set_nonblocking(far, true).expect("a socket");
        pair.until(|pair| pair.server.getpeername(near).ok());
        assert_eq!(pair.server.getpeername(far).unwrap().ip(), address(80).ip());
        exchange(&mut pair, [near, far]);
        pair.server.close(near).expect("it is open");
        let end = pair.retry(|pair| pair.server.read(far, &mut [0; 8]));
        assert_eq!(end.expect("the end"), 0, "{mode:?}");
        let refused = begin(&mut pair.server, 81);
        let error = pair.until(|pair| match pair.server.connect(refused, address(81)) {
            Err(error) if is_pending(&error) => None,
            done => done.err(),
        });
        assert_eq!(error.raw_os_error(), Some(libc::ECONNREFUSED), "{mode:?}");
        assert_eq!(pair.client.counters().packets_received, 0, "{mode:?}: packets on the device");
    }
}

/// As in the kernel: the SYN arrives at its own connection, which is a simultaneous open.
#[test]
fn a_socket_connects_to_itself() {
    let mut pair = Pair::new(Mode::Complete);
    let socket = pair.server.socket(Family::V4).expect("a socket");
    pair.server.set_nonblocking(socket, true).expect("a socket");
    pair.server.bind(socket, address(9000)).expect("a free port");
    pair.server.connect(socket, address(9000)).expect_err("not at once");
    pair.until(|pair| pair.server.getpeername(socket).ok());
    assert_eq!(pair.server.write(socket, b"echo").expect("room"), 4);
    let mut room = [0; 8];
    let bytes = pair.retry(|pair| pair.server.read(socket, &mut room)).expect("data");
    assert_eq!(&room[..bytes], b"echo");
}

#[test]
fn looped_packets_reach_the_core_that_owns_them() {
    const CORES: usize = 2;
    const CONNECTIONS: usize = 40;
    for mode in [Mode::Complete, Mode::Paired] {
        let mut left = config("10.0.0.1", mode);
        left.engine.cores = CORES as u16;
        let mut right = config("10.0.0.2", mode);
        right.engine.cores = CORES as u16;
        let (mtcp, _right) = Mtcp::pair(left, right, Default::default()).expect("stacks");
        let mut contexts: Vec<Context> =
            (0..CORES).map(|core| mtcp.context(core).expect("it is free")).collect();
        let listeners: Vec<Descriptor> = contexts
            .iter_mut()
            .map(|context| {
                let listener = context.socket(Family::V4).expect("a socket");
                context.set_nonblocking(listener, true).expect("a socket");
                context.bind(listener, address(80)).expect("a free port");
                context.listen(listener, 1024).expect("to listen");
                listener
            })
            .collect();
        let mut waiting: Vec<(usize, Descriptor)> = (0..CONNECTIONS)
            .map(|index| (index % CORES, begin(&mut contexts[index % CORES], 80)))
            .collect();
        let mut accepted = [0; CORES];
        let end = Instant::now() + GUARD;
        while !waiting.is_empty() {
            assert!(Instant::now() < end, "{mode:?}: {accepted:?}, {} wait", waiting.len());
            for (core, context) in contexts.iter_mut().enumerate() {
                context.turn().expect("a device");
                while let Ok(new) = context.accept(listeners[core]) {
                    accepted[core] += 1;
                    context.write(new, &[core as u8]).expect("room");
                }
            }
            waiting.retain(|&(core, socket)| contexts[core].read(socket, &mut [0]).is_err());
        }
        assert!(accepted.iter().all(|count| *count > 0), "{mode:?}: {accepted:?}");
    }
}
