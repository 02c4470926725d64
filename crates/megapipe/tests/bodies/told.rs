//! Tests what is reported, and what is not: resets, polls, signals, cancelled accepts.

use crate::common::{Rig, TIME_LIMIT, client, listener, outcome, unix_pair};
use megapipe::{Accept, Config, CpuSet, Direction, DriverChoice, Event, Message, Repeat};
use std::io::Read;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Closes a socket so that the peer sees a reset.
fn reset(stream: TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let bytes = size_of_val(&linger) as libc::socklen_t;
    let (fd, value) = (stream.as_raw_fd(), (&raw const linger).cast());
    // SAFETY: `linger` outlives the call and `bytes` is its size.
    let result = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, value, bytes) };
    assert_eq!(result, 0);
}

/// A reset is an error in both directions, whichever operation gets it from the kernel.
pub(crate) fn a_reset_is_told_in_both_directions(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let mut ends = 0;
    for round in 0..50 {
        let (mut ours, handle) = rig.tcp_pair();
        if round % 2 == 0 {
            rig.receive(handle, Repeat::UntilCancelled).unwrap();
        } else {
            rig.read(handle, Vec::with_capacity(10)).unwrap();
        }
        rig.write(handle, vec![0; 16 << 20]).unwrap();
        rig.flush().unwrap();
        ours.read_exact(&mut [0; 1000]).unwrap();
        reset(ours);
        for event in [rig.last(handle), rig.last(handle)] {
            match outcome(&event) {
                Err(libc::ECONNRESET) => {}
                Err(libc::EPIPE) if matches!(event, Event::Write(..)) => {}
                _ => ends += 1,
            }
        }
        rig.close(handle).unwrap();
        assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
    }
    assert_eq!(ends, 0, "of 50 resets were no error");
}

/// More bytes than the kernel takes for a peer that does not read.
const LONG: usize = 8 << 20;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Ending {
    Cancel,
    Limit,
    Reset,
}

/// Whatever ends output part-way, its completion has the number of bytes that the kernel took.
pub(crate) fn what_was_written_is_told(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let file = tempfile::tempfile().unwrap();
    file.set_len(LONG as u64).unwrap();
    let file = rig.join(file);
    for ending in [Ending::Cancel, Ending::Limit, Ending::Reset] {
        for kind in 0..4 {
            let (tcp, unix) = (rig.tcp_pair(), unix_pair());
            let handle = if ending == Ending::Reset { tcp.1 } else { rig.join(unix.1) };
            match kind {
                0 => rig.write(handle, vec![0; LONG]).unwrap(),
                1 => {
                    let parts = vec![vec![0; LONG - 1].into(), "x".into()];
                    rig.write_vectored(handle, parts).unwrap();
                }
                2 => rig.send_message(handle, Message::new(vec![0; LONG])).unwrap(),
                _ => rig.send_file(handle, file, 0, LONG).unwrap(),
            }
            let until = Instant::now() + TIME_LIMIT;
            while rig.queued_bytes(handle).unwrap() > LONG - 100_000 {
                assert!(rig.dispatch(Duration::from_millis(1)).unwrap().is_none());
                assert!(Instant::now() < until, "the kernel does not take 100,000 bytes");
            }
            // It goes on after the peer has read some, and is stuck again.
            let mut peer: Box<dyn Read> = match ending {
                Ending::Reset => Box::new(&tcp.0),
                _ => Box::new(&unix.0),
            };
            peer.read_exact(&mut [0; 100_000]).unwrap();
            assert!(rig.dispatch(Duration::from_millis(5)).unwrap().is_none());
            let queued = rig.queued_bytes(handle).unwrap();
            assert!((1..LONG).contains(&queued), "{queued} bytes are queued");
            drop(peer);
            match ending {
                Ending::Cancel => rig.cancel_direction(handle, Direction::Outbound).unwrap(),
                Ending::Limit => {
                    let limit = Duration::from_millis(5);
                    rig.set_time_limit(handle, Direction::Outbound, limit).unwrap();
                }
                Ending::Reset => reset(tcp.0),
            }
            let done = rig.next();
            let what = format!("{ending:?} of {kind}: {done:?}");
            assert_eq!(done.handle, handle, "{what}");
            match ending {
                Ending::Cancel => {
                    assert_eq!(outcome(&done.event), Ok(done.written as u64), "{what}");
                }
                Ending::Limit => assert_eq!(outcome(&done.event), Err(libc::ETIMEDOUT), "{what}"),
                Ending::Reset => assert!(outcome(&done.event).is_err(), "{what}"),
            }
            assert!((100_000..LONG).contains(&done.written), "{} bytes", done.written);
            if ending != Ending::Reset {
                unix.0.set_nonblocking(true).unwrap();
                let mut found = Vec::new();
                let end = (&unix.0).read_to_end(&mut found).unwrap_err();
                assert_eq!(end.kind(), std::io::ErrorKind::WouldBlock);
                assert_eq!(done.written, 100_000 + found.len(), "{ending:?} of {kind}");
            }
            rig.abort(handle).unwrap();
            assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
        }
    }
}

