//! Test bodies for input that arrives while a close waits for its output: it is discarded, within
//! limits.

use crate::common::{Pattern, Rig, TIME_LIMIT, is_installed, unix_pair};
use megapipe::{Config, DriverChoice, Error, Event, Handle, Repeat};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// More bytes than the kernel takes for a peer that does not read.
const STUCK_BYTES: usize = 16 << 20;

/// Creates a channel whose closes wait for their peers without a limit: only discarding ends them.
fn rig_with_long_linger(driver: DriverChoice) -> Rig {
    Rig::with(driver, Config { close_timeout: Duration::MAX, ..Config::default() })
}

/// Returns whether the next completion is the close of the handle, if one is available at once.
fn told(rig: &mut Rig, handle: Handle) -> bool {
    match rig.dispatch(Duration::from_millis(1)).unwrap() {
        None => false,
        Some(done) => {
            assert_eq!(done.handle, handle, "{:?}", done.event);
            assert!(matches!(done.event, Event::Close(Ok(()))), "{:?}", done.event);
            true
        }
    }
}

pub(crate) fn two_channels_that_both_close_with_much_queued_end(driver: DriverChoice) {
    for kind in 0..4 {
        let kernels = if is_installed(driver) { DriverChoice::Uring } else { driver };
        let (mut rig, mut other) = (rig_with_long_linger(driver), rig_with_long_linger(kernels));
        let (ours, handle): (OwnedFd, Handle) = match kind {
            0 | 1 => {
                let (ours, handle) = rig.lightweight_pair();
                (ours.into(), handle)
            }
            2 => {
                let (ours, handle) = rig.tcp_pair();
                (ours.into(), handle)
            }
            _ => {
                let (ours, theirs) = unix_pair();
                (ours.into(), rig.join(theirs))
            }
        };
        let far = other.join(ours);
        // The second write is submitted later, behind the first.
        for bytes in [STUCK_BYTES / 2, STUCK_BYTES / 2] {
            rig.write(handle, vec![1; bytes]).unwrap();
            other.write(far, vec![2; bytes]).unwrap();
        }
        rig.receive(handle, Repeat::UntilCancelled).unwrap();
        rig.flush().unwrap();
        // A lightweight socket that is unregistered is closed without an event.
        let tells = kind > 0;
        if tells {
            rig.close(handle).unwrap();
        } else {
            rig.unregister(handle).unwrap();
        }
        other.close(far).unwrap();
        let until = Instant::now() + TIME_LIMIT;
        let mut open = [true, true];
        while open != [false, false] {
            let was_told = told(&mut rig, handle);
            assert!(tells || !was_told, "an event after the handle was unregistered");
            open[0] &= !was_told && (tells || rig.outstanding() > 0);
            open[1] &= !told(&mut other, far);
            assert!(Instant::now() < until, "kind {kind}: {open:?} are still open");
        }
        assert_eq!((rig.outstanding(), other.outstanding()), (0, 0), "kind {kind}");
    }
}

pub(crate) fn one_channel_closes_both_ends_with_much_queued(driver: DriverChoice) {
    let mut rig = rig_with_long_linger(driver);
    let (ours, theirs) = rig.tcp_pair();
    let ours = rig.join(ours);
    for handle in [ours, theirs] {
        rig.write(handle, vec![1; STUCK_BYTES]).unwrap();
        rig.close(handle).unwrap();
    }
    let mut resets = 0;
    for _ in 0..2 {
        match rig.next().event {
            Event::Close(Ok(())) => {}
            // The end that discards first may take the last output of the other just before that
            // one has waited long enough to discard, too.
            Event::Close(Err(error)) if error.raw_os_error() == Some(libc::ECONNRESET) => {
                resets += 1;
            }
            event => panic!("{event:?}"),
        }
    }
    assert!(resets <= 1);
    assert_eq!(rig.outstanding(), 0);
}

/// A peer that writes all before it reads, and continues to write while it reads, gets all bytes.
pub(crate) fn a_peer_that_reads_last_gets_all(driver: DriverChoice) {
    for kind in 0..2 {
        let mut rig = rig_with_long_linger(driver);
        let (mut ours, handle) = if kind == 0 { rig.lightweight_pair() } else { rig.tcp_pair() };
        let pattern = Pattern::new(3);
        rig.write(handle, pattern.bytes(0, STUCK_BYTES)).unwrap();
        rig.close(handle).unwrap();
        let peer = thread::spawn(move || {
            ours.write_all(&vec![7; STUCK_BYTES]).unwrap();
            let (mut found, mut step) = (Vec::new(), vec![0; 300_007]);
            loop {
                match ours.read(&mut step).expect("no reset before the end") {
                    0 => return found,
                    bytes => found.extend_from_slice(&step[..bytes]),
                }
                if found.len() < STUCK_BYTES {
                    ours.write_all(b"more").unwrap();
                }
            }
        });
        assert!(matches!(rig.last(handle), Event::Close(Ok(()))), "kind {kind}");
        let found = peer.join().unwrap();
        assert_eq!(found.len(), STUCK_BYTES, "kind {kind}");
        pattern.check(0, &found);
    }
}

