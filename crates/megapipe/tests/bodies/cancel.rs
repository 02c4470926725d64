//! Tests cancelling: every cancelled request has exactly one last completion.

use crate::common;
use crate::common::{Pattern, Rig, listener, outcome, received, silent, udp, unix_pair, written};
use megapipe::{
    Accept, BufferClass, Config, DriverChoice, Event, Handle, Lease, Repeat, Timer, wake_pair,
};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

pub(crate) fn each_request_has_its_last_completion(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (a, _b) = silent();
    let stream = rig.join(a);
    rig.read(stream, Vec::with_capacity(77)).unwrap();
    rig.read_vectored(stream, vec![Vec::with_capacity(7), Vec::with_capacity(8)]).unwrap();
    rig.receive(stream, Repeat::Once).unwrap();
    rig.receive(stream, Repeat::UntilCancelled).unwrap();
    let datagrams = rig.join(udp("127.0.0.1").0);
    rig.receive_from(datagrams, Repeat::UntilCancelled).unwrap();
    rig.receive_from(datagrams, Repeat::Once).unwrap();
    rig.read(datagrams, Vec::with_capacity(9)).unwrap();
    let single = rig.join(udp("127.0.0.1").0);
    rig.receive_from(single, Repeat::Once).unwrap();
    let listening = rig.join(listener().0);
    rig.accept(listening, Accept::lightweight()).unwrap();
    let timer = rig.join(Timer::after(Duration::from_secs(3600)).unwrap());
    rig.watch(timer, Repeat::UntilCancelled).unwrap();
    rig.watch(timer, Repeat::Once).unwrap();
    let (_waker, source) = wake_pair().unwrap();
    let waking = rig.join(source);
    rig.watch(waking, Repeat::Once).unwrap();
    rig.flush().unwrap();
    let handles = [stream, datagrams, single, listening, timer, waking];
    let expected = [4, 3, 1, 1, 2, 1];
    for handle in handles {
        rig.cancel(handle).unwrap();
    }
    let mut found = [0; 6];
    for done in rig.drain() {
        assert_eq!(outcome(&done.event), Err(libc::ECANCELED), "{:?}", done.event);
        assert!(!done.more);
        found[handles.iter().position(|handle| *handle == done.handle).unwrap()] += 1;
        match done.event {
            Event::Read(_, buffer) => assert!(buffer.capacity() == 77 || buffer.capacity() == 9),
            Event::ReadVectored(_, buffers) => assert_eq!(buffers.len(), 2),
            _ => {}
        }
    }
    assert_eq!(found, expected);
}

pub(crate) fn nothing_to_cancel(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (a, _b) = silent();
    let handle = rig.join(a);
    rig.cancel(handle).unwrap();
    let listening = rig.join(listener().0);
    rig.cancel(listening).unwrap();
    assert!(rig.drain().is_empty());
}

pub(crate) fn a_result_may_be_quicker(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (mut ours, handle) = rig.tcp_pair();
    ours.write_all(b"quick").unwrap();
    rig.read(handle, Vec::with_capacity(10)).unwrap();
    rig.read(handle, Vec::with_capacity(10)).unwrap();
    rig.flush().unwrap();
    rig.cancel(handle).unwrap();
    let mut data = Vec::new();
    for _ in 0..2 {
        match rig.last(handle) {
            Event::Read(Ok(_), bytes) => data.extend(bytes),
            event => assert_eq!(outcome(&event), Err(libc::ECANCELED)),
        }
    }
    assert_eq!(rig.outstanding(), 0);
    // Nothing is lost: data that no completion delivered can still be read.
    if data.is_empty() {
        rig.read(handle, Vec::with_capacity(10)).unwrap();
        data = common::read_of(rig.last(handle));
    }
    assert_eq!(data, b"quick");
}

/// Causes a wake-up that completes together with the next request, and is delivered before it.
fn distraction(rig: &mut Rig) -> Handle {
    let (waker, source) = wake_pair().unwrap();
    let handle = rig.join(source);
    waker.wake();
    rig.watch(handle, Repeat::Once).unwrap();
    handle
}

/// Returns the completions of `handle` up to its last one, which must arrive.
fn to_the_last(rig: &mut Rig, handle: Handle) -> Vec<Event> {
    let mut events = Vec::new();
    loop {
        let done = rig.next();
        assert_eq!(done.handle, handle);
        events.push(done.event);
        if !done.more {
            assert!(rig.drain().is_empty(), "completions after the last one");
            return events;
        }
    }
}

