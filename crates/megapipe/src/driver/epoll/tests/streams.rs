//! Tests receiving from streams, and cancelling receives.

use super::*;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

#[test]
fn what_is_there_comes_without_a_wait() {
    let mut rig = Rig::new();
    let (near, mut far) = UnixStream::pair().unwrap();
    let near = rig.attach(near);
    far.write_all(b"at once").unwrap();
    rig.submit(1, near, receive(false));
    assert_eq!(&*rig.lease(1), b"at once");
    let counters = rig.counters();
    assert_eq!((counters.system_calls, counters.waits), (1, 0));
}

#[test]
fn what_comes_later_is_waited_for() {
    let mut rig = Rig::new();
    let (near, mut far) = tcp_pair();
    let near = rig.attach(near);
    let mut room = [0; 100];
    for tag in 0..5 {
        rig.submit(tag, near, read(&mut room));
        rig.nothing();
        far.write_all(b"later").unwrap();
        assert_eq!(rig.last(tag), 5);
        assert_eq!(&room[..5], b"later");
    }
}

#[test]
fn a_repeating_receive_goes_on_until_the_end() {
    for large in [false, true] {
        let mut rig = Rig::new();
        let (near, mut far) = tcp_pair();
        let near = rig.attach(near);
        rig.submit(1, near, Operation::Receive { large, repeat: true });
        for message in [&b"one"[..], b"two", b"three", b"four"] {
            far.write_all(message).unwrap();
            assert_eq!(&*rig.lease(1), message);
        }
        drop(far);
        assert_eq!(rig.last(1), 0);
        rig.nothing();
        assert_eq!(rig.free_buffers(), (1024, 64));
    }
}

#[test]
fn a_request_and_its_answer_cost_three_calls_once_the_connection_is_known() {
    for repeat in [false, true] {
        let mut rig = Rig::new();
        let (near, mut far) = tcp_pair();
        let near = rig.attach(near);
        rig.submit(1, near, receive(repeat));
        for round in 0..8 {
            let before = rig.counters().system_calls;
            far.write_all(b"ping").unwrap();
            assert_eq!(&*rig.lease(1), b"ping");
            rig.submit(2, near, write(b"pong"));
            assert_eq!(rig.last(2), 4);
            far.read_exact(&mut [0; 4]).unwrap();
            if !repeat {
                rig.submit(1, near, receive(false));
            }
            let calls = rig.counters().system_calls - before;
            // epoll_wait, recv, send.
            assert!(round < 3 || calls == 3, "{calls} calls in round {round}");
        }
    }
}

#[test]
fn a_vectored_read_fills_its_parts_in_order() {
    let mut rig = Rig::new();
    let (near, mut far) = UnixStream::pair().unwrap();
    let near = rig.attach(near);
    let (first, second) = ([0u8; 3], [0u8; 10]);
    let vector = parts([&first, &second]);
    rig.submit(1, near, read_parts(&vector));
    far.write_all(b"abcdef").unwrap();
    assert_eq!(rig.last(1), 6);
    assert_eq!((&first, &second[..3]), (b"abc", &b"def"[..]));
}

#[test]
fn a_reset_is_an_error() {
    let mut rig = Rig::new();
    let (near, far) = tcp_pair();
    let near = rig.attach(near);
    rig.submit(1, near, receive(true));
    reset_on_close(&far);
    drop(far);
    assert_eq!(rig.last(1), -libc::ECONNRESET);
}

#[test]
fn shutting_down_is_told_to_both_sides() {
    let mut rig = Rig::new();
    let (near, mut far) = tcp_pair();
    let near = rig.attach(near);
    rig.submit(1, near, receive(false));
    rig.submit(2, near, Operation::Shutdown { how: libc::SHUT_WR });
    assert_eq!(rig.last(2), 0);
    assert_eq!(far.read(&mut [0; 1]).unwrap(), 0);
    rig.submit(3, near, write(b"too late"));
    assert_eq!(rig.last(3), -libc::EPIPE);
    far.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rig.last(1), 0);
}