fn polled(event: Event) -> u32 {
    match event {
        Event::Poll(Ok(events)) => events,
        other => panic!("expected a poll: {other:?}"),
    }
}

pub(crate) fn a_poll_tells_only_what_was_asked_for(driver: DriverChoice) {
    let (input, end) = (libc::POLLIN as u32, libc::POLLRDHUP as u32);
    for repeat in [Repeat::Once, Repeat::UntilCancelled] {
        for early in [false, true] {
            for asked in [input, input | end, end] {
                let mut rig = Rig::new(driver);
                let (ours, theirs) = unix_pair();
                let handle = rig.join(theirs);
                if early {
                    ours.shutdown(Shutdown::Write).unwrap();
                }
                rig.poll(handle, asked, repeat).unwrap();
                rig.flush().unwrap();
                ours.shutdown(Shutdown::Write).unwrap();
                assert_eq!(polled(rig.next().event), asked);
            }
        }
    }
}

extern "C" fn handle_signal(_: libc::c_int) {}

/// A signal also interrupts the wait of a channel that steals connections from time to time.
pub(crate) fn a_signal_ends_a_wait_that_steals(driver: DriverChoice) {
    let handler = handle_signal as extern "C" fn(libc::c_int);
    // SAFETY: all-zero bytes are a valid `sigaction`: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as usize;
    // SAFETY: the handler does nothing, which is safe at any time; the old one is not asked for.
    let set = unsafe { libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut()) };
    assert_eq!(set, 0);
    let steal_interval = Some(Duration::from_secs(20));
    let mut rig = Rig::with(driver, Config { steal_interval, ..Config::default() });
    let (listener, _) = listener();
    let listening = rig.channel.register_listener(&listener, CpuSet::one(0), 0).unwrap();
    rig.accept(listening, Accept::lightweight()).unwrap();
    rig.flush().unwrap();
    // SAFETY: the call has no preconditions.
    let waiting = unsafe { libc::pthread_self() };
    let returned = AtomicBool::new(false);
    let start = std::time::Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Until one of the signals arrives while the channel waits.
            while !returned.load(Ordering::Relaxed) {
                // SAFETY: the thread lives until this one has been joined.
                unsafe { libc::pthread_kill(waiting, libc::SIGUSR2) };
                std::thread::yield_now();
            }
        });
        let came = rig.dispatch(TIME_LIMIT);
        returned.store(true, Ordering::Relaxed);
        assert!(came.unwrap().is_none());
    });
    assert!(start.elapsed() < TIME_LIMIT / 4, "{:?}", start.elapsed());
}

pub(crate) fn each_cancelled_accept_is_told_beyond_the_limit_on_requests(driver: DriverChoice) {
    let mut rig = Rig::with(driver, Config { max_requests: 1, ..Config::default() });
    let (listener, address) = listener();
    let listening = rig.join(listener);
    for accept in [Accept::lightweight(), Accept::descriptors().count(3)] {
        for _ in 0..2 {
            rig.accept(listening, accept).unwrap();
            rig.cancel(listening).unwrap();
        }
        for _ in 0..2 {
            assert_eq!(outcome(&rig.last(listening)), Err(libc::ECANCELED));
        }
        assert!(rig.drain().is_empty());
    }
    // The listener still works.
    let _client = client(address);
    rig.accept(listening, Accept::lightweight().count(1)).unwrap();
    assert!(matches!(rig.last(listening), Event::Accept(Ok(_))));
}