pub(crate) fn a_repeating_watch_that_was_served_ends(driver: DriverChoice) {
    for repeat in [Repeat::Once, Repeat::UntilCancelled] {
        let mut rig = Rig::new(driver);
        let distraction = distraction(&mut rig);
        let (waker, source) = wake_pair().unwrap();
        let handle = rig.join(source);
        waker.wake();
        rig.watch(handle, repeat).unwrap();
        assert_eq!(outcome(&rig.last(distraction)), Ok(1));
        rig.cancel(handle).unwrap();
        let events = to_the_last(&mut rig, handle);
        for event in &events {
            assert!([Ok(1), Err(libc::ECANCELED)].contains(&outcome(event)), "{event:?}");
        }
    }
}

pub(crate) fn a_repeating_receive_that_was_served_ends(driver: DriverChoice) {
    for kind in 0..2 {
        let mut rig = Rig::new(driver);
        let distraction = distraction(&mut rig);
        let (mut ours, theirs): (Box<dyn Write>, Handle) = if kind == 0 {
            let (ours, theirs) = unix_pair();
            (Box::new(ours), rig.join(theirs))
        } else {
            let (reader, writer) = std::io::pipe().unwrap();
            (Box::new(writer), rig.join(std::os::fd::OwnedFd::from(reader)))
        };
        ours.write_all(b"message").unwrap();
        rig.receive(theirs, Repeat::UntilCancelled).unwrap();
        // Before Linux 6.2 the wake-up takes longer, and the message may be delivered before it.
        let mut done = rig.next();
        if done.handle == theirs {
            assert_eq!((outcome(&done.event), done.more), (Ok(7), true));
            done = rig.next();
        }
        assert_eq!((done.handle, outcome(&done.event)), (distraction, Ok(1)));
        rig.cancel(theirs).unwrap();
        for event in to_the_last(&mut rig, theirs) {
            assert!([Ok(7), Err(libc::ECANCELED)].contains(&outcome(&event)), "{event:?}");
        }
    }
}

pub(crate) fn a_write_in_progress_ends_with_what_is_written(driver: DriverChoice) {
    let pattern = Pattern::new(1);
    let bytes = 32 << 20;
    for (vectored, goes_on) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut rig = Rig::new(driver);
        let (mut ours, handle) = rig.tcp_pair();
        if vectored {
            let halves = [pattern.bytes(0, bytes / 2), pattern.bytes(bytes / 2, bytes / 2)];
            rig.write_vectored(handle, halves.map(Into::into).into()).unwrap();
        } else {
            rig.write(handle, pattern.bytes(0, bytes)).unwrap();
        }
        rig.write(handle, b"never begun").unwrap();
        // A part is sent when the rest is cancelled.
        rig.flush().unwrap();
        let mut found = vec![0; 1000];
        ours.read_exact(&mut found).unwrap();
        rig.cancel(handle).unwrap();
        let mut sent = None;
        for _ in 0..2 {
            match rig.last(handle) {
                Event::Write(result, buffer) if buffer.len() == 11 => {
                    assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
                }
                event => sent = Some(outcome(&event).expect("some of it was written") as usize),
            }
        }
        assert_eq!(rig.outstanding(), 0);
        let sent = sent.expect("the completion of the write in progress");
        assert!((1000..bytes).contains(&sent), "{sent} bytes");
        if !goes_on {
            // The peer must not take the part for the whole.
            rig.close(handle).unwrap();
            assert_eq!(outcome(&rig.last(handle)), Ok(0));
            let end = ours.read_to_end(&mut found).unwrap_err();
            assert_eq!(end.raw_os_error(), Some(libc::ECONNRESET));
            continue;
        }
        // Exactly that many bytes have arrived before the rest.
        rig.write(handle, pattern.bytes(sent, bytes - sent)).unwrap();
        rig.close(handle).unwrap();
        let reader = std::thread::spawn(move || ours.read_to_end(&mut found).map(|_| found));
        assert_eq!(outcome(&rig.last(handle)), Ok(0));
        let found = reader.join().unwrap().unwrap();
        assert_eq!(found.len(), bytes);
        pattern.check(0, &found);
    }
}

