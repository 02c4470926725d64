//! Tests bounds, times and counters.

use super::*;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

fn narrow() -> Rig {
    Rig::with(Config { completions: 64, ..Config::default() })
}

#[test]
fn a_full_queue_pushes_back() {
    let mut rig = narrow();
    let (near, _far) = UnixStream::pair().unwrap();
    let near = rig.attach(near);
    for tag in 0..64 {
        rig.submit(tag, near, write(b"x"));
    }
    assert!(rig.driver.submit(64, near, write(b"x")).is_err());
    assert!(rig.driver.close(65, near, &[]).is_err());
    rig.driver.collect(&mut rig.came, None).unwrap();
    assert_eq!(rig.came.len(), 64);
    rig.came.clear();
    rig.submit(64, near, write(b"x"));
    assert_eq!(rig.last(64), 1);
}

#[test]
fn repeating_operations_stop_for_a_full_queue_and_go_on() {
    let mut rig = narrow();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let listener = rig.attach(listener);
    let _peers: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut fars = Vec::new();
    for tag in 0..150 {
        let (near, mut far) = UnixStream::pair().unwrap();
        let near = rig.attach(near);
        rig.submit(tag, near, receive(false));
        far.write_all(b"x").unwrap();
        fars.push(far);
        if tag == 0 {
            rig.submit(999, listener, Operation::Accept { lightweight: false, repeat: true });
        }
        rig.driver.collect(&mut rig.came, Some(Duration::ZERO)).unwrap();
    }
    let (mut accepted, mut received) = (0, 0);
    while accepted + received < 250 {
        for outcome in rig.came.drain(..) {
            assert!(outcome.result >= 0);
            if outcome.tag == 999 { accepted += 1 } else { received += 1 }
        }
        if accepted + received < 250 {
            rig.driver.collect(&mut rig.came, Some(AMPLE)).unwrap();
            assert!((1..=64).contains(&rig.came.len()));
        }
    }
    assert_eq!((accepted, received), (100, 150));
    rig.nothing();
}

#[test]
fn cancelling_works_with_a_full_queue() {
    let mut rig = narrow();
    let (near, _far) = UnixStream::pair().unwrap();
    let near = rig.attach(near);
    rig.submit(100, near, receive(true));
    for tag in 0..64 {
        rig.submit(tag, near, write(b"x"));
    }
    rig.driver.cancel(100, near);
    for tag in 0..64 {
        assert_eq!(rig.last(tag), 1);
    }
    assert_eq!(rig.last(100), -libc::ECANCELED);
}

#[test]
fn a_second_operation_of_a_direction_is_refused() {
    let mut rig = Rig::new();
    let (near, _far) = UnixStream::pair().unwrap();
    let near = rig.attach(near);
    rig.submit(1, near, receive(true));
    rig.submit(2, near, receive(true));
    assert_eq!(rig.last(2), -libc::EBUSY);
    rig.submit(3, Object(77), receive(true));
    assert_eq!(rig.last(3), -libc::EBADF);
}

#[test]
fn the_time_is_kept_in_spite_of_events_that_nobody_waits_for() {
    for milliseconds in [false, true] {
        let mut rig = Rig::new();
        if milliseconds {
            rig.driver.poller.use_milliseconds();
        }
        let (near, mut far) = UnixStream::pair().unwrap();
        let near = rig.attach(near);
        rig.submit(1, near, receive(true));
        rig.nothing();
        rig.driver.cancel(1, near);
        assert_eq!(rig.last(1), -libc::ECANCELED);
        far.write_all(b"nobody asks").unwrap();
        let timeout = Duration::from_micros(20_500);
        let begin = Instant::now();
        rig.driver.collect(&mut rig.came, Some(timeout)).unwrap();
        assert!(rig.came.is_empty() && begin.elapsed() >= timeout);
        rig.submit(2, near, receive(true));
        assert_eq!(&*rig.lease(2), b"nobody asks");
    }
}

#[test]
fn a_signal_handler_ends_the_wait() {
    static STARTED: AtomicBool = AtomicBool::new(false);
    extern "C" fn note(_: libc::c_int) {}
    // SAFETY: the handler does nothing, and nothing else uses the signal.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = note as extern "C" fn(libc::c_int) as usize;
        assert_eq!(libc::sigaction(libc::SIGURG, &action, std::ptr::null_mut()), 0);
    }
    let waiting = std::thread::spawn(|| {
        let mut rig = Rig::new();
        STARTED.store(true, Ordering::Release);
        rig.driver.collect(&mut rig.came, None).unwrap();
        rig.came.len()
    });
    while !STARTED.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    while !waiting.is_finished() {
        // SAFETY: the thread has not been joined.
        unsafe { libc::pthread_kill(waiting.as_pthread_t(), libc::SIGURG) };
        std::thread::yield_now();
    }
    assert_eq!(waiting.join().unwrap(), 0);
}

#[test]
fn counts_add_up() {
    let mut rig = Rig::new();
    let mut fars = Vec::new();
    for tag in 0..3 {
        let (near, far) = UnixStream::pair().unwrap();
        let near = rig.attach(near);
        // recv, epoll_ctl.
        rig.submit(tag, near, receive(false));
        fars.push(far);
    }
    for far in &mut fars {
        far.write_all(b"x").unwrap();
    }
    for _ in 0..3 {
        rig.next();
    }
    let mut counters = Counters { system_calls: 100, largest_batch: 1, ..Counters::default() };
    rig.driver.count(&mut counters);
    assert_eq!(counters.system_calls, 100 + 6 + 1 + 3);
    assert_eq!((counters.waits, counters.batched, counters.largest_batch), (1, 3, 3));
}

#[test]
fn options_of_sockets() {
    let mut rig = Rig::new();
    let (near, _far) = tcp_pair();
    let near = rig.attach(near);
    let one = 1i32.to_ne_bytes();
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_NODELAY);
    rig.driver.set_option(near, level, name, &one).unwrap();
    let mut value = [0; 4];
    assert_eq!(rig.driver.get_option(near, level, name, &mut value).unwrap(), 4);
    assert_ne!(value, [0; 4]);
    let (reader, _writer) = pipe();
    let reader = rig.attach(reader);
    let refused = rig.driver.set_option(reader, level, name, &one).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::ENOTSOCK));
    assert!(rig.driver.get_option(Object(99), level, name, &mut value).is_err());
    rig.driver.flush().unwrap();
}