/// Counts what a peer has sent, in a thread that ends when the connection breaks or at `limit`.
fn sender(mut stream: TcpStream, limit: usize) -> (Arc<AtomicUsize>, thread::JoinHandle<()>) {
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    let thread = thread::spawn(move || {
        let step = vec![7; 64 << 10];
        while count.load(Ordering::Relaxed) < limit {
            match stream.write(&step) {
                Ok(bytes) => count.fetch_add(bytes, Ordering::Relaxed),
                Err(error) => {
                    let broken = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
                    assert!(broken.contains(&error.kind()), "{error}");
                    return;
                }
            };
        }
    });
    (sent, thread)
}

/// Dispatches, without a completion, until the peer has sent more than the kernel has room for.
fn discard_much(rig: &mut Rig, sent: &AtomicUsize) {
    let until = Instant::now() + TIME_LIMIT;
    while sent.load(Ordering::Relaxed) < STUCK_BYTES {
        let done = rig.dispatch(Duration::from_millis(1)).unwrap();
        assert!(done.is_none(), "{done:?} while the peer does not read");
        assert!(Instant::now() < until, "the peer's bytes are not taken");
    }
}

/// Reads until the end or the reset.
fn read_all(stream: &mut TcpStream) -> usize {
    let (mut total, mut step) = (0, vec![0; 64 << 10]);
    loop {
        match stream.read(&mut step) {
            Ok(0) => return total,
            Ok(bytes) => total += bytes,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                return total;
            }
        }
    }
}

pub(crate) fn a_peer_that_sends_for_ever_does_not_hold_the_handle(driver: DriverChoice) {
    let mut rig = rig_with_long_linger(driver);
    let (mut ours, handle) = rig.lightweight_pair();
    rig.write(handle, vec![1; STUCK_BYTES]).unwrap();
    rig.close(handle).unwrap();
    let (sent, sender) = sender(ours.try_clone().unwrap(), usize::MAX);
    discard_much(&mut rig, &sent);
    let reader = thread::spawn(move || read_all(&mut ours));
    assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
    assert_eq!(rig.outstanding(), 0);
    sender.join().unwrap();
    assert!(reader.join().unwrap() <= STUCK_BYTES);
}

/// The peer has received all bytes and the end, but neither sends nor ends its own direction.
pub(crate) fn a_peer_that_stays_does_not_hold_the_handle(driver: DriverChoice) {
    let mut rig = rig_with_long_linger(driver);
    let (mut ours, handle) = rig.lightweight_pair();
    rig.write(handle, vec![1; STUCK_BYTES]).unwrap();
    rig.close(handle).unwrap();
    let (sent, sender) = sender(ours.try_clone().unwrap(), STUCK_BYTES);
    discard_much(&mut rig, &sent);
    sender.join().unwrap();
    let kept = ours.try_clone().unwrap();
    let reader = thread::spawn(move || read_all(&mut ours));
    assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
    assert_eq!(reader.join().unwrap(), STUCK_BYTES);
    assert_eq!(rig.outstanding(), 0);
    drop(kept);
}

pub(crate) fn an_abort_overtakes_discarding(driver: DriverChoice) {
    for lingers in [false, true] {
        let mut rig = rig_with_long_linger(driver);
        let (mut ours, handle) = rig.lightweight_pair();
        let shared: Arc<[u8]> = Arc::from(vec![3; STUCK_BYTES]);
        rig.write(handle, Arc::clone(&shared)).unwrap();
        rig.close(handle).unwrap();
        let (sent, sender) = sender(ours.try_clone().unwrap(), STUCK_BYTES);
        discard_much(&mut rig, &sent);
        sender.join().unwrap();
        if lingers {
            // All is written: the peer sees the end, and the close waits for the peer's end.
            let kept = ours.try_clone().unwrap();
            let reader = thread::spawn(move || read_all(&mut ours));
            while !reader.is_finished() {
                let done = rig.dispatch(Duration::from_millis(1)).unwrap();
                assert!(done.is_none(), "{done:?} before the peer has ended");
            }
            assert_eq!(reader.join().unwrap(), STUCK_BYTES);
            ours = kept;
        }
        assert_eq!(rig.abort(handle).unwrap(), None);
        assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
        assert_eq!(rig.outstanding(), 0);
        assert_eq!(Arc::strong_count(&shared), 1, "a buffer is kept");
        assert!(matches!(rig.abort(handle), Err(Error::UnknownHandle)));
        if !lingers {
            assert!(read_all(&mut ours) < STUCK_BYTES);
        }
    }
}

/// A close that does not wait for its output costs only the operation of the close.
pub(crate) fn a_close_that_does_not_wait_discards_nothing(driver: DriverChoice) {
    const CONNECTIONS: u64 = 300;
    let mut rig = Rig::new(driver);
    for _ in 0..CONNECTIONS {
        let (mut ours, theirs) = unix_pair();
        ours.write_all(b"unread").unwrap();
        let handle = rig.join(theirs);
        rig.write(handle, b"answer").unwrap();
        rig.close(handle).unwrap();
        assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
        ours.shutdown(Shutdown::Both).unwrap();
    }
    // One write each. The bound permits a machine that stops for some milliseconds.
    let counters = rig.counters();
    let allowed = CONNECTIONS..CONNECTIONS + CONNECTIONS / 10;
    assert!(allowed.contains(&counters.operations), "{counters:?}");
}