/// Returns settings with small buffers of 256 bytes, so that streams soon change to large ones.
fn narrow(small: u16, large: u16) -> Config {
    Config {
        small_buffers: BufferClass { count: small, bytes: 256 },
        large_buffers: BufferClass { count: large, bytes: 4096 },
        ..Config::default()
    }
}

pub(crate) fn a_receive_that_changes_its_buffers_ends(driver: DriverChoice) {
    let pattern = Pattern::new(2);
    // The cancellation comes at every stage of the change.
    for deliveries in 1..12 {
        let mut rig = Rig::with(driver, narrow(16, 16));
        let (mut ours, theirs) = unix_pair();
        let handle = rig.join(theirs);
        let bytes = 60_000;
        ours.write_all(&pattern.bytes(0, bytes)).unwrap();
        rig.receive(handle, Repeat::UntilCancelled).unwrap();
        let mut total = 0;
        for _ in 0..deliveries {
            let lease = received(rig.another(handle));
            pattern.check(total, &lease);
            total += lease.len();
        }
        rig.cancel(handle).unwrap();
        for event in to_the_last(&mut rig, handle) {
            match event {
                Event::Receive(Ok(lease)) => {
                    pattern.check(total, &lease);
                    total += lease.len();
                }
                event => assert_eq!(outcome(&event), Err(libc::ECANCELED)),
            }
        }
        // The rest can still be read.
        rig.receive(handle, Repeat::UntilCancelled).unwrap();
        while total < bytes {
            let lease = received(rig.another(handle));
            pattern.check(total, &lease);
            total += lease.len();
        }
    }
}

/// Takes completions until that many buffers of more than `small` bytes are leased.
fn hold(rig: &mut Rig, handle: Handle, small: usize, larger: usize, leases: &mut Vec<Lease>) {
    while leases.iter().filter(|lease| lease.len() > small).count() < larger {
        leases.push(received(rig.another(handle)));
    }
}

pub(crate) fn a_receive_that_waits_for_buffers_ends(driver: DriverChoice) {
    let pattern = Pattern::new(3);
    for (repeat, returned) in
        [(Repeat::UntilCancelled, false), (Repeat::UntilCancelled, true), (Repeat::Once, false)]
    {
        let mut rig = Rig::with(driver, narrow(4, 2));
        let (mut ours, theirs) = unix_pair();
        let handle = rig.join(theirs);
        ours.write_all(&pattern.bytes(0, 60_000)).unwrap();
        let mut leases = Vec::new();
        // In the end, all buffers of the larger class are leased.
        rig.receive(handle, Repeat::UntilCancelled).unwrap();
        hold(&mut rig, handle, 256, 2, &mut leases);
        if repeat == Repeat::Once {
            rig.cancel(handle).unwrap();
            to_the_last(&mut rig, handle);
            rig.receive(handle, repeat).unwrap();
        }
        assert!(rig.dispatch(Duration::from_millis(5)).unwrap().is_none(), "it waits");
        assert_eq!(rig.outstanding(), 1);
        if returned {
            leases.clear();
        }
        rig.cancel(handle).unwrap();
        let last = to_the_last(&mut rig, handle).pop().unwrap();
        assert_eq!(outcome(&last), Err(libc::ECANCELED));
    }
}

pub(crate) fn requests_filed_after_a_cancel_are_carried_out(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (mut ours, handle) = rig.tcp_pair();
    rig.receive(handle, Repeat::UntilCancelled).unwrap();
    rig.flush().unwrap();
    rig.cancel(handle).unwrap();
    rig.receive(handle, Repeat::Once).unwrap();
    rig.write(handle, b"after").unwrap();
    ours.write_all(b"answer").unwrap();
    let (mut cancelled, mut answer, mut wrote) = (0, Vec::new(), 0);
    while cancelled == 0 || answer.is_empty() || wrote == 0 {
        match rig.next().event {
            Event::Receive(Ok(lease)) => answer.extend_from_slice(&lease),
            event @ Event::Write(..) => wrote += written(event).len(),
            event => {
                assert_eq!(outcome(&event), Err(libc::ECANCELED));
                cancelled += 1;
            }
        }
        if cancelled == 1 && !answer.is_empty() && rig.outstanding() == 0 {
            break;
        }
    }
    assert_eq!((cancelled, &answer[..], wrote), (1, &b"answer"[..], 5));
}

