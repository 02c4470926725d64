//! Tests situations in which edge-triggered drivers typically hang.

use super::super::objects::Direction;
use super::*;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

/// Returns a connection whose short reads already count as "drained".
fn well_known(rig: &mut Rig, tag: u64) -> (Object, TcpStream) {
    let (near, mut far) = tcp_pair();
    far.set_nodelay(true).unwrap();
    let near = rig.attach(near);
    rig.submit(tag, near, receive(true));
    for _ in 0..4 {
        far.write_all(b"warm").unwrap();
        assert_eq!(&*rig.lease(tag), b"warm");
    }
    (near, far)
}

#[test]
fn an_end_that_comes_together_with_data_is_seen() {
    let mut rig = Rig::new();
    for tag in 0..50 {
        let (_, mut far) = well_known(&mut rig, tag);
        far.write_all(b"last words").unwrap();
        far.shutdown(Shutdown::Write).unwrap();
        assert_eq!(&*rig.lease(tag), b"last words");
        assert_eq!(rig.last(tag), 0);
    }
}

#[test]
fn an_end_between_an_outcome_and_the_next_receive_is_seen() {
    let mut rig = Rig::new();
    for tag in 0..50 {
        let (near, mut far) = well_known(&mut rig, tag);
        rig.driver.cancel(tag, near);
        assert_eq!(rig.last(tag), -libc::ECANCELED);
        far.write_all(b"once").unwrap();
        rig.submit(1000, near, receive(false));
        assert_eq!(&*rig.lease(1000), b"once");
        far.shutdown(Shutdown::Write).unwrap();
        // The edge arrives while the driver does not poll the kernel.
        rig.nothing();
        rig.submit(1001, near, receive(false));
        assert_eq!(rig.last(1001), 0);
    }
}

#[test]
fn urgent_data_does_not_hide_what_follows() {
    let mut rig = Rig::new();
    for tag in 0..20 {
        let (_, mut far) = well_known(&mut rig, tag);
        far.write_all(b"before").unwrap();
        // SAFETY: one byte of a live array.
        let sent = unsafe { libc::send(far.as_raw_fd(), b"!".as_ptr().cast(), 1, libc::MSG_OOB) };
        assert_eq!(sent, 1);
        far.write_all(b"behind").unwrap();
        let mut got = Vec::new();
        while got.len() < 12 {
            got.extend_from_slice(&rig.lease(tag));
        }
        assert_eq!(got, b"beforebehind");
        drop(far);
        assert_eq!(rig.last(tag), 0);
    }
}

#[test]
fn bytes_behind_passed_descriptors_are_not_forgotten() {
    let mut rig = Rig::new();
    let (near, far) = UnixStream::pair().unwrap();
    let near = rig.attach(near);
    rig.submit(1, near, receive(true));
    for _ in 0..20 {
        rig.nothing();
        // A receive stops at each of the two messages, short of its buffer.
        send_with_descriptor(&far, b"first");
        send_with_descriptor(&far, b"second");
        assert_eq!(&*rig.lease(1), b"first");
        assert_eq!(&*rig.lease(1), b"second");
    }
}

fn send_with_descriptor(socket: &UnixStream, bytes: &[u8]) {
    let mut part = parts([bytes])[0];
    let mut control = [0u64; 3];
    let mut header = super::super::calls::message();
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = 24;
    // SAFETY: the control buffer has room for one header and one descriptor, the sizes say so,
    // and everything outlives the call.
    unsafe {
        let front = libc::CMSG_FIRSTHDR(&header);
        (*front).cmsg_level = libc::SOL_SOCKET;
        (*front).cmsg_type = libc::SCM_RIGHTS;
        (*front).cmsg_len = libc::CMSG_LEN(4) as _;
        libc::CMSG_DATA(front).cast::<i32>().write_unaligned(socket.as_raw_fd());
        assert_eq!(libc::sendmsg(socket.as_raw_fd(), &header, 0), bytes.len() as isize);
    }
}