#[test]
fn a_cancelled_operation_ends_and_leaves_the_data_to_the_next() {
    let mut rig = Rig::new();
    let (near, mut far) = tcp_pair();
    let near = rig.attach(near);
    for repeat in [false, true] {
        rig.submit(1, near, receive(repeat));
        rig.driver.cancel(99, near);
        rig.nothing();
        rig.driver.cancel(1, near);
        assert_eq!(rig.last(1), -libc::ECANCELED);
        far.write_all(b"kept").unwrap();
        rig.nothing();
        rig.submit(2, near, receive(false));
        assert_eq!(&*rig.lease(2), b"kept");
        // No operation is left to cancel.
        rig.driver.cancel(2, near);
        rig.nothing();
    }
}

#[test]
fn cancelling_ends_both_directions() {
    let mut rig = Rig::new();
    let (near, far) = UnixStream::pair().unwrap();
    let bytes = vec![0; 1 << 22];
    let near = rig.attach(near);
    rig.submit(1, near, receive(true));
    rig.fill(2, near, &bytes);
    rig.driver.cancel(1, near);
    rig.driver.cancel(2, near);
    assert_eq!(rig.last(1), -libc::ECANCELED);
    assert_eq!(rig.last(2), -libc::ECANCELED);
    drop(far);
}

#[test]
fn a_detached_descriptor_takes_its_data_along() {
    let mut rig = Rig::new();
    let (near, mut far) = UnixStream::pair().unwrap();
    let number = near.as_raw_fd();
    let near = rig.attach(near);
    rig.submit(1, near, receive(true));
    rig.nothing();
    far.write_all(b"not for the driver").unwrap();
    let descriptor = rig.driver.detach(near, &[1]).unwrap();
    assert_eq!(descriptor.as_raw_fd(), number);
    assert!(!is_nonblocking(&descriptor));
    assert_eq!(rig.last(1), -libc::ECANCELED);
    rig.nothing();
    let mut text = [0; 18];
    UnixStream::from(descriptor).read_exact(&mut text).unwrap();
    assert_eq!(&text, b"not for the driver");
}

#[test]
fn closing_tells_how_it_went() {
    let mut rig = Rig::new();
    let (near, mut far) = UnixStream::pair().unwrap();
    let near = rig.attach(near);
    let copy = rig.driver.descriptor(near).unwrap();
    rig.submit(1, near, receive(true));
    rig.driver.close(2, near, &[1]).unwrap();
    assert_eq!(rig.last(1), -libc::ECANCELED);
    assert_eq!(rig.last(2), 0);
    // The duplicate keeps the socket open, but the driver gets no more events of it.
    far.write_all(b"x").unwrap();
    rig.nothing();
    drop(copy);
    assert_eq!(rig.driver.close(3, near, &[]).map_err(|_| ()), Ok(()));
    assert_eq!(rig.last(3), -libc::EBADF);
}

#[test]
fn without_a_buffer_a_receive_ends_and_goes_on_when_there_is_one() {
    let mut rig = Rig::tight();
    let (near, mut far) = tcp_pair();
    let near = rig.attach(near);
    let sent = pattern(700);
    far.write_all(&sent).unwrap();
    rig.submit(1, near, receive(true));
    let (first, second) = (rig.lease(1), rig.lease(1));
    assert_eq!(rig.last(1), -libc::ENOBUFS);
    rig.nothing();
    let mut got = [&first[..], &second[..]].concat();
    drop((first, second));
    rig.submit(2, near, receive(true));
    let third = rig.lease(2);
    got.extend_from_slice(&third);
    assert_eq!(got, sent);
    drop(third);
    drop(far);
    assert_eq!(rig.last(2), 0);
    assert_eq!(rig.free_buffers(), (2, 2));
}