pub(crate) fn one_handle_is_cancelled_and_the_others_go_on(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let mut pairs: Vec<_> = (0..20)
        .map(|_| {
            let (ours, theirs) = unix_pair();
            let handle = rig.join(theirs);
            rig.receive(handle, Repeat::UntilCancelled).unwrap();
            (ours, handle)
        })
        .collect();
    rig.flush().unwrap();
    let (_victim, handle) = pairs.remove(7);
    rig.cancel(handle).unwrap();
    assert_eq!(outcome(&rig.last(handle)), Err(libc::ECANCELED));
    for (ours, handle) in &mut pairs {
        ours.write_all(b"alive").unwrap();
        assert_eq!(&*received(rig.another(*handle)), b"alive");
    }
    assert_eq!(rig.outstanding(), 19);
}

pub(crate) fn cancelling_again_changes_nothing(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (a, _b) = silent();
    let handle = rig.join(a);
    let listening = rig.join(listener().0);
    rig.receive(handle, Repeat::Once).unwrap();
    rig.accept(listening, Accept::lightweight()).unwrap();
    for _ in 0..3 {
        rig.cancel(handle).unwrap();
        rig.cancel(listening).unwrap();
    }
    let ended = rig.drain();
    assert_eq!(ended.len(), 2, "{ended:?}");
    assert_ne!(ended[0].handle, ended[1].handle);
}

pub(crate) fn a_cancelled_read_takes_no_data(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    for round in 0..50u8 {
        let (mut ours, theirs) = unix_pair();
        let handle = rig.join(theirs);
        match round % 3 {
            0 => rig.read(handle, Vec::with_capacity(10)).unwrap(),
            1 => rig.receive(handle, Repeat::Once).unwrap(),
            _ => rig.receive(handle, Repeat::UntilCancelled).unwrap(),
        }
        rig.flush().unwrap();
        rig.cancel(handle).unwrap();
        assert_eq!(outcome(&rig.last(handle)), Err(libc::ECANCELED));
        ours.write_all(&[round]).unwrap();
        rig.read(handle, Vec::with_capacity(10)).unwrap();
        assert_eq!(common::read_of(rig.last(handle)), [round]);
        rig.unregister(handle).unwrap();
    }
}

pub(crate) fn a_wait_after_a_cancel_lasts(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let distraction = distraction(&mut rig);
    let (listener, address) = listener();
    let listening = rig.join(listener);
    let _client = common::client(address);
    rig.accept(listening, Accept::lightweight().count(1)).unwrap();
    assert_eq!(outcome(&rig.last(distraction)), Ok(1));
    // There is no request left to cancel; the channel's own completion is not delivered.
    rig.cancel(listening).unwrap();
    rig.last(listening);
    let begin = Instant::now();
    let short = Duration::from_millis(30);
    assert!(rig.dispatch(short).unwrap().is_none());
    assert!(begin.elapsed() >= short, "{:?}", begin.elapsed());
}

/// A write does not continue for a peer that has shut down its direction, even if the peer reads.
pub(crate) fn a_write_to_a_peer_that_is_done_ends(driver: DriverChoice) {
    let pattern = Pattern::new(4);
    for how in 0..3 {
        let mut rig = Rig::new(driver);
        let (mut ours, theirs) = unix_pair();
        ours.shutdown(std::net::Shutdown::Write).unwrap();
        let handle = rig.join(theirs);
        rig.write(handle, pattern.bytes(0, 4 << 20)).unwrap();
        if how == 0 {
            rig.cancel(handle).unwrap();
            let event = rig.last(handle);
            let written = outcome(&event).unwrap_or(0);
            assert!(written < 4 << 20, "{event:?}");
            rig.unregister(handle).unwrap();
        } else if how == 1 {
            assert!(rig.dispatch(Duration::ZERO).unwrap().is_none());
            drop(rig.unregister(handle).unwrap());
        } else {
            rig.flush().unwrap();
            rig.abort(handle).unwrap();
            assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
        }
        assert!(rig.drain().is_empty());
        // The peer sees the end before it has read anything.
        let mut found = Vec::new();
        ours.read_to_end(&mut found).unwrap();
        assert!(found.len() < 4 << 20);
        pattern.check(0, &found);
    }
}