#[test]
fn operations_that_end_at_once_do_not_starve_those_that_wait() {
    let mut rig = Rig::new();
    let (busy, mut busy_far) = UnixStream::pair().unwrap();
    let (quiet, mut quiet_far) = UnixStream::pair().unwrap();
    let (busy, quiet) = (rig.attach(busy), rig.attach(quiet));
    let mut room = [0; 1];
    rig.submit(2, quiet, receive(false));
    rig.nothing();
    quiet_far.write_all(b"now").unwrap();
    let mut rounds = 0;
    loop {
        busy_far.write_all(b"x").unwrap();
        rig.submit(1, busy, read(&mut room));
        let mut found = false;
        while {
            let outcome = rig.next();
            found |= outcome.tag == 2;
            outcome.tag != 1
        } {}
        found |= rig.came.drain(..).any(|outcome| outcome.tag == 2);
        if found {
            break;
        }
        rounds += 1;
        assert!(rounds <= super::super::schedule::LOOK_EVERY + 1);
    }
}

#[test]
fn two_chatty_streams_both_progress() {
    let small_buffers = BufferClass { count: 1024, bytes: 256 };
    let mut rig = Rig::with(Config { small_buffers, ..Config::default() });
    let mut fars = Vec::new();
    for tag in 0..2 {
        let (near, far) = UnixStream::pair().unwrap();
        let near = rig.attach(near);
        rig.submit(tag, near, receive(true));
        fars.push(far);
    }
    rig.nothing();
    let bytes = pattern(64 << 10);
    for far in &mut fars {
        far.write_all(&bytes).unwrap();
    }
    let mut got = [0, 0];
    while got.iter().sum::<usize>() < 2 * bytes.len() {
        let outcome = rig.next();
        got[outcome.tag as usize] += outcome.result as usize;
        // Neither direction is ever more than a few buffers ahead.
        assert!(got[0].abs_diff(got[1]) <= 1024, "{got:?}");
    }
}

#[test]
fn more_objects_than_events_in_a_look() {
    let mut rig = Rig::new();
    let mut fars = Vec::new();
    for tag in 0..400 {
        let (near, far) = UnixStream::pair().unwrap();
        let near = rig.attach(near);
        rig.submit(tag, near, receive(true));
        fars.push(far);
    }
    rig.nothing();
    for round in 0..3u8 {
        for far in &mut fars {
            far.write_all(&[round]).unwrap();
        }
        let mut seen = vec![false; fars.len()];
        for _ in 0..fars.len() {
            let outcome = rig.next();
            let Output::Lease(lease) = outcome.output else { panic!("no lease") };
            assert_eq!(*lease, [round]);
            assert!(!std::mem::replace(&mut seen[outcome.tag as usize], true));
        }
        rig.nothing();
    }
    assert!(rig.counters().largest_batch > 100);
}

#[test]
fn a_number_that_is_used_again_gets_nothing_from_before() {
    let mut rig = Rig::new();
    for tag in 0..20 {
        let (near, mut far) = UnixStream::pair().unwrap();
        let near = rig.attach(near);
        rig.submit(tag, near, receive(true));
        rig.nothing();
        far.write_all(&pattern(9000)).unwrap();
        // The task is on the ready list now.
        assert_eq!(rig.lease(tag).len(), rig.pools.small.buffer_bytes());
        rig.driver.detach(near, &[1]);
        assert_eq!(rig.last(tag), -libc::ECANCELED);
        rig.nothing();
    }
}

#[test]
fn a_descriptor_may_come_back() {
    let mut rig = Rig::new();
    let (near, mut far) = UnixStream::pair().unwrap();
    let _copy = near.try_clone().unwrap();
    let mut near = OwnedFd::from(near);
    for tag in 0..3 {
        let object = rig.attach(near);
        rig.submit(tag, object, receive(true));
        rig.nothing();
        far.write_all(b"again").unwrap();
        assert_eq!(&*rig.lease(tag), b"again");
        near = rig.driver.detach(object, &[1]).unwrap();
        assert_eq!(rig.last(tag), -libc::ECANCELED);
    }
}

#[test]
fn an_endpoint_that_epoll_does_not_watch_is_always_tried() {
    let mut rig = Rig::new();
    let (near, mut far) = UnixStream::pair().unwrap();
    let near = rig.attach(near);
    // Simulates the state after a registration that failed for lack of memory.
    rig.driver.objects.get_mut(near).unwrap().side(Direction::Inbound).ready = false;
    rig.submit(1, near, receive(false));
    rig.nothing();
    far.write_all(b"x").unwrap();
    assert_eq!(&*rig.lease(1), b"x");
}
